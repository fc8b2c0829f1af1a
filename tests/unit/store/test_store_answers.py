"""What servers say when a request fails, as they said it, and what a user is told of it."""

from __future__ import annotations

import pytest
from obstore import exceptions as failures

from dsec.store.remote import answers
from libdsec.protocol.errors import (
    CapacityError,
    DSecError,
    PermissionDeniedError,
    UnavailableError,
    UnsupportedOperationError,
)

AT = "http://user:hidden@127.0.0.1:9000/images/t/names/app/_tags/1?X-Amz-Signature=hidden"


def status(line: str, body: str = "", at: str = AT) -> str:
    return f"Error performing GET {at} in 1.7ms - Server returned non-2xx status code: {line}: {body}"


def xml(code: str, message: str, more: str = "") -> str:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>'
    )


def no_answer(dump: str, at: str = AT) -> str:
    """obstore tells the reason in the dump alone."""
    said = f"Generic S3 error: Error performing GET {at} in 279µs - HTTP error: error sending request"
    return f"{said}\n\nDebug source:\n{dump}"


REFUSED = 'ConnectError("tcp connect error", 127.0.0.1:1, Os { code: 111, message: "Connection refused" })'
UNKNOWN_HOST = (
    'ConnectError("dns error", Custom { kind: Uncategorized, error: "failed to lookup address information" })'
)

NO_BUCKET = xml("NoSuchBucket", "The specified bucket does not exist")
NO_CONTAINER = xml("ContainerNotFound", "The specified container does not exist.\nRequestId:e6f5\nTime:2026")
BAD_SIGNATURE = xml("SignatureDoesNotMatch", "The signatures differ.", "<StringToSign>hidden</StringToSign>")
BAD_REGION = xml("AuthorizationHeaderMalformed", "the region &#34;eu&#34; is wrong; expecting &#34;us-east-1&#34;")
SKEWED = xml("RequestTimeTooSkewed", "The difference is too large.")
SIGNED = xml("InternalError", "see https://user:hidden@host/x?X-Amz-Signature=hidden, or /x?sig=hidden&#38;se=hidden")
NOT_JSON_API = '{"error":{"code":400,"message":"invalid uploadType","errors":[]}}'
OWN = "http://169.254.169.254/latest/api/token"
OWN_ELSEWHERE = "http://127.0.0.1:9001/computeMetadata/v1/instance/service-accounts/default/token?audience=hidden"
LIKE_OWN = "http://127.0.0.1:9000/images/names/metadata.google/_tags/latest/api/token"


