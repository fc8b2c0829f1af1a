"""What is collected beside a call."""

from __future__ import annotations

import hashlib

from dsec.commandlog import Held, Recorder
from libdsec.protocol.steps import MAX_RECORDED_OUTPUT


def test_pieces_are_kept_as_they_are() -> None:
    recorder = Recorder()
    first, second = b"a" * 1000, b"b" * 1000
    for stream, payload in ((2, first), (3, second), (2, b""), (2, second), (7, b"x")):
        recorder.output(stream, payload)
    assert recorder.stdout[0] is first
    assert recorder.stdout[1] is second
    assert recorder.stderr == [second]
    assert recorder.opaque == ""


def test_input_is_digested() -> None:
    recorder = Recorder()
    assert recorder.input_digest == b""
    recorder.input(b"in")
    recorder.input(b"put")
    assert recorder.input_digest == hashlib.sha256(b"input").digest()
    empty = Recorder()
    empty.input(b"")
    assert empty.input_digest == hashlib.sha256(b"").digest()


def test_beyond_the_bound_output_is_only_counted() -> None:
    recorder = Recorder()
    piece = bytes(1024 * 1024)
    for _ in range(MAX_RECORDED_OUTPUT // len(piece)):
        recorder.output(2, piece)
    assert recorder.opaque == ""
    recorder.output(3, b"!")
    assert str(MAX_RECORDED_OUTPUT + 1) in recorder.opaque
    assert (recorder.stdout, recorder.stderr) == ([], [])
    recorder.output(2, piece)
    assert recorder.stdout == []


def test_recorders_share_a_bound_and_give_back() -> None:
    held = Held(100)
    first, second = Recorder(held), Recorder(held)
    first.output(2, bytes(60))
    second.output(3, bytes(30))
    second.output(3, bytes(30))
    assert "held 100" in second.opaque
    assert (second.stderr, held.size) == ([], 60)
    first.output(2, bytes(40))
    assert (first.opaque, held.size) == ("", 100)
    first.close()
    first.close()
    assert held.size == 0
    Recorder(held).output(2, bytes(100))
    assert held.size == 100
