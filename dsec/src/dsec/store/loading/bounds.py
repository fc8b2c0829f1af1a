"""The numbers of loading on demand, in one place."""

from __future__ import annotations

import msgspec


class Bounds(msgspec.Struct, frozen=True):
    """Defaults by measurement (docs/performance.md)."""

    read_deadline_s: float = 30.0
    """A read that waits longer is an I/O error."""
    fetch_deadline_s: float = 10.0
    """One fetch that somebody waits for, and `second_bytes` more a second; another is made while somebody waits."""
    ahead_deadline_s: float = 60.0
    """One that nobody waits for: the source tries again by itself."""
    second_bytes: int = 256 * 1024
    damaged_tries: int = 2
    """Of a chunk that the store has wrong, before its readers are refused."""
    first_window: int = 1
    """Chunks fetched beyond a first miss."""
    most_window: int = 8
    run: int = 16
    """Chunks a request of what nobody waits for."""
    at_once: int = 16
    """Fetches of the node: what the store's client has under way, so that none waits behind another's back."""
    a_layer: int = 10
    """Fetches of one layer."""
    ahead: int = 8
    """Fetches of the node for what nobody waits for."""
    fetch_all_tries: int = 6
    """Of one request, when a layer is fetched whole."""


FIRST_RETRY_S = 0.02
MOST_RETRY_S = 1.0


def retry_delay(attempt: int) -> float:
    """After the attempt of that number, counted from 0."""
    return float(min(FIRST_RETRY_S * 2**attempt, MOST_RETRY_S))
