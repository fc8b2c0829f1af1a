"""The golden frames: their bytes are read into what is described and written back the same. The Rust twin is
`aether/src/wire/golden.rs`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from libdsec.protocol import calls, errors, exec, files, frames
from libdsec.protocol.errors import WireError
from libdsec.protocol.frames import END, Decoder, Frame, Kind

GOLDEN = Path(__file__).parents[2] / "golden"
DESCRIBED: list[dict[str, Any]] = json.loads((GOLDEN / "frames.json").read_text())
BYTES = (GOLDEN / "frames.bin").read_bytes()

TYPES: dict[str, type[msgspec.Struct]] = {
    "Hello": calls.Hello,
    "Call": calls.Call,
    "ErrorBody": errors.ErrorBody,
    "ExecAnswer": exec.ExecAnswer,
    "FileAnswer": files.FileAnswer,
    "SignalRequest": exec.SignalRequest,
    "ResizeRequest": exec.ResizeRequest,
}


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_make", GOLDEN / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_kind_is_described() -> None:
    assert {entry["kind"] for entry in DESCRIBED} == {kind.name for kind in Kind}


def test_bytes_are_read_into_what_is_described(make: ModuleType) -> None:
    read = list(Decoder().feed(BYTES))
    wanted = [
        Frame(Kind[d["kind"]], d["call"], make.payload(d["payload"]), d["stream"], END if d["end"] else 0)
        for d in DESCRIBED
    ]
    assert read == wanted


def test_however_the_stream_is_cut_the_frames_are_the_same() -> None:
    decoder, whole = Decoder(), list(Decoder().feed(BYTES))
    step = 4099
    cut = [frame for at in range(0, len(BYTES), step) for frame in decoder.feed(BYTES[at : at + step])]
    assert cut == whole
    assert decoder.pending == 0


def test_what_is_described_is_written_into_the_same_bytes() -> None:
    read = Decoder().feed(BYTES)
    assert b"".join(frames.encode(f.kind, f.call, f.payload, f.stream, f.flags) for f in read) == BYTES


@pytest.mark.parametrize("index", [i for i, d in enumerate(DESCRIBED) if d["payload"].get("type") in TYPES])
def test_messages_are_read_and_written_by_their_types(index: int) -> None:
    payload = list(Decoder().feed(BYTES))[index].payload
    value = msgspec.msgpack.decode(payload, type=TYPES[DESCRIBED[index]["payload"]["type"]])
    assert msgspec.msgpack.encode(value) == payload


def test_credit_and_packets() -> None:
    for frame, entry in zip(Decoder().feed(BYTES), DESCRIBED, strict=True):
        assert frames.decode_packet(frames.encode(*frame)) == frame
        if frame.kind is Kind.CREDIT:
            amount = entry["payload"]["credit"]
            assert frames.credit_amount(frame) == amount
            assert frames.encode_credit(frame.call, frame.stream, amount) == frames.encode(*frame)


@pytest.mark.parametrize(
    "packet",
    [b"", BYTES[:15], BYTES[:17], BYTES[:4] + b"\x00" + BYTES[5:16], BYTES[:5] + b"\x02" + BYTES[6:16], b"\xff" * 16],
    ids=["empty", "short", "not-whole", "kind", "flags", "length"],
)
def test_what_is_no_frame_is_refused(packet: bytes) -> None:
    with pytest.raises(WireError):
        frames.decode_packet(packet)
