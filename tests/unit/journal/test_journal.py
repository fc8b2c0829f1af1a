"""Group commit: order, failures, crashes, checkpoints."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from journals import INSERT, SCHEMA, committed, files_in, numbers, opened

from dsec.journal import Journal, Schema
from dsec.journal import checkpoint as checkpoint_module
from dsec.journal import journal as journal_module
from libdsec.protocol.errors import CapacityError, DSecError, InternalError, UnavailableError


async def test_its_files_are_its_owners_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        for _ in range(2):
            async with opened(tmp_path / "j") as journal:
                await committed(journal, INSERT, (None, b""))
                files = files_in(tmp_path)
                assert [(file.name, file.stat().st_mode & 0o777) for file in files] == [
                    ("j", 0o600),
                    ("j-ahead", 0o600),
                    ("j-shm", 0o600),
                    ("j-wal", 0o600),
                ]
                for file in files:
                    file.chmod(0o644)
                saved = [(file, file.read_bytes()) for file in files]
            for file, data in saved:  # as a crash leaves them
                file.write_bytes(data)
                file.chmod(0o644)
    finally:
        os.umask(old)


@pytest.mark.parametrize("durable", [False, True])
async def test_one_turn_is_one_commit_and_callbacks_come_after_it_in_order(tmp_path: Path, durable: bool) -> None:
    async with opened(tmp_path / "j", durable=durable) as journal:
        seen: list[tuple[int, int]] = []
        other = sqlite3.connect(tmp_path / "j")
        for n in range(1, 6):
            journal.submit(
                INSERT,
                (n, b""),
                lambda n=n: seen.append((n, other.execute("SELECT count(*) FROM things").fetchone()[0])),
            )
        assert seen == []
        await committed(journal, INSERT, (6, b""))
        assert seen == [(n, 6) for n in range(1, 6)]
        other.close()


@pytest.mark.parametrize("durable", [False, True])
async def test_a_query_sees_what_was_submitted_and_callbacks_come_later(tmp_path: Path, durable: bool) -> None:
    async with opened(tmp_path / "j", durable=durable) as journal:
        told: list[int] = []
        journal.submit(INSERT, (1, b""), lambda: told.append(1))
        await asyncio.sleep(0)  # durable: the batch may be in its thread
        journal.submit(INSERT, (2, b""), lambda: told.append(2))
        assert journal.query("SELECT count(*) FROM things") == [(2,)]
        assert 2 not in told
        await committed(journal, INSERT, (3, b""))
        assert told == [1, 2]


async def test_flush_now_calls_back_before_it_returns(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        told: list[int] = []
        journal.submit(INSERT, (1, b""), lambda: told.append(1))
        journal.flush_now()
        assert told == [1]


async def test_nothing_is_after_what_came_before_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        told: list[str] = []
        journal.submit(INSERT, (1, b""), lambda: told.append("row"))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        journal.submit_all((), lambda: done.set_result(None), done.set_exception)
        await done
        assert told == ["row"]
        assert numbers(tmp_path / "j") == [1]


async def test_a_callback_that_fails_stops_no_other(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        problems: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))

        def wrong() -> None:
            raise ValueError("wrong")

        journal.submit(INSERT, (1, b""), wrong)
        await committed(journal, INSERT, (2, b""))
        assert [str(problem) for problem in problems] == ["wrong"]


async def test_callbacks_may_submit(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        journal.submit(INSERT, (1, b""), lambda: journal.submit(INSERT, (2, b""), lambda: done.set_result(None)))
        await done
    assert numbers(tmp_path / "j") == [1, 2]


async def test_what_callbacks_submit_while_it_closes_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        journal.submit(INSERT, (1, b""), lambda: journal.submit(INSERT, (2, b"")))
        journal.before_close(lambda: journal.submit(INSERT, (3, b"")))
    assert numbers(tmp_path / "j") == [1, 2, 3]
    assert wal_size(tmp_path / "j") == -1
    with pytest.raises(UnavailableError, match="closed"):
        journal.submit(INSERT, (4, b""))
    with pytest.raises(UnavailableError, match="closed"):
        journal.query("SELECT 1")
    with pytest.raises(UnavailableError, match="closed"):
        await journal.read(lambda database: None)


async def test_units_are_whole(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        failures: list[DSecError] = []
        journal.submit_all([(INSERT, (1, b"")), (INSERT, (1, b""))], None, failures.append)
        await committed(journal, INSERT, (2, b""))
        assert [type(error) for error in failures] == [InternalError]
    assert numbers(tmp_path / "j") == [2]


async def test_a_mistake_of_one_costs_no_other(tmp_path: Path) -> None:
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
            )
        await committed(journal, INSERT, (3, b""))
        assert told == ["0 in", "1 internal", "2 internal", "3 internal", "4 internal", "5 in"]
    assert numbers(tmp_path / "j") == [1, 2, 3]


async def test_a_full_disk_is_an_answer_and_room_makes_it_work_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        await committed(journal, INSERT, (1, b""))
        ((pages,),) = journal.query("PRAGMA page_count")
        journal.query(f"PRAGMA max_page_count = {pages + 2}")
        failures: list[DSecError] = []
        journal.submit(INSERT, (2, b""), None, failures.append)
        journal.submit(INSERT, (3, bytes(100_000)), None, failures.append)
        with pytest.raises(CapacityError, match=str(tmp_path / "j")):
            await committed(journal, INSERT, (4, b""))
        assert [type(error) for error in failures] == [CapacityError, CapacityError]
        assert failures[0].details["path"] == str(tmp_path / "j")
        await committed(journal, INSERT, (5, b""))
        journal.query("PRAGMA max_page_count = 100000")
        await committed(journal, INSERT, (6, bytes(100_000)))
    assert numbers(tmp_path / "j") == [1, 5, 6]


async def test_reads_are_in_threads_and_cannot_write(tmp_path: Path) -> None:
    async with opened(tmp_path / "a ? b") as journal:
        await committed(journal, INSERT, (1, b""))
        assert await journal.read(lambda database: database.execute("SELECT n FROM things").fetchall()) == [(1,)]
        with pytest.raises(CapacityError, match="readonly"):
            await journal.read(lambda database: database.execute("DELETE FROM things"))
        assert await journal.read(lambda database: database.execute("SELECT count(*) FROM things").fetchone()) == (1,)


async def test_a_read_sees_one_moment(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        loop = asyncio.get_running_loop()
        await committed(journal, INSERT, (1, b""))
        first, second = asyncio.Event(), asyncio.Event()

        def work(database: sqlite3.Connection) -> tuple[int, int]:
            (before,) = database.execute("SELECT count(*) FROM things").fetchone()
            loop.call_soon_threadsafe(first.set)
            asyncio.run_coroutine_threadsafe(second.wait(), loop).result(10)
            (after,) = database.execute("SELECT count(*) FROM things").fetchone()
            return before, after

        reading = asyncio.ensure_future(journal.read(work))
        await first.wait()
        await committed(journal, INSERT, (2, b""))
        second.set()
        assert await reading == (1, 1)


async def test_checkpoints_run_beside_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "CHECKPOINT_AFTER", 20)
    monkeypatch.setattr(checkpoint_module, "LARGE_WAL", 30)
    async with opened(tmp_path / "j") as journal:
        for n in range(300):
            await committed(journal, INSERT, (n, bytes(5000)))
        # it never grew to what all commits have written: 3 frames each
        assert wal_size(tmp_path / "j") < 300 * 2 * 4096
    assert numbers(tmp_path / "j") == list(range(300))


async def test_every_acknowledged_row_is_in_a_copy_made_at_any_moment(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        for n in range(20):
            await committed(journal, INSERT, (n, bytes(3000)))
            copy = tmp_path / f"copy{n}"
            copy.mkdir()
            for name in ("j", "j-wal"):
                shutil.copy(tmp_path / name, copy / name)
            assert numbers(copy / "j") == list(range(n + 1))


def wal_size(path: Path) -> int:
    """-1: there is none."""
    wal = path.with_name(f"{path.name}-wal")
    return wal.stat().st_size if wal.exists() else -1


CHILD = """
import asyncio, sys
from dsec.journal import Journal, Schema

