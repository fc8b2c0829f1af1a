"""Rollouts, jobs and their leases.

A *rollout* is the scope of a command log and has one lease holder; a *job* is a set of rollouts and sandboxes for
verbs that act on all of them. A lease has an epoch: taking it raises the epoch, and calls that carry an earlier one
are refused (`LeaseLostError`), so that a trainer that was thought dead cannot go on beside its successor.

When nobody has renewed a lease for `lease_s`, what it holds is orphaned: paused `pause_after_s` later, stopped
`stop_after_s` later (None: never). Renewing or taking it again ends that; what was paused resumes by its next call.
The time counts from the edge's start where that is later: an edge that was down does not blame its clients.
"""

from __future__ import annotations

from typing import Literal

import msgspec

LeaseKind = Literal["rollout", "sandbox", "job"]


class LeaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """lease.take. A rollout that is not known begins; a sandbox must be there."""

    kind: LeaseKind
    name: str
    job: str | None = None
    """rollout only: the job that a new rollout belongs to. Another one than that of a known rollout is a conflict."""
    lease_s: float = 60.0
    pause_after_s: float | None = None
    stop_after_s: float | None = None
    labels: dict[str, str] = {}
    """rollout only, of a new one."""


class LeaseInfo(msgspec.Struct, frozen=True):
    kind: LeaseKind
    name: str
    epoch: int
    job: str | None
    steps: int
    """Of the scope's log so far (0 of a job)."""
    created_at: float
    expires_at: float
    held: bool = True
    """False: it was released, or has expired."""


class LeaseHolder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """lease.renew, and lease.release: the holder is done, nothing is orphaned."""

    kind: LeaseKind
    name: str
    epoch: int


class RolloutListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    job: str | None = None
    after: str | None = None


class RolloutList(msgspec.Struct, frozen=True):
    """One page, in the order of names."""

    rollouts: tuple[LeaseInfo, ...]
    next: str | None = None


class JobInfo(msgspec.Struct, frozen=True):
    job: str
    sandboxes: dict[str, int]
    """State → how many, final ones that are remembered included."""
    rollouts: int
    memory_bytes: int = 0
    """Of its sandboxes that live, as far as it is known."""


class JobListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    after: str | None = None


class JobList(msgspec.Struct, frozen=True):
    """One page, in the order of names."""

    jobs: tuple[JobInfo, ...]
    next: str | None = None


class JobRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """job.inspect, job.pause, job.resume, job.stop."""

    job: str


class JobProgress(msgspec.Struct, frozen=True):
    """EVENT of job.pause, job.resume and job.stop, at most a few a second."""

    done: int
    total: int


class JobAnswer(msgspec.Struct, frozen=True):
    """What was done to the sandboxes of a job. One that failed does not keep the others from it."""

    done: int
    failed: dict[str, str] = {}
    """Sandbox → why, of at most 100."""
    failures: int = 0
