"""The client of registries against one that lies in every way."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator

import pytest
from layer_trees import noise
from lying_registry import Answer, Asked, Lying, served
from oci_layouts import digest

from dsec.store.oci import registry as registry_module
from dsec.store.oci.blobs import Verified
from dsec.store.oci.connection import Patience
from dsec.store.oci.login import Login, parse_challenges
from dsec.store.oci.reference import RegistryPlace
from dsec.store.oci.registry import Registry
from libdsec.protocol.errors import (
    DSecError,
    IntegrityError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from libdsec.protocol.images import RegistryLogin

MANIFEST = b'{"schemaVersion": 2}'
PATIENCE = Patience(tries=3, first_wait_s=0.001, silence_s=1.0, connect_s=1.0)
LOGIN = RegistryLogin("me", "se cret")


@pytest.fixture
def lying() -> Iterator[Lying]:
    with served() as lying:
        yield lying


@pytest.fixture
def other() -> Iterator[Lying]:
    with served() as lying:
        yield lying


def client(lying: Lying, login: RegistryLogin | None = None, **options: object) -> Registry:
    place = RegistryPlace(lying.host, "a", "v1", "")
    return Registry(place, login=login, plain_http=True, **{"patience": PATIENCE, **options})  # type: ignore[arg-type]


def read(stream: Verified) -> bytes:
    content = bytearray()
    try:
        while part := stream.read(50_000):
            content += part
    finally:
        stream.close()
    return bytes(content)


def test_a_manifest_is_what_its_digest_says(lying: Lying) -> None:
    lying.has("/v2/a/manifests/v1", MANIFEST, "application/vnd.oci.image.manifest.v1+json; charset=utf-8")
    lying.has(f"/v2/a/manifests/{digest(MANIFEST)}", MANIFEST)
    registry = client(lying)
    found = registry.manifest("v1")
    assert found == (MANIFEST, "application/vnd.oci.image.manifest.v1+json", digest(MANIFEST))
    assert registry.manifest(digest(MANIFEST)).body == MANIFEST
    lying.has(f"/v2/a/manifests/{digest(b'else')}", MANIFEST)
    with pytest.raises(IntegrityError, match="digest"):
        registry.manifest(digest(b"else"))
    lying.once("/v2/a/manifests/v1", Answer(200, MANIFEST, {"Docker-Content-Digest": digest(b"else")}))
    with pytest.raises(IntegrityError, match="digest"):
        registry.manifest("v1")
    registry.close()


def test_a_manifest_without_end_is_cut_short(lying: Lying) -> None:
    lying.has("/v2/a/manifests/v1", bytes(5 << 20))
    with pytest.raises(IntegrityError, match="more than"):
        client(lying).manifest("v1")


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, UnavailableError), (403, PermissionDeniedError), (404, NotFoundError), (418, UnavailableError)],
)
def test_refusals_have_types_and_the_registrys_words(lying: Lying, status: int, error: type[DSecError]) -> None:
    lying.once("/v2/a/manifests/v1", Answer(status, b"for\nno good reason"))
    with pytest.raises(error, match="for no good reason"):
        client(lying).manifest("v1")
    assert len(lying.asked) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_busy_registry_is_asked_again_and_not_for_ever(lying: Lying, status: int) -> None:
    lying.has("/v2/a/manifests/v1", MANIFEST)
    lying.once("/v2/a/manifests/v1", Answer(status, b"busy"), Answer(status, b"busy"))
    assert client(lying).manifest("v1").body == MANIFEST
    lying.once("/v2/a/manifests/v1", *[Answer(status, b"busy")] * 3)
    with pytest.raises(UnavailableError, match=f"{status}.*3 times"):
        client(lying).manifest("v1")


def test_a_registry_that_wants_no_time_that_can_be_read_is_asked_again(lying: Lying) -> None:
    lying.once("/v2/a/manifests/v1", *(Answer(429, b"", {"Retry-After": after}) for after in ("\xb2", "soon")))
    lying.has("/v2/a/manifests/v1", MANIFEST)
    assert client(lying).manifest("v1").body == MANIFEST


def test_a_registry_that_wants_an_hour_is_not_waited_for(lying: Lying) -> None:
    lying.once("/v2/a/manifests/v1", Answer(429, b"", {"Retry-After": "3600"}))
    with pytest.raises(UnavailableError, match="3600 s"):
        client(lying).manifest("v1")


def test_nobody_there(lying: Lying) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        place = RegistryPlace(f"127.0.0.1:{closed.getsockname()[1]}", "a", "v1", "")
        with pytest.raises(UnavailableError, match="refused"):
            Registry(place, plain_http=True, patience=PATIENCE).manifest("v1")


def test_plain_http_where_tls_was_expected_is_said_at_once(lying: Lying) -> None:
    asked = Registry(RegistryPlace(lying.host, "team/app", "v1", ""), patience=PATIENCE)
    with pytest.raises(UnavailableError, match=r"does not speak TLS; if .* say --plain-http"):
        asked.manifest("v1")
    asked.close()


def test_a_proxy_gets_the_user_that_its_url_has_and_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def refuse() -> None:
            with proxy.accept()[0] as asking:
                came.append(asking.recv(4096))
                asking.sendall(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        for name in ("no_proxy", "NO_PROXY", "HTTPS_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("https_proxy", f"http://me:s%40cret@127.0.0.1:{proxy.getsockname()[1]}")
        registry = Registry(RegistryPlace("registry.invalid", "a", "v1", ""), patience=Patience(tries=1))
        with pytest.raises(UnavailableError) as told:
            registry.manifest("v1")
        registry.close()
        thread.join(10)
    assert f"proxy-authorization: Basic {base64.b64encode(b'me:s@cret').decode()}".lower() in came[0].decode().lower()
    assert "cret" not in str(told.value)


def test_somebody_who_says_nothing(lying: Lying) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = RegistryPlace(f"127.0.0.1:{silent.getsockname()[1]}", "a", "v1", "")
        patience = Patience(tries=1, first_wait_s=0.001, silence_s=0.05, connect_s=1.0)
        with pytest.raises(UnavailableError, match="timed out"):
            Registry(place, plain_http=True, patience=patience).manifest("v1")


def test_what_is_no_http_is_no_registry(lying: Lying) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for _ in range(3):
                connection, _ = server.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"SSH-2.0-hello\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        place = RegistryPlace(f"127.0.0.1:{server.getsockname()[1]}", "a", "v1", "")
        with pytest.raises(UnavailableError):
            Registry(place, plain_http=True, patience=PATIENCE).manifest("v1")
        thread.join()


def test_a_blob_goes_on_where_it_was_cut(lying: Lying) -> None:
    blob = noise(300_000)
    lying.has_blob("a", blob)
    path = f"/v2/a/blobs/{digest(blob)}"
    lying.once(
        path,
        Answer(200, blob, cut=100_000),
        Answer(206, blob[100_000:], {"Content-Range": "bytes 100000-299999/300000"}, cut=50_000),
    )
    told: list[int] = []
    assert read(client(lying).blob(digest(blob), len(blob), told.append)) == blob
    assert sum(told) == len(blob)
    assert [asked.headers.get("range") for asked in lying.asked] == [None, "bytes=100000-", "bytes=150000-"]


def test_a_blob_goes_on_where_the_registry_knows_no_ranges(lying: Lying) -> None:
    blob = noise(300_000)
    path = f"/v2/a/blobs/{digest(blob)}"
    lying.once(path, Answer(200, blob, cut=100_000), Answer(200, blob))
    assert read(client(lying).blob(digest(blob), len(blob))) == blob


def test_a_blob_that_goes_on_elsewhere_is_refused(lying: Lying) -> None:
    blob = noise(300_000)
    path = f"/v2/a/blobs/{digest(blob)}"
    wrong = Answer(206, blob[7:], {"Content-Range": "bytes 7-299999/300000"})
    lying.once(path, Answer(200, blob, cut=100_000), wrong)
    with pytest.raises(UnavailableError, match="asked for bytes from 100000"):
        read(client(lying).blob(digest(blob), len(blob)))


def test_a_blob_that_is_always_cut_is_given_up(lying: Lying) -> None:
    blob = noise(300_000)
    lying.has_blob("a", blob, cut=0)
    with pytest.raises(UnavailableError, match="3 times"):
        read(client(lying).blob(digest(blob), len(blob)))
    assert len(lying.asked) == 3


@pytest.mark.parametrize("wrong", [noise(1000, 2), noise(999), noise(1001), b""])
def test_a_blob_that_lies_is_told(lying: Lying, wrong: bytes) -> None:
    blob = noise(1000)
    lying.has(f"/v2/a/blobs/{digest(blob)}", wrong)
    with pytest.raises((IntegrityError, UnavailableError), match=r"digest|longer|ended after"):
        read(client(lying).blob(digest(blob), len(blob)))


def test_drops_of_bytes_are_too_slow(lying: Lying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "WINDOW_S", 0.0)
    blob = noise(1000)
    lying.has_blob("a", blob)
    with pytest.raises(UnavailableError, match="too slow"):
        read(client(lying).blob(digest(blob), len(blob)))


def test_drops_of_what_was_there_before_are_too_slow(lying: Lying, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a registry that knows no ranges, and begins again."""
    blob = noise(300_000)
    path = f"/v2/a/blobs/{digest(blob)}"
    lying.once(path, Answer(200, blob, cut=100_000), Answer(200, blob, cut=100_000))

    def slow_from_the_second_on(asked: Asked) -> None:
        if len(lying.asked) == 2:
            monkeypatch.setattr(registry_module, "WINDOW_S", 0.0)
            monkeypatch.setattr(registry_module, "MIN_WINDOW_BYTES", len(blob))

    lying.rules.insert(0, slow_from_the_second_on)
    with pytest.raises(UnavailableError, match="too slow"):
        read(client(lying).blob(digest(blob), len(blob)))
    assert len(lying.asked) == 2