@pytest.mark.parametrize(
    ("error", "scheme", "typed", "again", "told"),
    [
        (FileNotFoundError(status("404 Not Found", NO_BUCKET)), "s3", UnavailableError, False, "make the bucket"),
        (
            failures.GenericError(status("404 Not Found", NO_CONTAINER)),
            "az",
            UnavailableError,
            False,
            "make the bucket",
        ),
        (
            failures.GenericError(status("403 Forbidden", BAD_SIGNATURE)),
            "s3",
            PermissionDeniedError,
            False,
            "AWS_SECRET",
        ),
        (failures.PermissionDeniedError(status("403 Forbidden")), "az", PermissionDeniedError, False, "ACCOUNT_KEY"),
        (failures.UnauthenticatedError(status("401 No")), "gs", PermissionDeniedError, False, "GOOGLE_SERVICE_ACCOUNT"),
        (
            failures.GenericError(status("400 Bad Request", BAD_REGION)),
            "s3",
            PermissionDeniedError,
            False,
            "AWS_REGION",
        ),
        (
            FileNotFoundError(status("404 Not Found", xml("XAdminUserNotFound", "No user."))),
            "s3",
            PermissionDeniedError,
            False,
            "AWS_ACCESS_KEY_ID",
        ),
        (failures.GenericError(status("403 Forbidden", "", OWN)), "s3", PermissionDeniedError, True, "no credentials"),
        (failures.GenericError(no_answer(REFUSED, OWN)), "s3", PermissionDeniedError, True, "no credentials are set"),
        (failures.GenericError(status("401 No", "", OWN)), "az", PermissionDeniedError, True, "has none of its own"),
        (failures.GenericError(status("404 No", "", OWN_ELSEWHERE)), "gs", PermissionDeniedError, True, "has none of"),
        (failures.GenericError(status("503 Busy", "", LIKE_OWN)), "gs", UnavailableError, True, "503 Busy"),
        (failures.PermissionDeniedError(status("403 F", "", LIKE_OWN)), "s3", PermissionDeniedError, False, "403 F"),
        (failures.GenericError(no_answer(REFUSED)), "s3", UnavailableError, True, "no connection: Connection refused"),
        (failures.GenericError(no_answer(UNKNOWN_HOST)), "s3", UnavailableError, True, "failed to lookup address"),
        (
            failures.GenericError(no_answer("InvalidCertificate(UnknownIssuer)")),
            "s3",
            UnavailableError,
            True,
            "SSL_CERT_FILE",
        ),
        (failures.GenericError(no_answer("InvalidMessage(InvalidContentType)")), "s3", UnavailableError, True, "TLS"),
        (failures.GenericError(no_answer("kind: Builder, source: BadScheme")), "gs", UnavailableError, True, "https"),
        (failures.GenericError(no_answer("kind: Timeout")), "s3", UnavailableError, True, "in time"),
        (
            failures.GenericError(status("400 Bad Request", NOT_JSON_API)),
            "gs",
            UnsupportedOperationError,
            True,
            "uploadType",
        ),
        (
            failures.GenericError(status("501 Not Implemented")),
            "s3",
            UnsupportedOperationError,
            False,
            "docs/layers.md",
        ),
        (failures.GenericError(status("503 Slow Down")), "s3", UnavailableError, True, "503 Slow Down"),
        (failures.GenericError(status("500 No", SIGNED)), "s3", UnavailableError, True, "see https://host/x or /x"),
        (
            failures.GenericError(no_answer('error: "no way to http://a:hidden@b/?sig=hidden"')),
            "s3",
            UnavailableError,
            True,
            "no way to http://b/ (of",
        ),
        (
            failures.PermissionDeniedError(status("403 F", SKEWED)),
            "s3",
            PermissionDeniedError,
            False,
            "machine's clock",
        ),
        (failures.GenericError(status("507 Insufficient Storage")), "s3", CapacityError, False, "make room"),
        (failures.GenericError(status("403 F", xml("QuotaExceeded", "Full."))), "s3", CapacityError, False, "Full."),
        (
            failures.AlreadyExistsError(status("409 Conflict", xml("OperationAborted", "Two."))),
            "s3",
            UnavailableError,
            True,
            "Two.",
        ),
        (
            failures.GenericError("Generic S3 error: " + "Received redirect without LOCATION"),
            "s3",
            UnavailableError,
            False,
            "AWS_REGION",
        ),
    ],
)
def test_what_it_means(error: Exception, scheme: str, typed: type[DSecError], again: bool, told: str) -> None:
    answer = answers.read(error, scheme)
    assert (answer.typed, answer.again) == (typed, again)
    assert told in answer.words
    assert "hidden" not in answer.words
    assert "\n" not in answer.words
    assert "<" not in answer.words


@pytest.mark.parametrize("line", ["408 Request Timeout", "429 Too Many Requests", "500 No", "503 Busy"])
@pytest.mark.parametrize("scheme", ["s3", "az", "gs"])
def test_credentials_of_the_machine_that_do_not_come_now(line: str, scheme: str) -> None:
    for text in (status(line, "", OWN), status(line, "", OWN_ELSEWHERE), no_answer("kind: Timeout", OWN)):
        answer = answers.read(failures.GenericError(text), scheme)
        assert (answer.typed, answer.again) == (UnavailableError, True)
        assert "cannot be had now: try again, or set " in answer.words
        assert "has none" not in answer.words


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "169.254.170.2", "169.254.170.23:80", "[fd00:ec2::23]", "metadata.google.internal"]
)
def test_a_clouds_own_host_is_known_by_its_name(host: str) -> None:
    answer = answers.read(failures.GenericError(status("404 Not Found", "", f"http://{host}/v1/some")), "s3")
    assert "has none of its own" in answer.words
    for other in ("http://metadata.google.internal.example/v1/some", f"http://x:9000/{host}/v1/some"):
        answer = answers.read(failures.GenericError(status("404 Not Found", "", other)), "s3")
        assert "of its own" not in answer.words


