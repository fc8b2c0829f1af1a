"""The sandboxes that this edge has, as the fork server's client asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from .fork_server import Living
from .instance import ContainerInstance

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Sandboxes(dict[str, ContainerInstance]):
    """By id, from the first thing taken for one until all was given back. A `fork_server.Owner`."""

    def __init__(self, spawn: Spawn) -> None:
        super().__init__()
        self.spawn = spawn
        self.on_layers_lost: Callable[[Collection[str]], None] = lambda _: None

    def exited(self, sandbox: str, status: int | None) -> None:
        if (instance := self.get(sandbox)) is not None:
            instance.exited(status)

    def sandboxes(self) -> list[str]:
        return list(self)

    def living(self, sandbox: str) -> Living | None:
        instance = self.get(sandbox)
        return None if instance is None else instance.living()

    def layers_lost(self, keys: Collection[str]) -> None:
        self.on_layers_lost(keys)

    def forget(self, sandbox: str) -> None:
        self.pop(sandbox, None)
