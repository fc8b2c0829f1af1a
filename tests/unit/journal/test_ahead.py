"""What is written ahead: who sees it, crashes, damage, full disks."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from journals import INSERT, committed, files_in, numbers, opened

from dsec.journal import Journal
from dsec.journal import ahead as ahead_module
from dsec.journal import waiting as waiting_module
from libdsec.protocol.errors import CapacityError


async def test_what_is_written_ahead_is_told_before_its_commit_and_seen_by_every_reader(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        told: list[str] = []
        journal.submit(INSERT, (1, b""), lambda: told.append("1"), ahead=True)
        journal.flush_now()
        assert (told, numbers(tmp_path / "j"), journal.look("SELECT n FROM things")) == (["1"], [], [])
        mark = journal.mark
        assert journal.query("SELECT n FROM things") == [(1,)]
        journal.submit(INSERT, (2, b""), ahead=True)
        journal.flush_now()
        journal.commit_to(mark)
        assert journal.look("SELECT n FROM things") == [(1,)]
        journal.commit_to(journal.mark)
        assert journal.look("SELECT n FROM things") == [(1,), (2,)]
        journal.submit(INSERT, (3, b""), ahead=True)
        await committed(journal, INSERT, (4, b""))
        assert numbers(tmp_path / "j") == [1, 2, 3, 4]
        journal.submit(INSERT, (5, b""), ahead=True)
        journal.flush_now()
        assert await journal.read(lambda database: database.execute("SELECT max(n) FROM things").fetchone()) == (5,)
        journal.submit(INSERT, (6, b""), ahead=True)
    assert numbers(tmp_path / "j") == [1, 2, 3, 4, 5, 6]


def crashed(path: Path, name: str) -> Path:
    """The files as a crash would leave them now."""
    copy = path.parent / name
    copy.mkdir()
    for file in files_in(path.parent):
        if file.is_file() and not file.name.endswith("-shm"):
            shutil.copy(file, copy / file.name)
    return copy / path.name


async def test_what_was_written_ahead_is_there_after_a_crash_at_any_moment(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    path = tmp_path / "home" / "j"
    for life in range(3):
        async with opened(path) as journal:
            for n in range(life * 300, life * 300 + 300):
                journal.submit(INSERT, (n, bytes(n * 17 % 20_000)), ahead=n % 7 > 0)
                if n % 5:
                    journal.flush_now()
                if n % 50 == 49:
                    await asyncio.sleep(0)
                    copy = crashed(path, f"copy{n}")
                    for _ in range(2):
                        async with opened(copy) as after:
                            assert after.query("SELECT n FROM things ORDER BY n") == [(k,) for k in range(n + 1)]


@pytest.mark.parametrize("cut", [0, 63, 64, 70, 100, 3000, 9999])
async def test_a_record_that_is_not_whole_ends_what_is_read(tmp_path: Path, cut: int) -> None:
    (tmp_path / "home").mkdir()
    async with opened(tmp_path / "home" / "j") as journal:
        for n in range(10):
            journal.submit(INSERT, (n, bytes([n]) * 1000), ahead=True)
            journal.flush_now()
        copy = crashed(tmp_path / "home" / "j", "copy")
    ahead = copy.with_name("j-ahead")
    data = bytearray(ahead.read_bytes())
    data[cut:] = bytes(len(data) - cut)
    ahead.write_bytes(data)
    async with opened(copy) as journal:
        left = [n for (n,) in journal.query("SELECT n FROM things ORDER BY n")]
    assert left == list(range(len(left)))
    assert len(left) == max(0, cut - 64) // 1047


async def test_another_databases_file_ahead_is_ignored(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with opened(tmp_path / "one" / "j") as journal:
        journal.submit(INSERT, (1, b""), ahead=True)
        journal.flush_now()
        shutil.copy(tmp_path / "one" / "j-ahead", tmp_path / "two" / "j-ahead")
    async with opened(tmp_path / "two" / "j") as journal:
        assert journal.query("SELECT n FROM things") == []


async def test_what_comes_behind_something_lost_is_ignored(tmp_path: Path) -> None:
    """As after a loss of power: the file is newer than the database."""
    (tmp_path / "home").mkdir()
    path = tmp_path / "home" / "j"
    async with opened(path) as journal:
        await committed(journal, INSERT, (1, b""))
        old = crashed(path, "old")
        journal.submit(INSERT, (2, b""), ahead=True)
        journal.query("SELECT 1")
        journal.submit(INSERT, (3, b""), ahead=True)
        journal.flush_now()
        shutil.copy(tmp_path / "home" / "j-ahead", old.with_name("j-ahead"))
    async with opened(old) as journal:
        assert journal.query("SELECT n FROM things") == [(1,)]


async def test_a_mistake_written_ahead_costs_no_other(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        told: list[str] = []
        for number, parameters in enumerate(
            [(1, b""), (1, b""), (object(), b""), (2**70, b""), ("\ud800", b""), (2, b"")]
        ):
            journal.submit(
                INSERT,
                parameters,
                lambda number=number: told.append(f"{number} in"),
                lambda error, number=number: told.append(f"{number} {error.code}"),
                ahead=True,
            )
        await committed(journal, INSERT, (3, b""))
        assert told == ["0 in", "1 in", "2 internal", "3 internal", "4 internal", "5 in"]
    assert numbers(tmp_path / "j") == [1, 2, 3]


async def test_more_than_the_file_holds_is_committed_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        for n in range(5):
            journal.submit(INSERT, (n, bytes(400_000)), ahead=True)
            journal.flush_now()
        journal.submit(INSERT, (5, bytes(4_000_000)), ahead=True)
        journal.flush_now()
        assert numbers(tmp_path / "j") == list(range(6))


async def test_on_a_full_disk_what_was_told_waits_and_what_comes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_module, "STUCK_S", 0.01)
    async with opened(tmp_path / "j") as journal:
        await committed(journal, INSERT, (1, b""))
        ((pages,),) = journal.query("PRAGMA page_count")
        journal.query(f"PRAGMA max_page_count = {pages}")
        await committed_ahead(journal, (2, bytes(100_000)))
        with pytest.raises(CapacityError, match="make room"):
            journal.query("SELECT 1")
        with pytest.raises(CapacityError, match="make room"):
            await committed_ahead(journal, (3, b""))
        assert (tmp_path / "j-ahead").stat().st_size < ahead_module.RESERVE  # it was given back
        journal.look("PRAGMA max_page_count = 100000")
        await committed_ahead(journal, (4, b""))
        assert journal.query("SELECT n FROM things") == [(1,), (2,), (4,)]
        assert (tmp_path / "j-ahead").stat().st_size > ahead_module.RESERVE


async def committed_ahead(journal: Journal, row: tuple[int, bytes]) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    journal.submit(INSERT, row, lambda: done.set_result(None), done.set_exception, ahead=True)
    await done


async def test_without_room_for_the_file_ahead_each_unit_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    async with opened(tmp_path / "j") as journal:
        await committed_ahead(journal, (1, b""))
        assert numbers(tmp_path / "j") == [1]


async def test_what_an_earlier_opening_left_behind_a_record_is_no_part_of_it(tmp_path: Path) -> None:
    """An older copy of the database was put back, the file ahead was not, and records have the same length."""
    (tmp_path / "home").mkdir()
    path = tmp_path / "home" / "j"
    async with opened(path) as journal:
        old = crashed(path, "old")
        for n in range(5):
            journal.submit(INSERT, (n, b"first"), ahead=True)
        journal.flush_now()
        shutil.copy(tmp_path / "home" / "j-ahead", old.with_name("j-ahead"))
        os.truncate(old.with_name("j-ahead"), 64)
        async with opened(old) as other:
            other.submit(INSERT, (0, b"other"), ahead=True)
            other.flush_now()
            mixed = bytearray((tmp_path / "home" / "j-ahead").read_bytes())
            mine = old.with_name("j-ahead").read_bytes()[:150]
            mixed[: mine.index(b"other") + 5] = mine[: mine.index(b"other") + 5]
            copy = crashed(old, "mixed")
        copy.with_name("j-ahead").write_bytes(mixed)
    async with opened(copy) as journal:
        assert journal.query("SELECT n, data FROM things") == [(0, b"other")]