SCHEMA = Schema("things", (("CREATE TABLE things (n INTEGER PRIMARY KEY, data BLOB)",),))

async def main():
    journal = Journal(sys.argv[1], asyncio.get_running_loop(), (SCHEMA,))
    for n in range(1_000_000):
        done = asyncio.get_running_loop().create_future()
        journal.submit("INSERT INTO things VALUES (?, zeroblob(700))", (n,), lambda: done.set_result(None))
        await done
        print(n, flush=True)

asyncio.run(main())
"""


def killed_after(path: Path, least: int) -> int:
    """Let a child acknowledge rows, kill it in the middle. The last number that it was told is committed."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    told = -1
    with child:
        try:
            while told < least:
                told = int(child.stdout.readline())
        finally:
            child.send_signal(signal.SIGKILL)
        for line in child.stdout:
            if line.endswith("\n"):
                told = int(line)
    return told


async def test_what_a_killed_process_was_told_is_there(tmp_path: Path) -> None:
    told = killed_after(tmp_path / "j", 1500)  # beyond a checkpoint
    async with opened(tmp_path / "j") as journal:
        rows = [n for (n,) in journal.query("SELECT n FROM things ORDER BY n")]
    assert rows == list(range(len(rows)))
    assert len(rows) > told


async def test_schemas_migrate_and_newer_ones_are_refused(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    second = Schema("things", (*SCHEMA.steps, ("ALTER TABLE things ADD COLUMN more TEXT DEFAULT 'x'",)))
    async with opened(tmp_path / "j") as journal:
        await committed(journal, INSERT, (1, b""))
    other = Schema("others", (("CREATE TABLE others (n INTEGER)",),))
    journal = Journal(str(tmp_path / "j"), loop, (second, other))
    assert journal.query("SELECT n, more FROM things") == [(1, "x")]
    assert journal.query("SELECT count(*) FROM others") == [(0,)]
    await journal.close()
    with pytest.raises(UnavailableError, match="newer DSec wrote it"):
        Journal(str(tmp_path / "j"), loop, (SCHEMA,))
    database = sqlite3.connect(tmp_path / "j")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(UnavailableError, match="layout 99"):
        Journal(str(tmp_path / "j"), loop, (second,))


async def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    broken = Schema("things", (*SCHEMA.steps, ("CREATE TABLE more (n)", "CREATE TABLE more (n)")))
    with pytest.raises(InternalError, match="more"):
        Journal(str(tmp_path / "j"), asyncio.get_running_loop(), (broken,))
    async with opened(tmp_path / "j") as journal:
        assert journal.query("SELECT count(*) FROM things") == [(0,)]


@pytest.mark.parametrize("left", [None, b""])
async def test_a_wal_without_its_file_is_not_thrown_away(tmp_path: Path, left: bytes | None) -> None:
    (tmp_path / "j-wal").write_bytes(b"written lately")
    if left is not None:
        (tmp_path / "j").write_bytes(left)
    with pytest.raises(UnavailableError, match="put a copy back"):
        Journal(str(tmp_path / "j"), asyncio.get_running_loop())
    assert (tmp_path / "j-wal").read_bytes() == b"written lately"


@pytest.mark.parametrize("damage", [b"not a database at all, but a text" * 200, b"SQLite format 3\0" + bytes(8000)])
async def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "j").write_bytes(damage)
    with pytest.raises(UnavailableError, match="move it and its -wal, -shm and -ahead files away"):
        Journal(str(tmp_path / "j"), asyncio.get_running_loop(), (SCHEMA,))
    assert (tmp_path / "j").read_bytes() == damage


async def test_a_path_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="missing/j"):
        Journal(str(tmp_path / "missing" / "j"), asyncio.get_running_loop(), (SCHEMA,))


async def test_a_look_does_not_wait_for_a_batch_in_its_thread(tmp_path: Path) -> None:
    async with opened(tmp_path / "j", durable=True) as journal:
        await committed(journal, INSERT, (1, b""))
        with journal._mutex:  # as the thread holds it while the disk syncs
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            journal.submit(INSERT, (2, b""), lambda: done.set_result(None))
            await asyncio.sleep(0)
            assert journal._busy
            assert journal.look("SELECT count(*) FROM things") == [(1,)]
        await done
        assert journal.look("SELECT count(*) FROM things") == [(2,)]
