"""job.list, job.inspect, job.pause, job.resume, job.stop."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge import bulk
from dsec.edge.names import Names
from dsec.edge.sandbox import Sandbox
from dsec.edge.tasks import ANSWERED, answer_by_task
from libdsec.protocol.errors import NotFoundError
from libdsec.protocol.jobs import JobAnswer, JobInfo, JobListRequest, JobProgress, JobRequest

from .arguments import encode, read
from .pages import fill_page

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def list_jobs(edge: Edge, request: Request, caller: Caller) -> Answerer:
    after = read(request, JobListRequest).after
    sandboxes = _by_job(edge)
    names = heapq.merge(Names(sandboxes).after(after), edge.leases.jobs(after))
    entries, following = fill_page((name, _info(edge, name, sandboxes.get(name, ()))) for name, _ in groupby(names))
    caller.result(encode({"jobs": entries, "next": following}))
    return ANSWERED


def inspect(edge: Edge, request: Request, caller: Caller) -> Answerer:
    job = _known(edge, read(request, JobRequest).job)
    caller.result(encode(_info(edge, job, _by_job(edge).get(job, ()))))
    return ANSWERED


def act(edge: Edge, request: Request, caller: Caller) -> Answerer:
    """One failure does not keep the others from it."""
    edge.require_taking(request.method)
    job = _known(edge, read(request, JobRequest).job)
    return answer_by_task(edge, _act(edge, job, request.method, caller), caller, request.method)


async def _act(edge: Edge, job: str, method: str, caller: Caller) -> JobAnswer:
    def progress(done: int, total: int) -> None:
        caller.event(encode(JobProgress(done, total)))

    return await bulk.act(edge, edge.registry.of_job(job), bulk.ACTIONS[method.removeprefix("job.")], "job", progress)


def _by_job(edge: Edge) -> dict[str, list[Sandbox]]:
    found: dict[str, list[Sandbox]] = {}
    for sandbox in edge.registry.everything():
        if sandbox.job is not None:
            found.setdefault(sandbox.job, []).append(sandbox)
    return found


def _known(edge: Edge, job: str) -> str:
    """:raises NotFoundError: no sandbox or rollout that is remembered has such a job."""
    if not edge.leases.count(job) and job not in _by_job(edge):
        raise NotFoundError(f"cannot find job {job[:140]!r}: no sandbox or rollout belongs to it", job=job[:140])
    return job


def _info(edge: Edge, job: str, sandboxes: Sequence[Sandbox]) -> JobInfo:
    memory = sum(s.instance.usage().get("memory_bytes", 0) for s in sandboxes if s.instance is not None)
    return JobInfo(
        job=job,
        sandboxes=dict(Counter(str(sandbox.state) for sandbox in sandboxes)),
        rollouts=edge.leases.count(job),
        memory_bytes=memory,
    )
