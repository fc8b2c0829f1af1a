"""Swap of this machine: made, kept, taken away; what was there before is there afterwards."""

import json
import os
import secrets
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.linux.swap import Setup, areas_in_use
from dsec.linux.swap.areas import header, identity_of
from dsec.linux.swap.zram import compression
from dsec.linux.syscalls import swapoff
from libdsec.protocol.errors import (
    AlreadyExistsError,
    CapacityError,
    IntegrityError,
    InvalidArgumentError,
    UnsupportedOperationError,
)

pytestmark = pytest.mark.needs("root")
MIB = 1 << 20
needs_zram = pytest.mark.skipif(not Path("/sys/class/zram-control").exists(), reason="needs zram")


def devices() -> dict[str, str]:
    return {path.name: (path / "disksize").read_text() for path in Path("/sys/block").glob("zram*")}


@pytest.fixture
def setup(disk: Path) -> Iterator[Setup]:
    before, had = areas_in_use(), devices()
    setup = Setup(str(disk / "state"))
    yield setup
    setup.undo()
    assert {area.path for area in areas_in_use()} == {area.path for area in before}
    now = devices()
    assert {name: now.get(name) for name in had} == had
    assert not (disk / "state" / "swap.json").exists()


@needs_zram
def test_zram_is_made_once_and_taken_away(setup: Setup) -> None:
    made = setup.make_zram(64 * MIB)
    assert (made.kind, made.bytes, made.state) == ("zram", 64 * MIB, "made")
    area = next(area for area in areas_in_use() if area.path == made.path)
    assert area.zram
    assert 63 * MIB < area.bytes <= 64 * MIB
    assert area.priority == 100
    packed = compression(made.path)
    assert packed is not None
    assert packed.algorithm in ("zstd", "lz4", "lzo-rle")
    assert setup.make_zram(64 * MIB).state == setup.make_zram().state == "kept"
    assert setup.ours() == [made.path]
    with pytest.raises(AlreadyExistsError, match="--undo"):
        setup.make_zram(32 * MIB)
    assert [(gone.path, gone.state) for gone in setup.undo()] == [(made.path, "removed")]
    assert setup.undo() == []
    assert made.path not in {area.path for area in areas_in_use()}


def test_a_swap_file_is_whole_private_and_taken_away(setup: Setup, disk: Path) -> None:
    path = disk / "swap"
    made = setup.make_file(str(path), 64 * MIB)
    assert (made.kind, made.state) == ("file", "made")
    status = path.stat()
    assert (status.st_mode & 0o777, status.st_size) == (0o600, 64 * MIB)
    assert status.st_blocks * 512 >= 64 * MIB
    assert next(area.priority for area in areas_in_use() if area.path == str(path)) == 10
    assert setup.make_file(str(path), 64 * MIB).state == "kept"
    with pytest.raises(AlreadyExistsError, match="--undo"):
        setup.make_file(str(disk / "elsewhere"), 64 * MIB)
    assert [gone.path for gone in setup.undo()] == [str(path)]
    assert [entry.name for entry in disk.iterdir()] == ["state"]


@needs_zram
def test_both_together_fill_memory_first(setup: Setup, disk: Path) -> None:
    compressed, file = setup.make_zram(64 * MIB), setup.make_file(str(disk / "swap"), 64 * MIB)
    order = [area.path for area in areas_in_use()]
    assert order.index(compressed.path) < order.index(file.path)
    assert len(setup.undo()) == 2


def test_a_file_that_was_not_swapped_on_after_a_reboot_is_used_again(setup: Setup, disk: Path) -> None:
    path = str(disk / "swap")
    setup.make_file(path, 64 * MIB)
    swapoff(path)
    identity = identity_of(path)
    assert Setup(str(disk / "state")).make_file(path, 64 * MIB).state == "made"
    assert identity_of(path) == identity


@pytest.mark.parametrize("size", [0, -1, 4096, 1 << 60])
def test_sizes_that_make_no_sense_are_refused(setup: Setup, disk: Path, size: int) -> None:
    with pytest.raises(InvalidArgumentError, match="it must be from 1 to"):
        setup.make_zram(size)
    with pytest.raises(InvalidArgumentError, match="it must be from 1 to"):
        setup.make_file(str(disk / "swap"), size)
    assert setup.ours() == []


def test_places_that_cannot_be_a_swap_file_are_refused(setup: Setup, disk: Path) -> None:
    (disk / "taken").write_text("mine")
    with pytest.raises(AlreadyExistsError, match="something is there"):
        setup.make_file(str(disk / "taken"), 64 * MIB)
    assert (disk / "taken").read_text() == "mine"
    for path in ("relative", str(disk / "nowhere" / "swap")):
        with pytest.raises(InvalidArgumentError, match="absolute path in a directory"):
            setup.make_file(path, 64 * MIB)
    with pytest.raises(CapacityError, match="MiB are free there"):
        setup.make_file(str(disk / "swap"), 1 << 43)
    assert setup.ours() == []


def test_a_file_system_in_memory_is_refused_and_nothing_stays(setup: Setup) -> None:
    path = f"/dev/shm/dsec-test-{os.getpid()}-{secrets.token_hex(4)}"
    if " /dev/shm tmpfs " not in Path("/proc/self/mounts").read_text():
        pytest.skip("no tmpfs at /dev/shm")
    with pytest.raises(UnsupportedOperationError, match="cannot hold a swap file"):
        setup.make_file(path, 4 * MIB)
    assert not list(Path("/dev/shm").glob(f"{os.path.basename(path)}*"))
    assert setup.ours() == []


def test_what_a_crash_left_half_made_is_taken_away_and_strangers_are_not(setup: Setup, disk: Path) -> None:
    state = disk / "state"
    state.mkdir()
    ours, theirs = uuid.uuid4(), uuid.uuid4()
    (disk / f"swap.{ours.hex}").write_bytes(b"unfinished")
    (disk / "swap").write_bytes(header(MIB, theirs))
    entry = {"kind": "file", "path": str(disk / "swap"), "bytes": MIB, "identity": str(ours), "boot": "earlier"}
    (state / "swap.json").write_text(json.dumps({"schema": 1, "areas": [entry]}))
    assert [gone.state for gone in setup.undo()] == ["removed"]
    assert identity_of(str(disk / "swap")) == theirs
    assert not (disk / f"swap.{ours.hex}").exists()


@needs_zram
def test_a_device_of_an_earlier_boot_or_of_somebody_else_is_left_alone(setup: Setup, disk: Path) -> None:
    made = setup.make_zram(64 * MIB)
    record = json.loads((disk / "state" / "swap.json").read_text())
    for change in ({"boot": "earlier"}, {"identity": str(uuid.uuid4())}):
        other = disk / "other"
        other.mkdir(exist_ok=True)
        (other / "swap.json").write_text(json.dumps({"schema": 1, "areas": [{**record["areas"][0], **change}]}))
        Setup(str(other)).undo()
        assert made.path in {area.path for area in areas_in_use()}


def test_a_record_that_is_none_is_told(setup: Setup, disk: Path) -> None:
    (disk / "state").mkdir()
    (disk / "state" / "swap.json").write_text("{")
    with pytest.raises(IntegrityError, match="cannot read"):
        setup.undo()
    (disk / "state" / "swap.json").unlink()
