"""Where images come from and go to: registries, shared stores, and sandboxes that become images.

Building and naming stand in `environment`. Sources and destinations are written as `docker://HOST[:PORT]/NAME:TAG` or
`…@sha256:…` (a registry), `oci:DIR[:TAG]` (an OCI image layout) and `docker-archive:FILE` or `oci-archive:FILE` (what
`docker save` writes, or a layout as a tar); paths are the node's and absolute.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .environment import ImageInfo, LayerInfo, LayerKind

MERGE_BYTES = 3 * 1024**3
"""Consecutive layers of a pulled image are merged while they have so many bytes of data together."""

DataSource = Literal["auto", "direct", "pre-content", "prefetch"]
"""How a node reads a published layer's data: on a mounted file system, by the kernel's pre-content events, or all of it
before the first sandbox. `auto` takes the first of these that the store and the kernel allow."""


class RegistryLogin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who asks a registry. Never logged, never stored."""

    user: str
    password: str
    """Or an identity token, where `user` is empty."""

    def __repr__(self) -> str:
        """Without the password: this goes into logs with whatever has it."""
        return f"RegistryLogin(user={self.user!r}, password=...)"


class ImagePullRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """image.pull. EVENT frames of `BuildProgress` may precede the `ImageInfo`."""

    source: str
    ref: str = ""
    """What it is called here; empty: the name and tag of the source."""
    kind: LayerKind = "base"
    login: RegistryLogin | None = None
    plain_http: bool = False
    """Talk to the registry without TLS. Only for loopback."""
    merge_bytes: int = MERGE_BYTES
    """0: every layer stays one."""


class ImagePushRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """image.push: as an OCI image. EVENT frames of `BuildProgress` may precede the `ImagePushed`."""

    ref: str
    destination: str
    login: RegistryLogin | None = None
    plain_http: bool = False


class ImagePushed(msgspec.Struct, frozen=True):
    destination: str
    digest: str
    """Of the OCI manifest."""
    bytes_sent: int
    """Without layers that were there already."""


class ImageExportRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """image.export: DATA on stream 2 is a tar of the image's whole tree, what upper layers hide left out; then
    `Empty`."""

    ref: str


class ImagePublishRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """image.publish: to the node's shared store, under the same name. EVENT frames of `BuildProgress` precede the
    `ImagePublished`."""

    ref: str


class ImagePublished(msgspec.Struct, frozen=True):
    ref: str
    store: str
    chunks: int
    """Of its layers, holes left out."""
    chunks_new: int
    """That the store did not have."""
    bytes_sent: int


class ImageFetchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """image.fetch: everything of an image that lies in the shared store, to this node, now. EVENT frames of
    `BuildProgress` may precede the `ImageInfo`."""

    ref: str


class HistoryEntry(msgspec.Struct, frozen=True):
    layer: LayerInfo
    made_by: str
    """In words: the source of a build, a Dockerfile's step, the sandbox that was packed."""
    created_at: float
    ref: str
    """The image it was first part of."""


class ImageHistory(msgspec.Struct, frozen=True):
    """image.history of an `ImageNameRequest`."""

    ref: str
    entries: tuple[HistoryEntry, ...]
    """The lowest layer first."""


ChangeKind = Literal["added", "changed", "removed"]


class Change(msgspec.Struct, frozen=True):
    path: str
    """Absolute; a byte that is no UTF-8 is written `\\xNN`."""
    kind: ChangeKind
    type: str
    """`file`, `directory`, `symlink`, `device`, `fifo`, `socket`; of what was removed: of what was there, or ``."""
    size: int = 0
    """Bytes, of a file that is there now."""


class ImageDiffRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """image.diff: DATA on stream 2 are arrays of `Change` (each DATA one value), in the order of paths, what turns `a`
    into `b`; then `ChangeCount`."""

    a: str
    b: str


class SandboxDiffRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """sandbox.diff: as `image.diff`, what the sandbox changed of its image."""

    sandbox: str


class ChangeCount(msgspec.Struct, frozen=True):
    added: int
    changed: int
    removed: int


class ScrubRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out of a packed layer. `pattern` is matched against the whole path without its first `/`: `*` is
    anything within a name, `**` any number of directories, `?` one character. A directory takes all below it along."""

    pattern: str
    why: str = ""
    keep: bool = False
    """Keep what an earlier rule would leave out."""


class PackDiffRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """sandbox.pack_diff: the sandbox's changes as a layer, and an image made with it. EVENT frames of `BuildProgress`
    may precede the `PackedDiff`."""

    sandbox: str
    ref: str
    kind: LayerKind = "workspace"
    """`workspace`: the sandbox's workspace layers and the diff; `toolkit`: the diff alone; `base`: base, workspace and
    the diff."""
    scrub: bool = True
    """Leave out what the platform's own rules name."""
    rules: tuple[ScrubRule, ...] = ()
    """The caller's, after those."""
    publish: bool = False
    """To the shared store too, before the answer."""
    comment: str = ""
    """How the layer came to be, in words, for the image's history: 1,000 characters at most. The node says something
    where nothing is said."""


class Scrubbed(msgspec.Struct, frozen=True):
    path: str
    why: str
    files: int
    """Entries that went with it, itself included."""
    bytes: int


class PackedDiff(msgspec.Struct, frozen=True):
    image: ImageInfo
    layer: LayerInfo
    scrubbed: tuple[Scrubbed, ...]
    """At most the first 1,000; `scrubbed_files` counts all."""
    scrubbed_files: int
    scrubbed_bytes: int
    in_toolkits: tuple[str, ...] = ()
    """Paths of the diff that change what a toolkit gave: they are in the layer, but the toolkit lies above a workspace
    and will hide them. At most the first 1,000."""
    frozen_ms: float = 0.0
    """How long the sandbox stood still for it: until it was read, or snapshotted where it could be."""


class ImageStats(msgspec.Struct, frozen=True):
    """Of one layer on this node."""

    layer: str
    refs: tuple[str, ...]
    """At most the first 100 of them."""
    source: str
    """`local` (made or pulled here), `direct`, `pre-content` or `prefetch`."""
    data_bytes: int
    present_bytes: int
    """Of the data, on this node."""
    fetched_bytes: int
    """From the store, compressed, since the layer came here."""
    requests: int
    reads_waited: int
    """Reads of sandboxes that had to wait for the store."""
    wait_p50_ms: float
    wait_p99_ms: float
    errors: int
    in_use: int
    """Sandboxes."""
    pinned: bool
    last_used_at: float


class ImageStatsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """image.stats."""

    ref: str = ""
    """Empty: of all layers."""
    after: str | None = None
    """Only layers whose digest is above this one: the next page."""


class ImageStatsAnswer(msgspec.Struct, frozen=True):
    """One page, in the order of digests; a page fits into one frame."""

    layers: tuple[ImageStats, ...]
    cache_bytes: int
    """On this node, of layers that lie in the shared store too."""
    cache_limit: int
    next: str | None = None
    """Not None: there are more, ask again with this as `after`."""


class ImageGcRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """image.gc: forget what this node can have again from the shared store, or that no name needs, the longest unused
    first, until the layers have `keep_bytes` at most."""

    keep_bytes: int = 0
    dry_run: bool = False


class Collected(msgspec.Struct, frozen=True):
    layer: str
    refs: tuple[str, ...]
    bytes: int
    why: str


class ImageGcAnswer(msgspec.Struct, frozen=True):
    collected: tuple[Collected, ...]
    bytes: int
    kept_bytes: int


class ImagePinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """image.pin: its layers are not collected while it is pinned. The answer is an `ImageInfo`."""

    ref: str
    pinned: bool = True
