"""lease.take, lease.renew, lease.release, rollout.list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request, encode_error
from dsec.edge.tasks import ANSWERED
from libdsec.protocol.calls import Empty
from libdsec.protocol.jobs import LeaseHolder, LeaseRequest, RolloutListRequest
from libdsec.protocol.steps import check_scope_name

from .arguments import encode, read
from .pages import fill_page

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def take(edge: Edge, request: Request, caller: Caller) -> Answerer:
    """Answered once it is written down: an epoch that was given is never given again."""
    asked = read(request, LeaseRequest)
    edge.require_taking(request.method)
    if asked.kind == "sandbox":
        edge.registry.get(asked.name)
    else:
        check_scope_name(asked.name, asked.kind)
    if asked.job is not None:
        check_scope_name(asked.job, "job")
    # first: reading the log commits what was submitted, and the lease and its answer belong into one commit
    edge.log.count(asked.name)
    lease = edge.leases.take(asked)
    if asked.kind != "job":
        edge.log.open_scope(asked.name, asked.kind)
    answer = encode(edge.leases.info(lease, edge.log.count(asked.name)))
    edge.after_commit(lambda: caller.result(answer), lambda error: caller.error(encode_error(error)))
    return ANSWERED


def renew(edge: Edge, request: Request, caller: Caller) -> Answerer:
    lease = edge.leases.renew(read(request, LeaseHolder))
    caller.result(encode(edge.leases.info(lease, edge.log.count(lease.name))))
    return ANSWERED


def release(edge: Edge, request: Request, caller: Caller) -> Answerer:
    edge.leases.release(read(request, LeaseHolder))
    edge.after_commit(lambda: caller.result(encode(Empty())), lambda error: caller.error(encode_error(error)))
    return ANSWERED


def list_rollouts(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, RolloutListRequest)
    entries, following = fill_page(
        (lease.name, edge.leases.info(lease, edge.log.count(lease.name)))
        for lease in edge.leases.rollouts(asked.after, asked.job)
    )
    caller.result(encode({"rollouts": entries, "next": following}))
    return ANSWERED
