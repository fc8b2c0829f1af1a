"""What a test needs of the machine, and what it must leave behind: nothing.

`@pytest.mark.needs("root", "erofs", ...)` names the needs of a test. A missing need skips it, unless DSEC_TEST_REQUIRE
promises the need (`all`, or a comma-separated list), in which case the test fails: a promised machine that cannot run a
test is an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import os
import platform
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from dsec.store.digest import LAYER_GENERATION
from remains import BUILD, STATE_PREFIX, Remains

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # as a shell starts what runs in its background; whatever a test starts would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _in_memory(path: str) -> bool:
    """Whether it lies on a tmpfs, by the longest mount point that has it."""
    mounts = Path("/proc/self/mounts")
    lines = mounts.read_text().splitlines() if mounts.exists() else ["none / unknown"]
    found = {place: kind for _, place, kind, *_ in map(str.split, lines)}
    return found[max((place for place in found if os.path.commonpath((place, path)) == place), key=len)] == "tmpfs"


if _in_memory(tempfile.gettempdir()):
    # layers are read on demand, swapped, counted on disks only, and are large
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/var/tmp")

REPOSITORY = Path(__file__).resolve().parent.parent
IMAGE_STATE = BUILD / f"test-image-{LAYER_GENERATION}"
IMAGE_NAME = IMAGE_STATE / "name"
"""Written once the image is there."""


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()))


def _filesystem(name: str) -> bool:
    return any(line.split()[-1] == name for line in Path("/proc/filesystems").read_text().splitlines())


def aether_binary() -> Path | None:
    """The binary under test: $DSEC_AETHER, else the release build of this checkout."""
    named = os.environ.get("DSEC_AETHER")
    path = Path(named) if named else REPOSITORY / "target" / "release" / "aether"
    return path if path.exists() else None


NEEDS: dict[str, Callable[[], bool]] = {
    "root": lambda: os.geteuid() == 0,
    "linux": lambda: platform.system() == "Linux",
    "erofs": lambda: _filesystem("erofs"),
    "erofs-from-files": lambda: _filesystem("erofs") and _kernel() >= (6, 12),
    "pre-content": lambda: _kernel() >= (6, 14),
    "overlay": lambda: _filesystem("overlay"),
    "loop": lambda: Path("/dev/loop-control").exists(),
    "btrfs": lambda: _filesystem("btrfs") and shutil.which("mkfs.btrfs") is not None,
    "aether": lambda: aether_binary() is not None,
    "mkfs.erofs": lambda: shutil.which("mkfs.erofs") is not None,
    "fsck.erofs": lambda: shutil.which("fsck.erofs") is not None,
    "mkfs.ext4": lambda: shutil.which("mkfs.ext4") is not None,
    "mmdebstrap": lambda: shutil.which("mmdebstrap") is not None,
    "docker-registry": lambda: shutil.which("docker-registry") is not None,
    "skopeo": lambda: shutil.which("skopeo") is not None,
    "umoci": lambda: shutil.which("umoci") is not None,
    "crun": lambda: shutil.which("crun") is not None,
    "cc": lambda: shutil.which("cc") is not None,
    "cgroup-v1": lambda: Path("/sys/fs/cgroup/memory/cgroup.procs").exists(),
}

# what only some machines of those promised can have: never a failure by absence under `all`
_OPTIONAL = {"cgroup-v1", "btrfs", "erofs-from-files", "pre-content"}


def _promised(need: str) -> bool:
    promise = os.environ.get("DSEC_TEST_REQUIRE", "")
    return need in promise.split(",") or (promise == "all" and need not in _OPTIONAL)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for need in marker.args:
            if need not in NEEDS:
                pytest.fail(f"unknown need {need!r}: see NEEDS in tests/conftest.py", pytrace=False)
            if NEEDS[need]():
                continue
            if _promised(need):
                pytest.fail(f"this machine was promised to have {need!r} and has not", pytrace=False)
            pytest.skip(f"needs {need}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that stands on the image of the host's release may find that it has to be built first."""
    if IMAGE_NAME.exists():
        return
    for item in items:
        if any("mmdebstrap" in marker.args for marker in item.iter_markers("needs")):
            item.add_marker(pytest.mark.timeout(900))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on an event loop of its own, of the server's kind."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    uvloop.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


