"""Descriptors that the fork server keeps for the edge beyond its end, whatever they are."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

from libdsec.protocol.errors import NotFoundError, UnsupportedOperationError, WireError

from .link import Link, close_all


class Descriptors:
    """Each is held here too, so that a fork server that has died can be followed by one that gets them."""

    def __init__(self, live: Callable[[], Awaitable[Link]], timeout_s: float) -> None:
        self._live, self._timeout_s = live, timeout_s
        self._held: dict[str, int] = {}

    async def hold(self, key: str, descriptor: int) -> None:
        """Have the server keep it (it stays the caller's), in place of what was under that key.

        :raises DSecError: it does not.
        """
        copy = os.dup(descriptor)
        try:
            await (await self._live()).call("descriptor.hold", {"key": key}, self._timeout_s, (copy,))
        except BaseException:
            os.close(copy)
            raise
        self._keep(key, copy)

    async def take(self, key: str) -> int | None:
        """A duplicate of what an earlier edge had the server keep, which it goes on keeping. None: nothing.

        :raises UnavailableError: no answer.
        """
        try:
            answer = await (await self._live()).call("descriptor.take", {"key": key}, self._timeout_s)
        except (NotFoundError, UnsupportedOperationError):
            return None
        if len(answer.descriptors) != 1:
            close_all(answer.descriptors)
            raise WireError(f"cannot take descriptor {key}: {len(answer.descriptors)} came instead of one")
        self._keep(key, os.dup(answer.descriptors[0]))
        return answer.descriptors[0]

    async def hand_over(self, link: Link) -> None:
        """To a server that may not have them: its predecessor has died."""
        for key, descriptor in list(self._held.items()):
            await link.call("descriptor.hold", {"key": key}, self._timeout_s, (descriptor,))

    def close(self) -> None:
        close_all(list(self._held.values()))
        self._held.clear()

    def _keep(self, key: str, copy: int) -> None:
        earlier = self._held.get(key)
        self._held[key] = copy
        if earlier is not None:
            os.close(earlier)
