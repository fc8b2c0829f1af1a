"""A manifest: what was written is read, and anything else is an error of ours."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.store.remote.manifest import (
    Manifest,
    ManifestLayer,
    decode_manifest,
    encode_manifest,
    layer_path,
    manifest_path,
)
from libdsec.protocol.environment import ImageConfig
from libdsec.protocol.errors import DSecError, IntegrityError, InvalidArgumentError

LAYER = ManifestLayer("sha256:" + "ab" * 32, 4096, 1 << 40, 7, "cd" * 32, "made of a directory")
MANIFEST = Manifest(1, "repo/app:v1", "base", None, 1.5, ImageConfig({"A": "é\n"}), (LAYER, LAYER))
FIELDS = json.loads(encode_manifest(MANIFEST))

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


def test_what_is_written_is_read() -> None:
    assert decode_manifest(encode_manifest(MANIFEST), "repo/app:v1") == MANIFEST
    assert decode_manifest(json.dumps({**FIELDS, "new": [1]}).encode(), "repo/app:v1") == MANIFEST
    bare = msgspec.structs.replace(MANIFEST, created_at=9.0, layers=(msgspec.structs.replace(LAYER, made_by=""), LAYER))
    assert bare.says_the_same(MANIFEST)
    assert not msgspec.structs.replace(MANIFEST, kind="toolkit").says_the_same(MANIFEST)
    assert not msgspec.structs.replace(MANIFEST, layers=(LAYER,)).says_the_same(MANIFEST)


def test_where_things_lie() -> None:
    assert manifest_path("repo/app:v1") == "names/repo/app/_tags/v1"
    assert layer_path(LAYER.digest, "layer") == f"layers/{'ab' * 32}/layer"
    for bad in ("app", "../x:1", "app:..", "a//b:1", "/a:1", "app:v1/..", "_tags:1"):
        with pytest.raises(InvalidArgumentError):
            manifest_path(bad)


def test_one_that_is_too_large_is_not_published() -> None:
    with pytest.raises(InvalidArgumentError, match="the most is"):
        encode_manifest(msgspec.structs.replace(MANIFEST, config=ImageConfig({"A": "x" * 2_000_000})))
    large = encode_manifest(msgspec.structs.replace(MANIFEST, config=ImageConfig({"A": "x" * 140_000})))
    with pytest.raises(IntegrityError, match="its configuration"):
        decode_manifest(large, MANIFEST.ref)


@given(st.sampled_from([*FIELDS, *(f"layers.{name}" for name in FIELDS["layers"][0]), "config.env"]), VALUES)
@settings(max_examples=300, deadline=None)
def test_any_value_in_any_field(field: str, value: object) -> None:
    changed = json.loads(json.dumps(FIELDS))
    where, _, name = field.rpartition(".")
    (changed["layers"][0] if where == "layers" else changed["config"] if where else changed)[name] = value
    try:
        manifest = decode_manifest(json.dumps(changed).encode(), "repo/app:v1")
    except DSecError:
        return
    assert manifest.ref == "repo/app:v1"
    assert all(layer_path(layer.digest, "layer").count("/") == 2 for layer in manifest.layers)


@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=200, deadline=None)
def test_noise_is_an_error_of_ours(content: bytes) -> None:
    with pytest.raises(DSecError):
        decode_manifest(content, "repo/app:v1")