def test_drops_of_a_document_are_too_slow(lying: Lying) -> None:
    now = Patience(tries=1, document_s=0.0)
    lying.has("/v2/a/manifests/v1", MANIFEST)
    with pytest.raises(UnavailableError, match="too slow"):
        client(lying, patience=now).manifest("v1")
    lying.guard("t", f"http://{lying.host}/token")
    lying.gives_tokens("t", "me", "se cret")
    with pytest.raises(UnavailableError, match="too slow"):
        client(lying, LOGIN, patience=now).manifest("v1")


def test_what_uploads_carry_is_not_told(lying: Lying) -> None:
    lying.once("/v2/a/blobs/uploads/", Answer(202, b"", {"Location": "/up?state=s3cret"}))
    lying.once("/up", Answer(500), Answer(500), Answer(400, b"no"))
    blob = b"x" * 10
    with pytest.raises(UnavailableError, match=r"PATCH .*/up at ") as told:
        client(lying).put_blob(digest(blob), len(blob), _Bytes(blob))
    assert "s3cret" not in str(told.value)
    lying.once("/v2/a/blobs/uploads/", Answer(202, b"", {"Location": "/up?state=s3cret"}))
    lying.once("/up", *[Answer(503)] * 9)
    with pytest.raises(UnavailableError, match="/up was answered") as told:
        client(lying).put_blob(digest(blob), len(blob), _Bytes(blob))
    assert "s3cret" not in str(told.value)


