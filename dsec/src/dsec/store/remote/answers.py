"""What a store answers when a request fails, in words: which of our errors it is, whether another attempt helps, and
what to do.

obstore has one text for everything: the request, the status, the answer's body (XML or JSON of the cloud, or a page of
whatever stands between), and a dump of its own structures, in which alone stands why there was no connection. Of all
this only the parts that tell something are shown: never a query, a header, or a body as it came.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from obstore import exceptions as failures

from libdsec.protocol.errors import (
    CapacityError,
    DSecError,
    PermissionDeniedError,
    UnavailableError,
    UnsupportedOperationError,
)

MAX_WORDS = 500

CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    "gs": "GOOGLE_SERVICE_ACCOUNT, a key's file",
}
"""By cloud: the variables that most who have a store there need."""
CLOUDS = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "azure": "az", "abfs": "az", "abfss": "az", "adl": "az"}
"""By scheme."""

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "FilesystemNotFound")
_NO_ACCOUNT = ("XAdminUserNotFound", "XMinioAdminNoSuchUser", "NoSuchUser", "StorageAccountDoesNotExist")
"""Said by a 404, as those of a bucket; all others mean the object."""
_NO_OBJECT_THERE = re.compile(
    r"OperationAborted|ConditionalRequestConflict|InvalidBucketState|(Bucket|Container|Filesystem|Account)\w*"
)
"""What is said by a 409 that is about two requests at once, or the bucket; all others mean that the object is there."""
_THROTTLED = re.compile(
    r"SlowDown\w*|ServerBusy|(Bandwidth|Request)LimitExceeded|TooManyRequests\w*|\w*Throttl(ed|ing)\w*"
)
"""Said with any status, a 403 or 400 too."""
_DENIED = (
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    *_NO_ACCOUNT,
)
_REMEDIES = {
    "AuthorizationHeaderMalformed": "set AWS_REGION to the bucket's",
    "RequestTimeTooSkewed": "set this machine's clock",
}
"""Of what is denied for another reason than that credentials are wrong."""
_FULL = ("QuotaExceeded", "XMinioStorageFull")

_STATUS = re.compile(r"non-2xx status code: (\d{3}) ?([^:]*): ?(.*)", re.DOTALL)
_REQUEST = re.compile(r"Error performing [A-Z]+ (\S+)")
_XML = re.compile(r"<(Code|Message)>([^<]*)</")
_JSON = re.compile(r'"message" ?: ?"((?:[^"\\]|\\.)*)"')
_CAUSES = re.compile(r'(?:message|error): "([^"]*)"|InvalidCertificate\(\s*(\w+)|(BadScheme)\b|(InvalidContentType)\b')
_SECRETS = re.compile(r"(?<=://)[^/\s@]*@|\?\S*")
"""Who asks, and what is signed."""
_OWN_HOSTS = (
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "fd00:ec2::23",
    "fd00:ec2::254",
    "metadata.google.internal",
)
_OWN_PATHS = (
    "/latest/api/token",
    "/latest/meta-data/iam/security-credentials",
    "/computeMetadata/v1/",
    "/metadata/identity/oauth2/token",
)
"""Where the library asks for a machine's own credentials, when none are set; the paths where another host was named."""
_NO_ROOM = re.compile(r"os error (28|122)\b")
_REFUSED = re.compile(r"os error (1|13|30)\b")


@dataclass(frozen=True)
class Answer:
    """One failed request."""

    typed: type[DSecError]
    words: str
    again: bool
    """Whether another attempt may help."""


def is_failure(error: Exception) -> bool:
    """Whether it came of the store and its library, and not of a mistake here."""
    # a panic of the library has a class that cannot be named
    return isinstance(error, failures.BaseError | OSError | ValueError) or type(error).__name__ == "RustPanic"


def is_missing(error: FileNotFoundError) -> bool:
    """Whether the object is missing, and not what it would lie in."""
    return _said(_status(str(error))[2])[0] not in (*_NO_BUCKET, *_NO_ACCOUNT)


def is_there(error: Exception) -> bool:
    """Whether a write that may only create did not, because there is an object of that name."""
    status, _, body = _status(str(error))
    code = _said(body)[0]
    return status != 409 or not (_NO_OBJECT_THERE.fullmatch(code) or _THROTTLED.fullmatch(code) or code in _FULL)