@pytest.mark.parametrize("line", ["400 Bad Request", "403 Forbidden", "409 Conflict", "429 Too Many Requests"])
@pytest.mark.parametrize(
    "code",
    [
        *("SlowDown", "SlowDownRead", "ServerBusy", "RequestLimitExceeded", "BandwidthLimitExceeded"),
        *("TooManyRequests", "TooManyRequestsException", "Throttling", "ThrottlingException", "RequestThrottled"),
    ],
)
def test_a_server_that_has_too_much_to_do(line: str, code: str) -> None:
    answer = answers.read(failures.PermissionDeniedError(status(line, xml(code, "Slower."))), "s3")
    assert (answer.typed, answer.again) == (UnavailableError, True)
    assert "AWS_" not in answer.words


def test_nothing_is_done_to_a_terminal() -> None:
    for said in ("\x1b]0;title\x07 no \x9b31m", "a\x7fb\u202ec", "see http://x/?a=\x1chidden"):
        words = answers.read(failures.GenericError(status("500 N\x1bo", xml("C\x1bD", said))), "s3").words
        assert words.isprintable()
        assert "hidden" not in words
    refused = f'error: "{chr(27)}[31mred"'
    assert answers.read(failures.GenericError(no_answer(refused, "http://h\x1b/")), "s3").words.isprintable()


def test_a_request_to_what_is_no_url() -> None:
    answer = answers.read(failures.GenericError(status("503 Busy", "", "http://[x/y")), "s3")
    assert (answer.typed, answer.again, answer.words) == (UnavailableError, True, "503 Busy")


def test_the_server_is_named_and_characters_are_what_they_stand_for() -> None:
    answer = answers.read(failures.GenericError(status("400 Bad Request", BAD_REGION)), "s3")
    assert '400 Bad Request AuthorizationHeaderMalformed: the region "eu" is wrong' in answer.words
    assert "(of http://127.0.0.1:9000)" in answer.words


def test_an_object_that_is_missing_is_no_bucket_that_is() -> None:
    for body in ("", xml("NoSuchKey", "no"), xml("BlobNotFound", "no"), "<html>nothing</html>"):
        assert answers.is_missing(FileNotFoundError(status("404 Not Found", body)))
    for code in ("ResourceNotFound", "NoSuchVersion", "WebContentNotFound", "PathNotFound", "<Code>NotFound"):
        assert answers.is_missing(FileNotFoundError(status("404 Not Found", xml(code, "no"))))
    assert answers.is_missing(FileNotFoundError("No such file or directory (os error 2)"))
    for body in (NO_BUCKET, NO_CONTAINER, xml("XAdminUserNotFound", "no"), xml("NoSuchUser", "no")):
        assert not answers.is_missing(FileNotFoundError(status("404 Not Found", body)))


def test_a_conflict_is_no_object() -> None:
    there = [status("412 Precondition Failed", xml("PreconditionFailed", "no")), status("409 Conflict"), "exists"]
    there += [
        status("409 Conflict", xml(code, "no"))
        for code in ("BlobAlreadyExists", "PathAlreadyExists", "PreconditionFailed", "FileAlreadyExists")
    ]
    there += [
        status("409 Conflict", xml(code, "no")) for code in ("ObjectAlreadyExists", "BlobImmutableDueToPolicy", "Other")
    ]
    assert all(answers.is_there(failures.AlreadyExistsError(text)) for text in there)
    for code in (
        *("ConditionalRequestConflict", "OperationAborted", "InvalidBucketState", "BucketAlreadyOwnedByYou"),
        *("ContainerBeingDeleted", "ContainerDisabled", "ContainerAlreadyExists", "FilesystemBeingDeleted"),
        *("AccountBeingCreated", "SlowDown", "QuotaExceeded"),
    ):
        assert not answers.is_there(failures.AlreadyExistsError(status("409 Conflict", xml(code, "no"))))


def test_mistakes_of_our_own_are_no_answers() -> None:
    assert not answers.is_failure(KeyError("x"))
    assert answers.is_failure(OSError("x"))
    assert answers.is_failure(type("RustPanic", (Exception,), {})("rust future panicked"))
