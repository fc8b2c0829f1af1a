"""Tars from a sandbox are hostile: whatever they say, nothing outside the directory is touched."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libdsec._archive import Transfer, pack, unpack
from libdsec.errors import FileOperationError, QuotaExceededError, WireError

LIMIT = 10 * 1024 * 1024


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"", mode: int = 0o644):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, len(data), mode
    return info, data


def tar_of(*members) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def unpacked(data: bytes, directory: Path, limit: int = LIMIT) -> Transfer:
    read_end, write_end = os.pipe()

    def feed() -> None:
        with open(write_end, "wb") as sink:
            try:
                sink.write(data)
            except BrokenPipeError:
                pass

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        return unpack(read_end, str(directory), limit)
    finally:
        thread.join()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text("untouched")
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def test_a_plain_tree(target: Path):
    data = tar_of(
        member("./", tarfile.DIRTYPE, mode=0o755),
        member("./sub", tarfile.DIRTYPE, mode=0o500),
        member("./sub/file", data=b"hello", mode=0o6777),
        member("./sub/link", tarfile.SYMTYPE, "../top"),
        member("./top", data=b"top"),
        member("./hard", tarfile.LNKTYPE, "./top"),
        member("missing/parent/file", data=b"x"),
    )
    transfer = unpacked(data, target)
    assert (transfer.bytes, transfer.entries, transfer.skipped) == (9, 7, 0)
    assert (target / "sub/file").read_text() == "hello"
    assert stat.S_IMODE((target / "sub/file").stat().st_mode) == 0o755  # no set-id bits, not for everyone to write
    assert stat.S_IMODE((target / "sub").stat().st_mode) == 0o700
    assert os.readlink(target / "sub/link") == "../top"
    assert (target / "hard").samefile(target / "top")


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside", ".."])
def test_a_name_that_leads_out_ends_it(target: Path, name: str):
    with pytest.raises(WireError, match="leads out"):
        unpacked(tar_of(member(name, data=b"evil")), target)
    assert (target.parent / "outside").read_text() == "untouched"


def test_a_hard_link_that_leads_out_ends_it(target: Path):
    with pytest.raises(WireError, match="leads out"):
        unpacked(tar_of(member("x", tarfile.LNKTYPE, "../outside")), target)


@pytest.mark.parametrize("link", ["..", "../..", "/", "/etc/passwd", "a/../..", "q/.."])
def test_links_that_lead_out_are_left_out_and_counted(target: Path, link: str):
    transfer = unpacked(tar_of(member("x", tarfile.SYMTYPE, link), member("y", data=b"1")), target)
    assert (transfer.skipped, transfer.skipped_names) == (1, ("x",))
    assert os.listdir(target) == ["y"]


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_are_left_out(target: Path, kind: bytes):
    assert unpacked(tar_of(member("dev", kind)), target).skipped == 1
    assert os.listdir(target) == []


def test_nothing_is_written_through_a_link_that_is_there_already(target: Path):
    (target / "d").symlink_to(target.parent)
    with pytest.raises(FileOperationError):
        unpacked(tar_of(member("d/outside", data=b"evil")), target)
    (target / "f").symlink_to(target.parent / "outside")
    unpacked(tar_of(member("f", data=b"new")), target)
    assert (target.parent / "outside").read_text() == "untouched"
    assert (target / "f").read_text() == "new"
    assert not (target / "f").is_symlink()


def test_a_link_made_by_an_earlier_member_is_not_followed(target: Path):
    data = tar_of(
        member("a/b", tarfile.DIRTYPE, mode=0o755), member("l", tarfile.SYMTYPE, "a/b"), member("l/f", data=b"1")
    )
    with pytest.raises(FileOperationError):
        unpacked(data, target)
    assert not (target / "a/b/f").exists()


def test_more_than_the_limit_is_refused_before_it_is_written(target: Path):
    with pytest.raises(QuotaExceededError, match="limit of 10 bytes"):
        unpacked(tar_of(member("a", data=b"12345678"), member("b", data=b"123")), target, limit=10)
    assert os.listdir(target) == ["a"]


def test_a_header_that_would_fill_the_memory_is_refused(target: Path):
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 32
    with pytest.raises(WireError, match="header"):
        unpacked(info.tobuf(tarfile.USTAR_FORMAT) + bytes(4096), target)


def test_nothing_but_zeros_takes_no_room(target: Path):
    data = b"a" + bytes(4 << 20) + b"b" + bytes(4 << 20)
    unpacked(tar_of(member("sparse", data=data), member("empty")), target)
    assert (target / "sparse").read_bytes() == data
    assert (target / "sparse").stat().st_blocks * 512 < 2 << 20
    assert (target / "empty").read_bytes() == b""


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_chain_of_headers_ends_in_an_error(target: Path, kind: bytes):
    info = tarfile.TarInfo("x")
    info.type = kind
    with pytest.raises(WireError):
        unpacked(info.tobuf(tarfile.GNU_FORMAT) * 5000, target)


def _is_loop(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_garbage_never_escapes(data, tmp_path_factory: pytest.TempPathFactory):
    name = st.lists(st.sampled_from(["..", ".", "", "a", "b", "l"]), max_size=4).map("/".join)
    kinds = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
    base = tmp_path_factory.mktemp("garbage")
    (base / "in").mkdir()
    members = [
        member(data.draw(name) or "a", kind := data.draw(kinds), data.draw(name), b"evil" * (kind == tarfile.REGTYPE))
        for _ in range(data.draw(st.integers(1, 6)))
    ]
    raw = bytearray(tar_of(*members))
    for _ in range(data.draw(st.integers(0, 2))):
        raw[data.draw(st.integers(0, min(len(raw), 1536) - 1))] = data.draw(st.integers(0, 255))
    try:
        unpacked(bytes(raw), base / "in")
    except (WireError, FileOperationError, QuotaExceededError):
        pass
    assert os.listdir(base) == ["in"]
    for directory, names, files in os.walk(base / "in"):
        for entry in names + files:
            path = os.path.join(directory, entry)
            if _is_loop(path):
                continue  # leads nowhere, and realpath answers anything
            real = os.path.realpath(path)
            assert (real + "/").startswith(f"{base}/in/"), entry


def test_a_directory_made_anew_is_the_same_bytes_where_its_times_are(tmp_path: Path):
    """What `Files.upload` says of programs that run again."""

    def packed(name: str, order: list[str], time: int) -> bytes:
        directory = tmp_path / name
        (directory / "sub").mkdir(parents=True)
        for path in order:
            (directory / path).write_text(path)
        for path in (*order, "sub", "."):
            os.utime(directory / path, (time, time))
        with open(tmp_path / f"{name}.tar", "wb") as tar:
            pack(str(directory), os.dup(tar.fileno()))
        return (tmp_path / f"{name}.tar").read_bytes()

    first = packed("first", ["a", "b", "sub/c"], 5)
    assert packed("second", ["sub/c", "b", "a"], 5) == first
    assert packed("third", ["a", "b", "sub/c"], 6) != first


def test_packed_and_unpacked_is_the_same(tmp_path: Path):
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep/er").mkdir(parents=True)
    target.mkdir()
    (source / "deep/er/ü").write_bytes(bytes(100_000))
    (source / "deep/link").symlink_to("er/ü")
    os.link(source / "deep/er/ü", source / "hard")
    read_end, write_end = os.pipe()
    packed: list[Transfer] = []
    thread = threading.Thread(target=lambda: packed.append(pack(str(source), write_end)))
    thread.start()
    transfer = unpack(read_end, str(target), LIMIT)
    thread.join()
    assert (transfer.entries, transfer.bytes) == (packed[0].entries, packed[0].bytes)
    assert (target / "deep/er/ü").read_bytes() == bytes(100_000)
    assert (target / "hard").samefile(target / "deep/er/ü")
    assert os.readlink(target / "deep/link") == "er/ü"
