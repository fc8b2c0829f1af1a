"""Logs as documents: what is written is read again as it was."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.replay import document
from dsec.replay.document import head, line, parse, tail
from dsec.replay.plain import from_plain, to_plain
from libdsec.protocol.errors import CapacityError, IntegrityError, InvalidArgumentError
from libdsec.protocol.exec import ExecAnswer, ExecRequest
from libdsec.protocol.steps import OutputRecord, Step, request_digest

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    texts,
    st.binary(max_size=20),
)
names = st.one_of(texts, st.sampled_from(["$base64", "$map", "$wire", "$number", "$"]), st.integers(0, 9))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=9,
)


@settings(deadline=None)
@given(values)
def test_any_value_of_the_wire_comes_back(value):
    encoded = msgspec.msgpack.encode(value)
    as_json = msgspec.json.decode(msgspec.json.encode(to_plain(encoded)))
    assert msgspec.msgpack.decode(from_plain(as_json)) == msgspec.msgpack.decode(encoded)


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_bytes_that_are_no_value_come_back(encoded):
    try:
        expected = msgspec.msgpack.decode(encoded)
    except msgspec.DecodeError:
        assert from_plain(to_plain(encoded)) == encoded
    else:
        back = msgspec.msgpack.decode(from_plain(to_plain(encoded)))
        assert back == expected or back != back  # nan is not itself


def test_what_no_json_can_hold_comes_back():
    for encoded in (b"\x91" * 200 + b"\xc0", b"\xd4\x01\x00", b"\xd6\xff\x00\x00\x00\x01"):
        assert from_plain(msgspec.json.decode(msgspec.json.encode(to_plain(encoded)))) == encoded


@pytest.mark.parametrize("bad", [{"$base64": "?"}, {"$number": "1"}, {"$map": [1]}, {"$new": 1}, {"$wire": 1}])
def test_marks_that_are_none_are_refused(bad):
    with pytest.raises(InvalidArgumentError):
        from_plain(bad)


requests = st.builds(
    ExecRequest,
    st.just("s" * 24),
    st.lists(texts, min_size=1, max_size=3).map(tuple),
    st.dictionaries(texts, texts, max_size=3),
    timeout_s=st.none() | st.integers(1, 100) | st.floats(1, 100),
)
outputs = st.one_of(
    st.binary(max_size=30).map(lambda data: OutputRecord(len(data), data)), st.builds(OutputRecord, st.just(9))
)


@st.composite
def steps(draw):
    request = draw(requests)
    state = draw(st.sampled_from(["running", "result", "error", "unknown"]))
    return Step(
        seq=draw(st.integers(1, 2**40)),
        track=draw(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=9)),
        n=draw(st.integers(1, 2**53)),
        method="exec",
        # as the node takes it: of what the wire brought
        digest=request_digest("exec", msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=ExecRequest)),
        state=state,
        began_at=draw(st.floats(0, 2e9)),
        sandbox="s" * 24,
        ended_at=draw(st.none() | st.floats(0, 2e9)),
        request=msgspec.Raw(msgspec.msgpack.encode(request)),
        answer=msgspec.Raw(msgspec.msgpack.encode(ExecAnswer("exited", 0))),
        stdout=draw(outputs),
        stderr=draw(outputs),
        input_digest=draw(st.sampled_from([b"", hashlib.sha256(b"").digest()])),
        opaque=draw(texts),
    )


def plain(step):
    """Its bytes decoded: encodings may differ, and of nothing the bytes are always known."""
    records = {
        name: OutputRecord(0, b"") if not getattr(step, name).size else getattr(step, name)
        for name in ("stdout", "stderr")
    }
    step = msgspec.structs.replace(step, **records)
    decoded = [msgspec.msgpack.decode(getattr(step, name)) for name in ("request", "answer")]
    return decoded, msgspec.structs.replace(step, request=msgspec.Raw(b""), answer=msgspec.Raw(b""))


@settings(max_examples=50, deadline=None)
@given(st.lists(steps(), max_size=4, unique_by=lambda step: step.seq))
def test_a_log_comes_back_from_its_document(log):
    text = head("r") + ",".join(map(line, log)) + tail()
    found = parse(text.encode())
    assert found.scope == "r"
    assert [plain(step) for step in found.steps] == [plain(step) for step in sorted(log, key=lambda step: step.seq)]


def write(book, **changes):
    written = msgspec.json.decode(head("r") + ",".join(map(line, book.steps)) + tail())
    return {**written, **changes}


def refused(written, match, error=InvalidArgumentError):
    with pytest.raises(error, match=match):
        parse(msgspec.json.encode(written))


def test_what_is_no_document_is_refused(book):
    book.exec("one", out=b"x")
    refused(write(book, format="other"), "format")
    refused(write(book, generation=2), "generation 2")
    refused({"scope": "r"}, "dsec log SCOPE --json")
    refused(write(book, error={"code": "capacity"}), "cut short")
    changed = write(book)
    changed["steps"][1]["seq"] = 1
    refused(changed, "two steps of seq 1")
    changed = write(book)
    changed["steps"][1]["request"]["argv"] = ["two"]
    refused(changed, "main#2.*changed", IntegrityError)
    changed = write(book)
    changed["steps"][1]["method"] = "server.shutdown"
    refused(changed, "no method that is a step")
    for field, value in (("stdout", {"size": 9, "text": "x"}), ("stdout", {"size": 1, "base64": "?"}), ("digest", "x")):
        changed = write(book)
        changed["steps"][1][field] = value
        refused(changed, "cannot use the log")
    for data in (b"", b"[" * 100_000, b"\xff"):
        with pytest.raises(InvalidArgumentError):
            parse(data)


def test_a_document_that_was_cut_short_says_why(book):
    text = head("r") + ",".join(map(line, book.steps)) + tail(CapacityError("cannot: full"))
    assert msgspec.json.decode(text)["error"]["code"] == "capacity"
    with pytest.raises(InvalidArgumentError, match="full"):
        parse(text.encode())


def test_output_that_is_no_text_is_base64(book):
    step = book.exec("one", out=b"\xff\x00")
    found = document.entry(step).stdout
    assert (found.text, found.base64, found.size) == (None, "/wA=", 2)
