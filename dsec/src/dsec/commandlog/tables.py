"""The log's tables and statements."""

from __future__ import annotations

from typing import NamedTuple

from dsec.journal import Schema
from libdsec.protocol.steps import StepState

STATES: tuple[StepState, ...] = ("running", "result", "error", "unknown")
"""A step's state is stored as its place in here."""
RUNNING, UNKNOWN = STATES.index("running"), STATES.index("unknown")

SCHEMA = Schema(
    "commandlog",
    (
        (
            # name is NULL while a log is being deleted; floor: no step below it runs
            "CREATE TABLE log_scopes (id INTEGER PRIMARY KEY, name TEXT UNIQUE, kind TEXT NOT NULL, "
            "created_at REAL NOT NULL, ended_at REAL, bytes INTEGER NOT NULL, floor INTEGER NOT NULL) STRICT",
            # run: drawn anew each time that a step runs; tried: earlier runs whose outcome is unknown;
            # digest: empty while it runs for the first time; it is that of the request;
            # blob_at: where its output begins in the scope's file; cuts: lengths of the DATA of stream 2 that are
            # values of their own
            "CREATE TABLE log_steps (scope INTEGER NOT NULL, seq INTEGER NOT NULL, track TEXT NOT NULL, "
            "n INTEGER NOT NULL, run INTEGER NOT NULL, tried INTEGER NOT NULL, state INTEGER NOT NULL, "
            "method TEXT NOT NULL, sandbox TEXT NOT NULL, principal TEXT NOT NULL, began_at REAL NOT NULL, "
            "ended_at REAL, digest BLOB NOT NULL, opaque TEXT NOT NULL, request BLOB NOT NULL, answer BLOB, "
            "stdout_size INTEGER NOT NULL DEFAULT 0, stderr_size INTEGER NOT NULL DEFAULT 0, blob_at INTEGER, "
            "cuts BLOB, input_digest BLOB, stdout BLOB, stderr BLOB, PRIMARY KEY (scope, seq)) WITHOUT ROWID, STRICT",
            "CREATE UNIQUE INDEX log_steps_by_number ON log_steps (scope, track, n)",
            "CREATE TABLE log_epoch (one INTEGER PRIMARY KEY CHECK (one = 1), drawn INTEGER NOT NULL) STRICT",
            "INSERT INTO log_epoch VALUES (1, 0)",
        ),
    ),
)

INSERT_SCOPE = "INSERT INTO log_scopes VALUES (?, ?, ?, ?, NULL, 0, 1) ON CONFLICT (name) DO NOTHING"
COUNT_SCOPE = "UPDATE log_scopes SET bytes = ?, floor = ? WHERE id = ?"
LOWER_FLOOR = "UPDATE log_scopes SET floor = min(floor, ?) WHERE id = ?"
END_SCOPE = "UPDATE log_scopes SET ended_at = ?, bytes = ?, floor = ? WHERE id = ?"

TOUCH_SCOPE = "UPDATE log_scopes SET ended_at = ? WHERE id = ?"

INSERT_STEP = (
    "INSERT INTO log_steps (scope, seq, track, n, run, tried, state, method, sandbox, principal, began_at, digest, "
    "opaque, request) VALUES (?, ?, ?, ?, ?, 0, 0, ?, ?, ?, ?, ?, ?, ?)"
)
RERUN_STEP = (
    "UPDATE log_steps SET state = 0, run = ?, tried = ?, sandbox = ?, principal = ?, began_at = ?, ended_at = NULL, "
    "opaque = ?, method = ?, digest = ?, request = ? WHERE scope = ? AND seq = ?"
)
END_STEP = (
    "UPDATE log_steps SET state = ?, ended_at = ?, digest = ?, opaque = ?, answer = ?, stdout_size = ?, "
    "stderr_size = ?, blob_at = ?, cuts = ?, input_digest = ?, stdout = ?, stderr = ? WHERE scope = ? AND seq = ?"
)
DELETE_STEP = "DELETE FROM log_steps WHERE scope = ? AND seq = ?"
UNKNOWN_AGAIN = "UPDATE log_steps SET state = 3, tried = ? WHERE scope = ? AND seq = ?"

SELECT_SCOPE = "SELECT id, name, kind, created_at, ended_at, bytes, floor FROM log_scopes "
COUNT_STEPS = (
    "SELECT max(floor - 1, coalesce((SELECT max(seq) FROM log_steps WHERE scope = id), 0)) FROM log_scopes "
    "WHERE name = ?"
)
SELECT_RUNNING = (
    "SELECT seq, track, n, run, tried, method, sandbox, digest, began_at, opaque FROM log_steps "
    "WHERE scope = ? AND seq >= ? AND state = 0 ORDER BY seq"
)
SELECT_WITH_RUNNING = (
    "SELECT DISTINCT name FROM log_scopes JOIN log_steps ON scope = id AND seq >= floor WHERE state = 0 "
    "AND name IS NOT NULL ORDER BY name"
)
SELECT_RECORDED = (
    "SELECT seq, track, n, method, state, digest, tried, opaque, answer, stdout_size, stderr_size, blob_at, cuts, "
    "stdout, stderr FROM log_steps WHERE scope = ? AND track = ? AND n = ?"
)


class RecordedRow(NamedTuple):
    """Of SELECT_RECORDED."""

    seq: int
    track: str
    n: int
    method: str
    state: int
    digest: bytes
    tried: int
    opaque: str
    answer: bytes
    stdout_size: int
    stderr_size: int
    blob_at: int | None
    cuts: bytes | None
    stdout: bytes | None
    stderr: bytes | None


class ScopeRow(NamedTuple):
    id: int
    name: str
    kind: str
    created_at: float
    ended_at: float | None
    bytes: int
    floor: int