def test_the_pulse_ends_a_wait(lying: Lying) -> None:
    class StopError(Exception):
        pass

    beats = iter([None] * 3)

    def pulse() -> None:
        if next(beats, "end") == "end":
            raise StopError

    lying.once("/v2/a/manifests/v1", *[Answer(503)] * 9)
    with pytest.raises(StopError):
        client(lying, pulse=pulse, patience=Patience(tries=9, first_wait_s=30.0)).manifest("v1")


def test_the_token_flow(lying: Lying) -> None:
    lying.has("/v2/a/manifests/v1", MANIFEST)
    blob = lying.has_blob("a", b"blob")
    lying.guard("t0k3n", f"http://{lying.host}/token?x=1")
    lying.gives_tokens("t0k3n", "me", "se cret")
    registry = client(lying, LOGIN)
    assert registry.manifest("v1").body == MANIFEST
    assert read(registry.blob(blob, 4)) == b"blob"
    tokens = [path for path in lying.paths() if path.startswith("/token")]
    assert tokens == ["/token?x=1&service=here&scope=repository%3Aa%3Apull"]


def test_an_identity_token_goes_by_post(lying: Lying) -> None:
    lying.has("/v2/a/manifests/v1", MANIFEST)
    lying.guard("t0k3n", f"http://{lying.host}/token")

    def rule(asked: Asked) -> Answer | None:
        if asked.path == "/token" and asked.method == "POST" and b"refresh_token=identity" in asked.body:
            return Answer(200, b'{"access_token": "t0k3n"}')
        return None

    lying.rules.insert(0, rule)
    assert client(lying, RegistryLogin("", "identity")).manifest("v1").body == MANIFEST


