"""Lists in pages: nothing twice, nothing left out, every page within a frame."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dsec.edge.names import Names
from dsec.edge.verbs.pages import PAGE_ENTRIES, fill_page
from libdsec.protocol.calls import Empty
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


@given(st.lists(st.lists(st.text(max_size=3), unique=True), max_size=5), st.none() | st.text(max_size=3))
def test_names_come_in_order_however_they_were_added(added: list[list[str]], after: str | None) -> None:
    names, known = Names(), set[str]()
    for some in added:
        for name in some:
            if name not in known:
                names.add(name)
        known.update(some)
        assert list(names.after(after)) == sorted(name for name in known if after is None or name > after)
    assert len(names) == len(known)


def test_a_page_has_so_many_entries_at_most() -> None:
    many = [(f"{number:06}", Empty()) for number in range(PAGE_ENTRIES + 1)]
    page, following = fill_page(many)
    assert (len(page), following) == (PAGE_ENTRIES, many[PAGE_ENTRIES - 1][0])
    assert fill_page(many[:-1])[1] is None
