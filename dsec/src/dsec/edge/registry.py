"""All sandboxes of this edge: those that live, a bounded number of those that have ended, and idempotency keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from libdsec.protocol.errors import ConflictError, SandboxNotFoundError
from libdsec.protocol.jobs import LeaseKind
from libdsec.protocol.spec import SandboxSpec

from .sandbox import Sandbox


class Registry:
    def __init__(self, kept_final: int) -> None:
        self._kept_final = kept_final
        self._live: dict[str, Sandbox] = {}
        self._final: OrderedDict[str, Sandbox] = OrderedDict()
        self._keys: dict[tuple[str, str], Sandbox] = {}

    def add(self, sandbox: Sandbox, key: str | None) -> None:
        self._live[sandbox.id] = sandbox
        if key is not None:
            sandbox.key = key
            self._keys[sandbox.principal, key] = sandbox

    def get(self, sandbox: str) -> Sandbox:
        """:raises SandboxNotFoundError: never made here, or forgotten."""
        found = self._live.get(sandbox) or self._final.get(sandbox)
        if found is None:
            raise SandboxNotFoundError(
                f"cannot find sandbox {sandbox[:64]!r}: it was never made here, or it ended long ago",
                sandbox=sandbox[:64],
            )
        return found

    def by_key(self, principal: str, key: str, spec: SandboxSpec) -> Sandbox | None:
        """The sandbox that an earlier create with this key made.

        :raises ConflictError: the earlier create asked for something else.
        """
        found = self._keys.get((principal, key))
        if found is not None and found.spec != spec:
            raise ConflictError(
                f"cannot create a sandbox with idempotency key {key[:64]!r}: it made {found.id} from another spec",
                sandbox=found.id,
            )
        return found

    def finish(self, sandbox: Sandbox) -> None:
        """It has ended: remember it among the last ones."""
        if self._live.pop(sandbox.id, None) is None:
            return
        self._final[sandbox.id] = sandbox
        while len(self._final) > self._kept_final:
            self.forget_key(self._final.popitem(last=False)[1])

    def discard(self, sandbox: Sandbox) -> None:
        """It never came to life: its key may be used again; it is remembered with its error."""
        self.forget_key(sandbox)
        self.finish(sandbox)

    def restore(self, sandbox: Sandbox) -> None:
        """From the journal: as it was when an earlier edge wrote it down. Oldest first."""
        if sandbox.key is not None:
            self._keys[sandbox.principal, sandbox.key] = sandbox
        if sandbox.final:
            self._final[sandbox.id] = sandbox
        else:
            self._live[sandbox.id] = sandbox

    def of_job(self, job: str) -> list[Sandbox]:
        """Those of a job that live, the oldest first."""
        return [sandbox for sandbox in self._live.values() if sandbox.job == job]

    def of_image(self, ref: str) -> list[Sandbox]:
        """Those that live and were made of it, as image, workspace or toolkit."""
        return [
            sandbox
            for sandbox in self._live.values()
            if ref in (sandbox.spec.image, sandbox.spec.workspace, *sandbox.spec.toolkits)
        ]

    def of_rollout(self, rollout: str) -> list[Sandbox]:
        return [sandbox for sandbox in self._live.values() if sandbox.spec.rollout == rollout]

    def of_lease(self, kind: LeaseKind, name: str) -> list[Sandbox]:
        """What a lease holds: those that live."""
        if kind == "job":
            return self.of_job(name)
        if kind == "rollout":
            return self.of_rollout(name)
        return [self._live[name]] if name in self._live else []

    def leased(self) -> set[tuple[LeaseKind, str]]:
        """Of which leases there are sandboxes that live."""
        found: set[tuple[LeaseKind, str]] = set()
        for sandbox in self._live.values():
            found.add(("sandbox", sandbox.id))
            if sandbox.spec.rollout is not None:
                found.add(("rollout", sandbox.spec.rollout))
            if sandbox.job is not None:
                found.add(("job", sandbox.job))
        return found

    def live(self) -> Iterator[Sandbox]:
        return iter(list(self._live.values()))

    def everything(self) -> Iterator[Sandbox]:
        return iter([*self._final.values(), *self._live.values()])

    def __len__(self) -> int:
        return len(self._live)

    def forget_key(self, sandbox: Sandbox) -> None:
        """A create with its key makes another."""
        if sandbox.key is not None and self._keys.get((sandbox.principal, sandbox.key)) is sandbox:
            del self._keys[sandbox.principal, sandbox.key]