def test_basic(lying: Lying) -> None:
    lying.has("/v2/a/manifests/v1", MANIFEST)

    def rule(asked: Asked) -> Answer | None:
        if asked.headers.get("authorization") == "Basic bWU6c2UgY3JldA==":
            return None
        return Answer(401, b"", {"WWW-Authenticate": 'Basic realm="x"'})

    lying.rules.insert(0, rule)
    assert client(lying, LOGIN).manifest("v1").body == MANIFEST
    for login in (None, RegistryLogin("me", "wrong"), RegistryLogin("", "identity")):
        with pytest.raises(UnauthenticatedError):
            client(lying, login).manifest("v1")


@pytest.mark.parametrize("login", [None, LOGIN])
def test_a_registry_that_is_never_content_is_left(lying: Lying, login: RegistryLogin | None) -> None:
    challenge = f'Bearer realm="http://{lying.host}/token",service="s"'
    lying.rules.append(lambda asked: Answer(200, b'{"token": "x"}') if asked.path.startswith("/token") else None)
    lying.rules.append(lambda _: Answer(401, b"again", {"WWW-Authenticate": challenge}))
    with pytest.raises(UnauthenticatedError, match="401"):
        client(lying, login).manifest("v1")
    assert len(lying.asked) == 5


@pytest.mark.parametrize(
    "answer",
    [Answer(200, b"{}"), Answer(200, b"no json"), Answer(200, b'{"token": "a\\r\\nb"}'), Answer(404), Answer(401)],
)
def test_a_token_service_that_makes_no_sense(lying: Lying, answer: Answer) -> None:
    lying.guard("t", f"http://{lying.host}/token")
    lying.rules.insert(0, lambda asked: answer if asked.path.startswith("/token") else None)
    with pytest.raises((UnavailableError, UnauthenticatedError)):
        client(lying, LOGIN).manifest("v1")


@pytest.mark.parametrize("realm", ["http://example.com/token", "ftp://127.0.0.1/", "", "file:///etc/passwd", "//["])
def test_credentials_go_to_no_realm_without_tls(lying: Lying, realm: str) -> None:
    lying.guard("t", realm)
    with pytest.raises(UnavailableError, match="not https"):
        client(lying, LOGIN).manifest("v1")


def test_another_host_gets_the_request_and_no_credentials(lying: Lying, other: Lying) -> None:
    blob = noise(100_000)
    other.has("/store", blob)
    lying.guard("t0k3n", f"http://{lying.host}/token")
    lying.gives_tokens("t0k3n", "me", "se cret")
    to = Answer(307, b"", {"Location": f"http://{other.host}/store"})
    lying.rules.append(lambda asked: to if asked.path.startswith("/v2/a/blobs/") else None)
    assert read(client(lying, LOGIN).blob(digest(blob), len(blob))) == blob
    assert [asked.path for asked in other.asked] == ["/store"]
    assert "authorization" not in other.asked[0].headers


