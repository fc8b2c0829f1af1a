"""A lease that is kept while its holder lives."""

from __future__ import annotations

import asyncio

from .._transport.channel import Channel
from ..protocol.errors import ClientClosedError, DSecError, LeaseLostError, NotFoundError
from ..protocol.jobs import LeaseHolder, LeaseInfo, LeaseRequest

_PAUSE_S = 0.5


class Lease:
    """Renewed by a task of its own every third of its time, until it is lost, released or left."""

    def __init__(self, channel: Channel, info: LeaseInfo, lease_s: float) -> None:
        self._channel = channel
        self._lease_s = lease_s
        # from the answer on: what a call waited for a server that was away is no time of the lease
        self._expires_at = channel.clock.time() + lease_s
        self._holder = LeaseHolder(info.kind, info.name, info.epoch)
        self._over: str | None = None
        self._keeping = asyncio.create_task(self._keep(), name=f"lease of {info.kind} {info.name}")
        self.info = info
        self.epoch = info.epoch

    @classmethod
    async def take(cls, channel: Channel, request: LeaseRequest) -> Lease:
        """Whoever held it before cannot go on."""
        info: LeaseInfo = await channel.call("lease.take", request, repeatable=True)
        return cls(channel, info, request.lease_s)

    def check(self) -> None:
        """:raises LeaseLostError: it is not held any more."""
        if self._over is not None:
            raise LeaseLostError(
                f"cannot go on with {self.info.kind} {self.info.name}: {self._over}",
                kind=self.info.kind,
                name=self.info.name,
                epoch=self.epoch,
            )

    def lose(self, error: LeaseLostError) -> None:
        """The node said that somebody else holds it."""
        self._over = self._over or f"its lease is lost: {error}"

    async def leave(self) -> None:
        """Renew it no more: it expires, and what it holds is orphaned then. Again is fine."""
        self._over = self._over or "its lease is not renewed any more"
        self._keeping.cancel()
        await asyncio.wait((self._keeping,))

    async def release(self) -> None:
        """Give it back: nothing is orphaned. Again is fine, and so is a lease that was lost."""
        if self._over is not None:
            await self.leave()
            return
        self._over = "its lease was released"
        await self.leave()
        try:
            await self._channel.call("lease.release", self._holder, repeatable=True)
        except LeaseLostError:
            pass  # somebody else holds it: nothing is left to give back

    async def _keep(self) -> None:
        clock = self._channel.clock
        pause, failure = self._lease_s / 3, ""
        while self._over is None:
            await clock.sleep(pause)
            left = self._expires_at - clock.time()
            if left <= 0:
                self._over = f"its lease could not be renewed for {self._lease_s:g} s{failure}"
                return
            try:
                await self._channel.call("lease.renew", self._holder, timeout=left, repeatable=True, patience=left)
                self._expires_at, pause, failure = clock.time() + self._lease_s, self._lease_s / 3, ""
            except ClientClosedError:
                self._over = "its client was closed"
            except (LeaseLostError, NotFoundError) as error:
                self._over = f"its lease is lost: {error}"
            except DSecError as error:  # it is held all the same, until its time is over
                pause, failure = min(_PAUSE_S, self._lease_s / 3), f" ({error})"
            except Exception as error:  # a bug; nobody may go on under a lease that nobody renews
                self._over = f"its renewal failed: {error!r}"
                raise
