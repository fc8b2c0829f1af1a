"""lease.take, lease.renew, lease.release, rollout.list."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from dsec.bus import Answerer, Caller, Request, encode_error
from dsec.edge.tasks import ANSWERED
from libdsec.protocol.calls import Empty
from libdsec.protocol.errors import ConflictError, DSecError
from libdsec.protocol.jobs import LeaseHolder, LeaseInfo, LeaseRequest, RolloutListRequest
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
        rollout = edge.registry.get(asked.name).spec.rollout
        if rollout is not None:
            raise ConflictError(
                f"cannot take a lease of sandbox {asked.name}: it belongs to rollout {rollout!r}; take that one",
                sandbox=asked.name,
                rollout=rollout,
            )
    else:
        check_scope_name(asked.name, asked.kind)
    if asked.job is not None:
        check_scope_name(asked.job, "job")
    # first: what can fail must not fail once the lease is on its way to be written down
    steps = 0 if asked.kind == "job" else edge.log.open_scope(asked.name, asked.kind).steps
    edge.leases.take(asked, _tell(caller, steps), _refuse(caller))
    return ANSWERED


def renew(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, LeaseHolder)
    edge.leases.renew(asked, _tell(caller, edge.log.count(asked.name)), _refuse(caller))
    return ANSWERED


def release(edge: Edge, request: Request, caller: Caller) -> Answerer:
    edge.leases.release(read(request, LeaseHolder), lambda _: caller.result(encode(Empty())), _refuse(caller))
    return ANSWERED


def _tell(caller: Caller, steps: int) -> Callable[[LeaseInfo], None]:
    return lambda info: caller.result(encode(msgspec.structs.replace(info, steps=steps)))


def _refuse(caller: Caller) -> Callable[[DSecError], None]:
    return lambda error: caller.error(encode_error(error))


def list_rollouts(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, RolloutListRequest)
    entries, following = fill_page(
        (lease.name, edge.leases.info(lease, edge.log.count(lease.name)))
        for lease in edge.leases.rollouts(asked.after, asked.job)
    )
    caller.result(encode({"rollouts": entries, "next": following}))
    return ANSWERED