def test_another_host_is_told_nothing_when_it_asks(lying: Lying, other: Lying) -> None:
    other.rules.append(lambda _: Answer(401, b"", {"WWW-Authenticate": f'Basic realm="http://{other.host}/"'}))
    to = Answer(307, b"", {"Location": f"http://{other.host}/store"})
    lying.rules.append(lambda _: to)
    with pytest.raises(UnauthenticatedError):
        client(lying, LOGIN).manifest("v1")
    assert len(other.asked) == 1


@pytest.mark.parametrize(
    "to", ["http://example.com/x", "file:///etc/passwd", "http://169.254.169.254/latest", "//[", "https://a:b/"]
)
def test_redirects_to_elsewhere_are_not_followed(lying: Lying, to: str) -> None:
    lying.rules.append(lambda _: Answer(302, b"", {"Location": to}))
    with pytest.raises(UnavailableError):
        client(lying).manifest("v1")


def test_redirects_end(lying: Lying) -> None:
    lying.rules.append(lambda asked: Answer(302, b"", {"Location": asked.path + "x"}))
    with pytest.raises(UnavailableError, match="redirects"):
        client(lying).manifest("v1")


def test_plain_http_is_for_this_machine() -> None:
    for host in ("example.com", "10.0.0.1:5000", "localhost.example.com"):
        with pytest.raises(InvalidArgumentError, match="plain http"):
            Registry(RegistryPlace(host, "a", "v1", ""), plain_http=True)
    for host in ("localhost", "localhost:5000", "127.0.0.1:1", "[::1]:5000"):
        Registry(RegistryPlace(host, "a", "v1", ""), plain_http=True).close()


def test_an_upload_stays_with_the_registry(lying: Lying) -> None:
    lying.rules.append(lambda _: Answer(202, b"", {"Location": "https://example.com/upload"}))
    blob = b"x" * 10
    with pytest.raises(UnavailableError, match="sends the upload"):
        client(lying).put_blob(digest(blob), len(blob), _Bytes(blob))


def test_an_upload_in_chunks(lying: Lying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "UPLOAD_CHUNK", 4)
    got = bytearray()

    def rule(asked: Asked) -> Answer:
        got.extend(asked.body)
        if asked.method == "PUT":
            return Answer(201)
        return Answer(202, b"", {"Location": f"/up?state={len(got)}"})

    lying.rules.append(rule)
    client(lying).put_blob(digest(b"0123456789"), 10, _Bytes(b"0123456789"))
    assert bytes(got) == b"0123456789"
    assert lying.paths("PATCH") == ["/up?state=0", "/up?state=4", "/up?state=8"]
    assert lying.paths("PUT") == [f"/up?state=10&digest=sha256%3A{digest(b'0123456789')[7:]}"]


@pytest.mark.parametrize("there", [True, False])
def test_an_upload_whose_last_answer_is_lost(lying: Lying, there: bool) -> None:
    blob = b"x" * 10
    lying.once("/v2/a/blobs/uploads/", Answer(202, b"", {"Location": "/up"}))
    lying.once("/up", Answer(202), Answer(502), Answer(404))
    if there:
        lying.has_blob("a", blob)
        client(lying).put_blob(digest(blob), len(blob), _Bytes(blob))
    else:
        with pytest.raises(NotFoundError, match="/up"):
            client(lying).put_blob(digest(blob), len(blob), _Bytes(blob))
    assert lying.paths("PUT") == [f"/up?digest=sha256%3A{digest(blob)[7:]}"] * 2


