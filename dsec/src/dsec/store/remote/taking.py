"""`LocalStore.taking` off the event loop: its lock may be held while somebody else removes a large layer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dsec.store.local import LocalStore, Taken
from dsec.store.threads import in_thread


@asynccontextmanager
async def taking(local: LocalStore) -> AsyncIterator[Taken]:
    """See `LocalStore.taking`; call what it yields in threads."""
    taken = Taken(local)
    try:
        yield taken
    finally:
        await in_thread(None, taken.let_go)
