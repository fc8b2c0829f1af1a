"""Lists longer than a frame go in pages, in the order of a key, so that what comes and goes meanwhile moves no page's
border."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from libdsec.protocol.frames import MAX_PAYLOAD

from .arguments import encode

PAGE_BYTES = MAX_PAYLOAD - 1024
PAGE_ENTRIES = 1000
"""More would keep the loop for too long."""


def fill_page(entries: Iterable[tuple[str, msgspec.Struct]]) -> tuple[list[msgspec.Raw], str | None]:
    """As many of the entries, encoded, as fit into an answer (PAGE_ENTRIES at most), and the key of the last one if
    more are left."""
    page: list[msgspec.Raw] = []
    size, last = 0, None
    for key, entry in entries:
        encoded = encode(entry)
        if page and (size + len(encoded) > PAGE_BYTES or len(page) == PAGE_ENTRIES):
            return page, last
        size += len(encoded)
        page.append(msgspec.Raw(encoded))
        last = key
    return page, None
