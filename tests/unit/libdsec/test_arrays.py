"""Arrays that were sent one after the other come apart where they begin."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libdsec._arrays import arrays
from libdsec.errors import WireError

SIZES = (0, 1, 5, 15, 16, 31, 32, 40, 255, 256, 300)
"""Around those at which the form of a length changes."""

SCALARS: tuple[Callable[[Random], Any], ...] = (
    lambda random: None,
    lambda random: random.random() < 0.5,
    lambda random: random.randrange(2 ** random.randint(1, 64)),
    lambda random: -random.randrange(1, 2 ** random.randint(1, 63)),
    lambda random: random.uniform(-1e300, 1e300),
    lambda random: "é" * random.choice(SIZES) if random.random() < 0.2 else "x" * random.choice(SIZES),
    lambda random: random.randbytes(random.choice(SIZES)),
)


def value(random: Random, depth: int) -> Any:
    kind = random.randrange(10) if depth else 9
    if kind > 1:
        return random.choice(SCALARS)(random)
    inner = [value(random, depth - 1) for _ in range(random.choice((0, 1, 3, 15, 16, 20)))]
    return inner if kind else {str(n): one for n, one in enumerate(inner)}


def item(random: Random) -> Any:
    """What an array may hold."""
    if random.random() < 0.2:
        return msgspec.msgpack.Ext(
            random.randrange(128), random.randbytes(random.choice((0, 1, 2, 3, 4, 8, 16, 17, 300)))
        )
    return value(random, 3)


def made(random: Random) -> list[list[Any]]:
    """Lists by plain code: drawn one by one their parts take a hundred times as long."""
    return [[item(random) for _ in range(random.choice((0, 1, 3, 15, 16, 40)))] for _ in range(random.randrange(7))]


RANDOM = st.randoms(use_true_random=True)
decode = msgspec.msgpack.decode
unhurried = settings(deadline=None, max_examples=100)


@unhurried
@given(RANDOM)
def test_frames_stay_as_they_are(random):
    frames = [msgspec.msgpack.encode(one) for one in made(random)]
    assert list(arrays([*frames, b""])) == frames


@unhurried
@given(RANDOM, st.lists(st.integers(0, 5000)))
def test_joined_and_cut_anew(random, cuts):
    lists = made(random)
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
