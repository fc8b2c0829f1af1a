"""Leases of rollouts, sandboxes and jobs: who holds them, and what is orphaned when nobody does.

State is a table; `due` says what to do and does nothing itself. Epochs are drawn from one counter of the node: a lease
that was forgotten and is taken again has a higher one than whoever had it before. Times are of the monotonic clock: an
edge that was down does not count its own absence against anybody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Literal, NamedTuple

import msgspec

from dsec.journal import Journal, Schema
from libdsec.protocol.errors import ConflictError, DSecError, InvalidArgumentError, LeaseLostError, NotFoundError
from libdsec.protocol.jobs import LeaseHolder, LeaseInfo, LeaseKind, LeaseRequest

from .clock import Clock
from .names import Names

SCHEMA = Schema(
    "leases",
    (
        (
            """CREATE TABLE leases (
            kind TEXT NOT NULL, name TEXT NOT NULL, record BLOB NOT NULL, PRIMARY KEY (kind, name)
        ) WITHOUT ROWID""",
        ),
        # an epoch at least as high as that of every lease that was forgotten
        ("CREATE TABLE lease_epochs (one INTEGER PRIMARY KEY CHECK (one = 1), highest INTEGER NOT NULL)",),
    ),
)

MIN_LEASE_S, MAX_LEASE_S = 1.0, 7 * 86_400.0
MAX_LEASES = 100_000
"""Kept at once; of more, those that nobody holds and that are of nothing that lives are forgotten."""

Key = tuple[LeaseKind, str]
Then = Callable[[LeaseInfo], None]
Failed = Callable[[DSecError], None]


class Lease(msgspec.Struct):
    """One lease as it is written down."""

    kind: LeaseKind
    name: str
    created_at: float
    job: str | None = None
    labels: dict[str, str] = {}
    epoch: int = 0
    lease_s: float = 60.0
    pause_after_s: float | None = None
    stop_after_s: float | None = None
    held: bool = False
    done: Literal["", "paused", "stopped"] = ""
    """What was done to the orphans."""


class Orphaned(NamedTuple):
    lease: Lease
    action: Literal["pause", "stop"]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Lease).decode
_SAVE = "INSERT OR REPLACE INTO leases (kind, name, record) VALUES (?, ?, ?)"
_FORGET = "DELETE FROM leases WHERE kind = ? AND name = ?"
_SAVE_HIGHEST = "INSERT OR REPLACE INTO lease_epochs VALUES (1, ?)"


class Leases:
    def __init__(self, journal: Journal, clock: Clock, living: Callable[[], Set[Key]] = frozenset) -> None:
        """`living`: of what there are sandboxes that live."""
        self._journal = journal
        self._clock = clock
        self._living = living
        self._leases: dict[Key, Lease] = {}
        self._renewed: dict[Key, float] = {}
        self._highest = 0
        """Of the epochs that were given."""
        self._rollouts, self._jobs = Names(), Names()
        self._of_job: dict[str, Names] = {}
        """Job → its rollouts."""

    def load(self) -> None:
        """What an earlier edge wrote down; each counts as renewed now."""
        now = self._clock.monotonic()
        for (highest,) in self._journal.query("SELECT highest FROM lease_epochs"):
            self._highest = highest
        for (record,) in self._journal.query("SELECT record FROM leases"):
            lease = _decode(record)
            self._highest = max(self._highest, lease.epoch)
            self._leases[lease.kind, lease.name] = lease
            self._renewed[lease.kind, lease.name] = now
        self._index(self._leases.values())

    def take(self, asked: LeaseRequest, then: Then | None = None, failed: Failed | None = None) -> Lease:
        """The lease under a new epoch; whoever held it is fenced off. `then` is called with it when it is written
        down, or `failed`: then whoever held it has it still.

        :raises InvalidArgumentError: a time that cannot be.
        :raises ConflictError: a known rollout of another job.
        """
        _check(asked)
        key = (asked.kind, asked.name)
        lease = self._leases.get(key)
        if lease is None:
            if len(self._leases) >= MAX_LEASES:
                self._forget_some()
            lease = Lease(asked.kind, asked.name, self._clock.now(), job=asked.job, labels=asked.labels)
            self._leases[key] = lease
            self._index([lease])
        elif asked.job is not None and asked.job != lease.job:
            raise ConflictError(
                f"cannot take {asked.kind} {asked.name!r} for job {asked.job!r}: it belongs to {lease.job!r}",
                job=lease.job,
            )
        before = msgspec.structs.replace(lease)
        self._highest += 1
        lease.epoch = epoch = self._highest
        lease.lease_s = asked.lease_s
        lease.pause_after_s, lease.stop_after_s = asked.pause_after_s, asked.stop_after_s
        lease.held = True
        self._renew(lease)

        def refused(error: DSecError) -> None:
            if lease.epoch == epoch:  # nobody has taken it since: whoever had it goes on
                for field in ("epoch", "lease_s", "pause_after_s", "stop_after_s", "held"):
                    setattr(lease, field, getattr(before, field))
            if failed is not None:
                failed(error)

        self._save(lease, then, refused)
        return lease

    def renew(self, asked: LeaseHolder, then: Then | None = None, failed: Failed | None = None) -> Lease:
        """As `take`; where there is nothing to write, `then` is called at once.

        :raises LeaseLostError: somebody took it since.
        :raises NotFoundError: there is no such lease."""
        lease = self._own(asked)
        changed = not lease.held or lease.done != ""
        lease.held = True
        self._renew(lease)
        if changed:
            self._save(lease, then, failed)
        elif then is not None:
            then(self.info(lease))
        return lease

    def release(self, asked: LeaseHolder, then: Then | None = None, failed: Failed | None = None) -> None:
        """The holder is done: nothing is orphaned. `then` and `failed` as for `take`.

        :raises LeaseLostError: somebody took it since.
        :raises NotFoundError: there is no such lease."""
        lease = self._own(asked)
        lease.held = False
        self._save(lease, then, failed)

    def fence(self, kind: LeaseKind, name: str, epoch: int) -> None:
        """:raises LeaseLostError: the caller's epoch is not the current one."""
        lease = self._leases.get((kind, name))
        # a higher one is of a lease that was forgotten since
        if lease is not None and epoch != lease.epoch:
            raise LeaseLostError(
                f"cannot go on with {kind} {name!r}: somebody else has taken its lease (epoch {lease.epoch}, "
                f"yours is {epoch}); attach again to take it back",
                kind=kind,
                name=name,
                epoch=epoch,
                held=lease.epoch,
            )

    def holds(self, kind: LeaseKind, name: str) -> bool:
        """Whether somebody has it now."""
        lease = self._leases.get((kind, name))
        if lease is None or not lease.held:
            return False
        return self._clock.monotonic() - self._renewed[kind, name] < lease.lease_s

    def job_of(self, rollout: str) -> str | None:
        lease = self._leases.get(("rollout", rollout))
        return None if lease is None else lease.job

    def rollouts(self, after: str | None = None, job: str | None = None) -> Iterator[Lease]:
        """Those of a job or of all, in the order of names, from behind a name on."""
        names = self._rollouts if job is None else self._of_job.get(job, Names())
        return (self._leases["rollout", name] for name in names.after(after))

    def jobs(self, after: str | None = None) -> Iterator[str]:
        """Every job of a rollout, in order."""
        return self._jobs.after(after)

    def count(self, job: str) -> int:
        """How many rollouts it has."""
        return len(self._of_job.get(job, ()))

    def due(self) -> list[Orphaned]:
        """What has been orphaned long enough, each named once. It is written down by `acted`: an edge that dies before
        has a successor which begins again."""
        now = self._clock.monotonic()
        found: list[Orphaned] = []
        for key, lease in self._leases.items():
            if not lease.held or lease.done == "stopped":
                continue
            orphaned = now - self._renewed[key] - lease.lease_s
            if lease.stop_after_s is not None and orphaned >= lease.stop_after_s:
                lease.done = "stopped"
                found.append(Orphaned(lease, "stop"))
            elif lease.pause_after_s is not None and orphaned >= lease.pause_after_s and not lease.done:
                lease.done = "paused"
                found.append(Orphaned(lease, "pause"))
        return found

    def acted(self, lease: Lease) -> None:
        """What `due` asked for was done to all of its orphans."""
        if self._leases.get((lease.kind, lease.name)) is lease:
            self._save(lease)

    def forgive(self, seconds: float) -> None:
        """So much time counts against no holder: nobody could be heard."""
        for key in self._renewed:
            self._renewed[key] += seconds

    def info(self, lease: Lease, steps: int = 0) -> LeaseInfo:
        left = lease.lease_s - (self._clock.monotonic() - self._renewed[lease.kind, lease.name])
        return LeaseInfo(
            kind=lease.kind,
            name=lease.name,
            epoch=lease.epoch,
            job=lease.job,
            steps=steps,
            created_at=lease.created_at,
            expires_at=self._clock.now() + left,
            held=lease.held and left > 0,
        )

    def _own(self, asked: LeaseHolder) -> Lease:
        self.fence(asked.kind, asked.name, asked.epoch)
        lease = self._leases.get((asked.kind, asked.name))
        if lease is None:
            raise NotFoundError(f"cannot renew {asked.kind} {asked.name[:140]!r}: nobody has taken such a lease")
        return lease

    def _index(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            if lease.kind != "rollout":
                continue
            self._rollouts.add(lease.name)
            if lease.job is None:
                continue
            if lease.job not in self._of_job:
                self._of_job[lease.job] = Names()
                self._jobs.add(lease.job)
            self._of_job[lease.job].add(lease.name)

    def _renew(self, lease: Lease) -> None:
        self._renewed[lease.kind, lease.name] = self._clock.monotonic()
        lease.done = ""

    def _save(self, lease: Lease, then: Then | None = None, failed: Failed | None = None) -> None:
        row = (lease.kind, lease.name, _encode(lease))
        if then is None:
            self._journal.submit(_SAVE, row, None, failed)
            return
        info, told = self.info(lease), then
        self._journal.submit(_SAVE, row, lambda: told(info), failed)

    def _forget_some(self) -> None:
        living = self._living()
        over = [key for key in self._leases if key not in living and not self.holds(*key)]
        over = sorted(over, key=self._renewed.__getitem__)[: max(1, MAX_LEASES // 10)]
        if not over:
            raise ConflictError(
                f"cannot take another lease: {MAX_LEASES} are held, or of sandboxes that live", limit=MAX_LEASES
            )
        for key in over:
            del self._leases[key], self._renewed[key]
        self._rollouts, self._jobs, self._of_job = Names(), Names(), {}
        self._index(self._leases.values())
        self._journal.submit_all([(_SAVE_HIGHEST, (self._highest,)), *((_FORGET, key) for key in over)])


def _check(asked: LeaseRequest) -> None:
    if not MIN_LEASE_S <= asked.lease_s <= MAX_LEASE_S:
        raise InvalidArgumentError(
            f"cannot use a lease of {asked.lease_s} s: it has {MIN_LEASE_S:g} to {MAX_LEASE_S:g}", field="lease_s"
        )
    for field, seconds in (("pause_after_s", asked.pause_after_s), ("stop_after_s", asked.stop_after_s)):
        if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
            raise InvalidArgumentError(f"cannot use {field} {seconds}: it must not be negative", field=field)