def read(error: Exception, scheme: str) -> Answer:
    """What a failure means for a store whose URL has that scheme; "" for one that is a directory."""
    text, _, dump = str(error).partition("\n\nDebug source")
    status, reason, body = _status(text)
    code, message = _said(body)
    cause, remedy = ("", "") if status else _cause(dump)
    cloud = CLOUDS.get(scheme)
    where = _asked(text)
    if cloud is not None and where is not None and _is_own(where):
        typed, again, advice = _without_own(status, cause, CREDENTIALS[cloud])
    else:
        typed, again, advice = _meaning(error, text, status, code, cloud)
    if status:
        words = " ".join(filter(None, (str(status), reason.strip())))
        words += f" {code}" if code and code != reason.strip().replace(" ", "") else ""
        words += f": {message}" if message else ""
    else:
        words = cause if cause and "HTTP error" in text else text.partition("\n")[0]
        advice = advice or remedy
    words = _shown(words)
    if where is not None and where.hostname and scheme:
        words += _shown(f" (of {where.scheme}://{where.netloc.rpartition('@')[2]})")
    return Answer(typed, words[:MAX_WORDS] + (f"; {advice}" if advice else ""), again)


def _asked(text: str) -> SplitResult | None:
    """Where the request went; None where that is not told, or is no URL."""
    asked = _REQUEST.search(text)
    try:
        return urlsplit(asked[1]) if asked else None
    except ValueError:
        return None


def _shown(words: str) -> str:
    """Without what is secret, or does something to a terminal."""
    return _SECRETS.sub("", "".join(each if each.isprintable() else "\ufffd" for each in words))


def _is_own(where: SplitResult) -> bool:
    """Whether a request was for this machine's own credentials."""
    return where.hostname in _OWN_HOSTS or where.path.startswith(_OWN_PATHS)


def _without_own(status: int, cause: str, variables: str) -> tuple[type[DSecError], bool, str]:
    """As `_meaning`, where this machine's own credentials were asked for, and did not come."""
    if status in (401, 403, 404) or "Connection refused" in cause:
        advice = f"no credentials are set, and this machine has none of its own: set {variables}"
        return PermissionDeniedError, True, advice
    advice = f"no credentials are set, and this machine's own cannot be had now: try again, or set {variables}"
    return UnavailableError, True, advice


def _meaning(
    error: Exception, text: str, status: int, code: str, cloud: str | None
) -> tuple[type[DSecError], bool, str]:
    """Type, whether to try again, and what to do."""
    if _THROTTLED.fullmatch(code):
        return UnavailableError, True, ""
    variables = CREDENTIALS.get(cloud or "", "")
    denied = isinstance(error, failures.PermissionDeniedError | failures.UnauthenticatedError | PermissionError)
    if code in _FULL or status == 507 or _NO_ROOM.search(text):
        return CapacityError, False, "make room in the store"
    if denied or status in (401, 403) or code in _DENIED or _REFUSED.search(text):
        advice = f"set {variables}, and look at what they may do there: read, write and list" if variables else ""
        return PermissionDeniedError, False, _REMEDIES.get(code, advice)
    if code in _NO_BUCKET or (status == 404 and cloud):
        return UnavailableError, False, "make the bucket, or name another: a store's must be there"
    if status in (405, 501) or isinstance(error, failures.NotSupportedError | NotImplementedError):
        return UnsupportedOperationError, False, "it does not do what a store must: see docs/layers.md"
    if status == 400 and code != "RequestTimeout":
        # again, since what a network has damaged is one as well
        return UnsupportedOperationError, True, "it does not know such a request: see docs/layers.md"
    if "Received redirect without LOCATION" in text:
        return UnavailableError, False, "set AWS_REGION to the bucket's"
    return UnavailableError, True, ""


def _status(text: str) -> tuple[int, str, str]:
    """Status (0: there was none), its reason, the answer's body."""
    found = _STATUS.search(text.partition("\n\nDebug source")[0])
    return (int(found[1]), found[2], found[3]) if found else (0, "", "")


def _said(body: str) -> tuple[str, str]:
    """Code and message of an answer; "" what is not said."""
    said = dict(_XML.findall(body))
    if not said and (message := _JSON.search(body)) is not None:
        said["Message"] = message[1]
    # Azure goes on with numbers for its support
    message_words = said.get("Message", "").strip().partition("\n")[0]
    return said.get("Code", "").strip(), html.unescape(message_words).strip()


def _cause(dump: str) -> tuple[str, str]:
    """Why there was no answer, and what to do; "" what is not known."""
    found = list(_CAUSES.finditer(dump))
    if not found:
        return ("it did not answer in time", "") if "kind: Timeout" in dump else ("", "")
    message, certificate, scheme, content = found[-1].groups()
    if scheme:
        return "its endpoint is http", "give one of https, or set AWS_ALLOW_HTTP=true"
    if content:
        return "it does not speak TLS", "look at the endpoint: is it one of http?"
    if certificate:
        return (
            f"its certificate is not to be trusted: {certificate}",
            "name the file of who signed it in SSL_CERT_FILE",
        )
    return f"no connection: {message}", "look at the endpoint, and whether somebody listens there"
