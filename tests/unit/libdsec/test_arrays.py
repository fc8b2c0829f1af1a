"""Arrays that were sent one after the other come apart where they begin."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libdsec._arrays import arrays
from libdsec.errors import WireError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=300)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=20)
)
EXTENSIONS = st.builds(msgspec.msgpack.Ext, st.integers(0, 127), st.binary(max_size=300))
LISTS = st.lists(st.lists(VALUES | EXTENSIONS, max_size=40), max_size=6)
decode = msgspec.msgpack.decode
unhurried = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@unhurried
@given(LISTS)
def test_frames_stay_as_they_are(lists):
    frames = [msgspec.msgpack.encode(one) for one in lists]
    assert list(arrays([*frames, b""])) == frames


@unhurried
@given(LISTS, st.lists(st.integers(0, 5000)))
def test_joined_and_cut_anew(lists, cuts):
    frames = [msgspec.msgpack.encode(one) for one in lists]
    data = b"".join(frames)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in itertools.pairwise(places)]
    seen = [decode(piece) for piece in arrays(pieces)]
    assert [item for one in seen for item in one] == [
        item for one in lists for item in decode(msgspec.msgpack.encode(one))
    ]


@unhurried
@given(st.lists(st.binary(max_size=60), max_size=4))
def test_garbage_is_refused_or_comes_whole(pieces):
    try:
        seen = list(arrays(pieces))
    except WireError:
        return
    assert b"".join(seen) == b"".join(pieces)


@pytest.mark.parametrize(
    "data", [b"\xc1", b"\x91", b"\xdd\xff\xff\xff\xff", b"\xdc", b"\xc6\xff\xff\xff\xff", b"\x92\x01"]
)
def test_what_is_cut_off_is_refused(data):
    with pytest.raises(WireError):
        list(arrays([b"\x91\x01" + data]))