class _Bytes:
    def __init__(self, content: bytes) -> None:
        self._left = content

    def readinto(self, view: memoryview, /) -> int:
        part, self._left = self._left[: len(view)], self._left[len(view) :]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("there", [True, False])
def test_a_blob_of_another_repository(lying: Lying, there: bool) -> None:
    """Whether it is there is looked for: a registry may say so, and not have done it."""
    lying.once("/v2/a/blobs/uploads/", Answer(201, headers={"Location": "/v2/a/blobs/x"}))
    if there:
        lying.has_blob("a", b"blob")
    assert client(lying, writes=True).mount_blob(digest(b"blob"), "team/base") is there
    assert lying.paths("POST") == [f"/v2/a/blobs/uploads/?mount={digest(b'blob').replace(':', '%3A')}&from=team%2Fbase"]


@pytest.mark.parametrize("status", [202, 204, 307, 400, 401, 403, 404, 405, 429, 500, 501, 503])
def test_what_a_registry_does_not_share_is_no_error(lying: Lying, status: int) -> None:
    """Nor is anything asked of where it says that an upload has begun."""
    to = {"Location": "/v2/victim/manifests/v1"} if status != 204 else {}
    lying.once("/v2/a/blobs/uploads/", *[Answer(status, b"no", to)] * 9)
    assert not client(lying, LOGIN, writes=True).mount_blob(digest(b"blob"), "team/base")
    assert len(lying.asked) == 1


def test_a_mount_asks_for_a_token_for_both_repositories(lying: Lying) -> None:
    lying.guard("t0k3n", f"http://{lying.host}/token")
    lying.gives_tokens("t0k3n", "me", "se cret")
    client(lying, LOGIN, writes=True).mount_blob(digest(b"blob"), "team/base")
    (token,) = [path for path in lying.paths() if path.startswith("/token")]
    # the first is what the registry asked for
    assert token == "/token?service=here&scope=repository%3Aa%3Apull&scope=repository%3Ateam%2Fbase%3Apull"
    assert lying.asked[-1].headers["authorization"] == "Bearer t0k3n"


def test_challenges_are_read() -> None:
    header = 'Bearer realm="https://a/t",service="b, \\"c",scope=d, Basic realm="x"'
    bearer, basic = parse_challenges(header)
    assert (bearer.scheme, dict(bearer.parameters)) == (
        "bearer",
        {"realm": "https://a/t", "service": 'b, "c', "scope": "d"},
    )
    assert (basic.scheme, dict(basic.parameters)) == ("basic", {"realm": "x"})
    for nonsense in ("", "=", "Bearer", '"', "Bearer realm", "x" * 100_000, "Bearer " + "a=b," * 9000):
        parse_challenges(nonsense)
    # a registry may send a hundred of these, and nothing else runs meanwhile
    for _ in range(100):
        assert [each.scheme for each in parse_challenges("Bearer a=x" + " " * 8100 + "=")] == ["bearer"]


def test_a_token_is_used_until_it_ends() -> None:
    now = 0.0
    asked: list[str] = []

    def ask(method: str, url: str, headers: dict[str, str], body: bytes | None) -> tuple[int, bytes]:
        asked.append(url)
        return 200, b'{"token": "t%d", "expires_in": 100}' % len(asked)

    login = Login("h", None, ask, may_ask=lambda _: True, clock=lambda: now)
    assert login.header("s") is None
    login.answer(['Bearer realm="https://a/t"'], "s")
    assert login.header("s") == "Bearer t1"
    assert login.header("another scope") is None
    now = 95.0
    assert login.header("s") is None


def test_what_is_left_of_an_answer_is_not_taken_for_the_next(lying: Lying) -> None:
    lying.has("/v2/a/manifests/v1", MANIFEST)
    registry = client(lying)
    for body in (b"", b"x" * 100, b"x" * 100_000):
        lying.once("/v2/a/manifests/v1", Answer(503, body), Answer(302, body, {"Location": "/v2/a/manifests/v1"}))
        assert registry.manifest("v1").body == MANIFEST
    registry.close()
