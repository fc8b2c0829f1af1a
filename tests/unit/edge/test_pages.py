"""Lists in pages: nothing twice, nothing left out, every page within a frame."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dsec.edge.verbs.pages import fill_page
from libdsec.protocol.environment import ImageConfig, ImageInfo
from libdsec.protocol.frames import MAX_PAYLOAD


def image(number: int, size: int) -> ImageInfo:
    return ImageInfo(f"image:{number:05}", "base", (), ImageConfig(env={"filler": "x" * size}), 0.0)


@given(st.lists(st.integers(0, MAX_PAYLOAD // 2), max_size=40))
def test_pages_cover_everything_once(sizes: list[int]) -> None:
    images = [image(number, size) for number, size in enumerate(sizes)]
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page, after = fill_page((i.ref, i) for i in images if i.ref > after)
        assert len(msgspec.msgpack.encode({"images": page, "next": after})) <= MAX_PAYLOAD
        seen += [msgspec.msgpack.decode(entry, type=ImageInfo).ref for entry in page]
    assert seen == [i.ref for i in images]