_REMAINS = pytest.StashKey[Remains]()


@pytest.fixture(scope="session", autouse=True)
def nothing_remains(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The first fixture of a run: what is there before it is not the run's."""
    pytestconfig.stash[_REMAINS] = Remains(tmp_path_factory.getbasetemp())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """While servers of others and of ours still run."""
    remains = item.config.stash.get(_REMAINS, None)
    if remains is not None:  # as it is not before the first test that is not skipped
        remains.look()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """What is there when every fixture has ended, also those that end here because the run was interrupted, is left.

    It is reported as an error beside those of tests: an exception here would be all that pytest says of the run.
    """
    faults = []
    try:
        yield
    except Exception:
        faults.append(f"a fixture did not end as it should:\n{traceback.format_exc()}")
    remains = session.config.stash.get(_REMAINS, None)
    if remains is not None and (left := remains.left()):
        faults.append("the tests left behind:\n" + "\n".join(left))
    if not faults:
        return
    where = (str(Path(__file__).relative_to(session.config.rootpath)), None, "nothing_remains")
    report = pytest.TestReport(f"{where[0]}::{where[2]}", where, {}, "failed", "\n".join(faults), "teardown")
    session.config.hook.pytest_runtest_logreport(report=report)
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _dsec(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dsec", *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"dsec {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def _node(state_dir: Path, run_dir: Path) -> Iterator[dict[str, str]]:
    """A node that runs, as environment variables."""
    binary = aether_binary()
    assert binary is not None, "the aether binary is missing: `make setup` builds it"
    environment = {
        "DSEC_STATE_DIR": str(state_dir),
        "DSEC_RUN_DIR": str(run_dir),
        "DSEC_AETHER": str(binary),
        "DSEC_URL": "",
    }
    _dsec(environment, "serve", "--background")
    try:
        yield environment
    finally:
        _dsec(environment, "serve", "--stop")


@pytest.fixture(scope="session")
def image_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a node that has the image of the host's release. Only to be read.

    Built once a checkout, by whichever test run comes first, since it takes most of a minute.
    """
    IMAGE_STATE.mkdir(parents=True, exist_ok=True)
    with open(IMAGE_STATE.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not IMAGE_NAME.exists():
            with _node(IMAGE_STATE, tmp_path_factory.mktemp("builder") / "run") as environment:
                _dsec(environment, "image", "build", "--if-missing")
                name = _dsec(environment, "image", "ls", "--quiet")
            IMAGE_NAME.write_text(name)
    return IMAGE_STATE


@pytest.fixture(scope="session")
def node_environment(tmp_path_factory: pytest.TempPathFactory, image_state: Path) -> Iterator[dict[str, str]]:
    """A node of this test run's own, with the image of the host's release, as environment variables.

    Its state stands beside the shared one, for its layers are hard links to those.
    """
    state = Path(tempfile.mkdtemp(prefix=STATE_PREFIX, dir=BUILD))
    try:
        shutil.copytree(image_state / "layers", state / "layers", copy_function=os.link)
        with (
            contextlib.closing(sqlite3.connect(image_state / "catalogue.db")) as shared,
            contextlib.closing(sqlite3.connect(state / "catalogue.db")) as own,
        ):
            shared.backup(own)
        with _node(state, tmp_path_factory.mktemp("node") / "run") as environment:
            yield {**environment, "DSEC_IMAGE": IMAGE_NAME.read_text().strip()}
    finally:
        shutil.rmtree(state)
