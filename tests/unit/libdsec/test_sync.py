"""The blocking SDK is the asynchronous one, name by name and parameter by parameter."""

from __future__ import annotations

import inspect
import re
import threading

import pytest

import libdsec
import libdsec.sync
from libdsec import process as aio_process
from libdsec.errors import ClientClosedError, CommandNotStartedError
from libdsec.protocol.exec import ExecAnswer, OutputInfo
from libdsec.protocol.frames import STDOUT
from libdsec.sync import DSecClient
from libdsec.sync import process as sync_process
from libdsec.testing import FakeCall, FakeServer

TWINS = [
    (libdsec.DSecClient, libdsec.sync.DSecClient),
    (libdsec.Sandbox, libdsec.sync.Sandbox),
    (libdsec.Session, libdsec.sync.Session),
    (libdsec.Files, libdsec.sync.Files),
    (libdsec.Rollout, libdsec.sync.Rollout),
    (libdsec.JobLease, libdsec.sync.JobLease),
    (libdsec.Process, libdsec.sync.Process),
    (libdsec.Watch, libdsec.sync.Watch),
    (aio_process.OutputStream, sync_process.OutputStream),
    (aio_process.InputStream, sync_process.InputStream),
]


def public_names(cls: type) -> set[str]:
    return {name for base in cls.__mro__[:-1] for name in vars(base) if not name.startswith("_")}


def test_both_export_the_same_names():
    assert set(libdsec.__all__) == set(libdsec.sync.__all__)


@pytest.mark.parametrize(("aio", "sync"), TWINS, ids=lambda cls: cls.__name__)
def test_twins_have_the_same_methods(aio, sync):
    assert public_names(aio) == public_names(sync)
    for name in public_names(aio):
        if isinstance(getattr(aio, name), property):
            assert isinstance(getattr(sync, name), property), name
            continue
        ours, theirs = inspect.signature(getattr(aio, name)), inspect.signature(getattr(sync, name))
        assert list(ours.parameters.values()) == list(theirs.parameters.values()), name
        returned = re.sub("Async(Iterator|Generator)", "Iterator", str(ours.return_annotation))
        assert returned == theirs.return_annotation, name
        assert getattr(sync, name).__doc__.replace("`with", "`async with") == getattr(aio, name).__doc__, name


@pytest.mark.parametrize(("aio", "sync"), TWINS, ids=lambda cls: cls.__name__)
def test_twins_are_used_alike(aio, sync):
    for plain in ("enter", "exit", "iter"):
        assert hasattr(aio, f"__a{plain}__") == hasattr(sync, f"__{plain}__"), plain


def test_calls_from_threads(fake_node: FakeServer):
    @fake_node.answers("exec")
    async def _(call: FakeCall) -> ExecAnswer:
        if call.args.argv[0] == "missing":
            raise CommandNotStartedError("cannot start", kind="not_found", errno=2, stage="exec")
        data = " ".join(call.args.argv).encode()
        await call.send(STDOUT, data)
        return ExecAnswer("exited", 0, stdout=OutputInfo(len(data), len(data)))

    with DSecClient(fake_node.url) as client:
        sandbox = client.sandbox("s" * 24)
        seen = []
        threads = [
            threading.Thread(target=lambda i=i: seen.append(sandbox.run(["n", str(i)]).stdout)) for i in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seen) == [f"n {i}" for i in range(8)]
        with pytest.raises(CommandNotStartedError):
            sandbox.run(["missing"])
        with sandbox.exec_stream(["a", "b"]) as process:
            assert list(process.output()) == [("stdout", b"a b")]
            assert process.wait().ok
        with sandbox.exec_stream(["c"]) as process:
            assert b"".join(process.stdout) == b"c"
    assert fake_node.connections == 1


def test_a_closed_client_says_so(fake_node: FakeServer):
    client = DSecClient(fake_node.url)
    with pytest.raises(ClientClosedError):
        client.list()
    client.open()
    client.open()
    client.close()
    client.close()
    with pytest.raises(ClientClosedError):
        client.list()


def test_closing_ends_what_waits(fake_node: FakeServer):
    came = threading.Event()

    @fake_node.answers("exec")
    async def _(call: FakeCall) -> ExecAnswer:
        came.set()
        await call.canceled.wait()
        return ExecAnswer("canceled")

    client = DSecClient(fake_node.url).open()
    failures = []

    def wait() -> None:
        try:
            client.sandbox("s" * 24).run(["sleep"])
        except Exception as error:
            failures.append(type(error).__name__)

    thread = threading.Thread(target=wait)
    thread.start()
    assert came.wait(10)
    client.close()
    thread.join(10)
    assert failures == ["OutcomeUnknownError"]
