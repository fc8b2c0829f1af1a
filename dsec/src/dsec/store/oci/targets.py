"""Where images are pushed: a registry, an OCI layout in a directory, or one as a tar.

An image is put blob by blob, its manifest last: with that it is there. A target that is closed before is as it was, but
for blobs that a registry has taken, which it collects itself.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import msgspec

from dsec.store import disk_full
from dsec.store.durable import sync_directory
from dsec.store.sinks.tar import tar_pieces
from dsec.store.sources.base import Entry, Extent
from dsec.store.sources.memory import MemorySource
from dsec.store.tree import Node
from libdsec.protocol.errors import AlreadyExistsError, ConflictError, FileOperationError, InvalidArgumentError

from .layout import NAME
from .manifest import MAX_MANIFEST_BYTES, OCI_INDEX, OCI_MANIFEST, Index, broken, parse_manifest
from .reference import FilePlace
from .registry import Registry

_PIECE: Final = 1024 * 1024
_PIECES_A_PULSE: Final = 4
_PART: Final = re.compile(r"(?:[0-9a-f]{64}|index\.json|oci-layout)\.[0-9a-f]{12}\.part")
_MARK: Final = b'{"imageLayoutVersion":"1.0.0"}'

Told = Callable[[int], None]
"""Called with the bytes of each piece that went over; may raise."""


class Target(Protocol):
    """For one thread; to be closed."""

    host: str
    """Of the registry; empty where it is none."""

    def has_blob(self, digest: str, beside: str = "") -> bool:
        """`beside`: a repository of the same registry that may share it, and then has."""

    def put_blob(self, digest: str, size: int, path: str, told: Told) -> None:
        """The file at `path`, which stays."""

    def put_manifest(self, body: bytes) -> None:
        """The image is there when this returns."""

    def close(self) -> None:
        """Again is fine."""


class RegistryTarget:
    """See `Target`."""

    def __init__(self, registry: Registry, reference: str) -> None:
        self._registry = registry
        self._reference = reference
        self.host = registry.host
        self.close = registry.close
        self._not_shared: set[str] = set()
        """Repositories of which it has not given a blob."""

    def has_blob(self, digest: str, beside: str = "") -> bool:
        if self._registry.has_blob(digest):
            return True
        if not beside or beside == self._registry.name or beside in self._not_shared:
            return False
        if self._registry.mount_blob(digest, beside):
            return True
        self._not_shared.add(beside)
        return False

    def put_blob(self, digest: str, size: int, path: str, told: Told) -> None:
        with open(path, "rb", buffering=0) as content:
            self._registry.put_blob(digest, size, content, told)

    def put_manifest(self, body: bytes) -> None:
        self._registry.put_manifest(self._reference, body, OCI_MANIFEST)


class LayoutTarget:
    """See `Target`: a directory, a new one or one that is a layout already. Other images in it stay."""

    host = ""

    def __init__(self, path: str, tag: str) -> None:
        """:raises InvalidArgumentError: something else is there.
        :raises ConflictError: another push into it is under way."""
        self._path = path
        self._tag = tag
        self._made: list[str] = []
        """What is taken back unless the image is there in the end."""
        self._directory = -1
        try:
            with _writing(path):
                self._lock()
                self._prepare()
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        self._make_directory(self._path)
        self._directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(
                f"cannot push to {self._path}: another push into it is under way", path=self._path
            ) from None
        if os.listdir(self._path) and not os.path.isfile(os.path.join(self._path, "oci-layout")):
            raise InvalidArgumentError(
                f"cannot push to {self._path}: it is no OCI layout and not empty", field="destination"
            )

    def _prepare(self) -> None:
        """Take away what a push has left that died, and make what a layout has. The mark first: what dies after it
        leaves a layout."""
        mark = os.path.join(self._path, "oci-layout")
        if not os.path.exists(mark):
            self._put(mark, _MARK)
        blobs = os.path.join(self._path, "blobs")
        self._blobs = os.path.join(blobs, "sha256")
        for directory in (blobs, self._blobs):
            self._make_directory(directory)
        for directory in (self._path, self._blobs):
            for name in os.listdir(directory):
                if _PART.fullmatch(name):
                    os.unlink(os.path.join(directory, name))

    def has_blob(self, digest: str, beside: str = "") -> bool:
        return os.path.isfile(self._blob(digest))

    def put_blob(self, digest: str, size: int, path: str, told: Told) -> None:
        with _writing(self._path), open(path, "rb", buffering=0) as content:
            self._write(self._blob(digest), lambda: content.read(_PIECE), told)

    def put_manifest(self, body: bytes) -> None:
        digest = hashlib.sha256(body).hexdigest()
        blob = self._blob(f"sha256:{digest}")
        with _writing(self._path):
            if not os.path.exists(blob):
                self._put(blob, body)
            sync_directory(self._blobs)
            index = os.path.join(self._path, "index.json")
            self._put(index, _index(self._others(index), digest, len(body), self._tag))
            self._made.clear()
            sync_directory(self._path)

    def close(self) -> None:
        for path in reversed(self._made):
            try:
                if os.path.isdir(path):
                    os.rmdir(path)
                else:
                    os.unlink(path)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise  # somebody else has cleaned up, or has put something beside it
        self._made.clear()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def _blob(self, digest: str) -> str:
        return os.path.join(self._blobs, digest.removeprefix("sha256:"))

    def _make_directory(self, path: str) -> None:
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            if not os.path.isdir(path):
                raise InvalidArgumentError(f"cannot push to {path}: it is no directory", field="destination") from None
        else:
            self._made.append(path)

    def _others(self, index: str) -> list[dict[str, object]]:
        """The images there beside the one of this name."""
        try:
            with open(index, "rb") as file:
                body = file.read(MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            return []
        if not isinstance(parse_manifest(body, index), Index):
            raise broken(index, "it is no index")
        manifests: list[dict[str, object]] = msgspec.json.decode(body)["manifests"]
        return [each for each in manifests if _name_of(each) != self._tag]

    def _put(self, path: str, body: bytes) -> None:
        pieces = iter((body, b""))
        self._write(path, lambda: next(pieces), lambda _: None)

    def _write(self, path: str, read: Callable[[], bytes], told: Told) -> None:
        """A file that appears under its name when it is whole."""
        part = f"{path}.{secrets.token_hex(6)}.part"
        try:
            with open(part, "xb", buffering=0) as file:
                while piece := read():
                    _write_all(file.fileno(), piece)
                    told(len(piece))
                os.fsync(file.fileno())
            new = not os.path.exists(path)
            os.rename(part, path)
        except BaseException:
            if os.path.exists(part):
                os.unlink(part)
            raise
        if new:
            self._made.append(path)


class ArchiveTarget:
    """See `Target`: a layout as a new file. Its parts lie in `directory` until it is written."""

    host = ""

    def __init__(self, path: str, tag: str, directory: str, pulse: Callable[[], None]) -> None:
        """`pulse` is called while the archive is written, about each MiB, and may raise.

        :raises AlreadyExistsError: there is something of that name.
        :raises FileOperationError: there is no directory for it.
        """
        with _writing(path):
            os.close(os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        if os.path.lexists(path):
            raise AlreadyExistsError(f"cannot push to {path}: it exists, and an archive is written anew", path=path)
        self._path = path
        self._tag = tag
        self._directory = directory
        self._pulse = pulse
        self._blobs: dict[str, tuple[str, int]] = {}

    def has_blob(self, digest: str, beside: str = "") -> bool:
        return digest in self._blobs

    def put_blob(self, digest: str, size: int, path: str, told: Told) -> None:
        kept = os.path.join(self._directory, digest.replace(":", "-"))
        os.link(path, kept)
        self._blobs[digest] = (kept, size)

    def put_manifest(self, body: bytes) -> None:
        digest = hashlib.sha256(body).hexdigest()
        manifest = os.path.join(self._directory, "manifest")
        with open(manifest, "xb") as file:
            file.write(body)
        self._blobs[f"sha256:{digest}"] = (manifest, len(body))
        part = f"{self._path}.{secrets.token_hex(6)}.part"
        try:
            with _writing(self._path):
                with open(part, "xb") as archive:
                    for number, piece in enumerate(tar_pieces(MemorySource(self._items(digest, len(body))))):
                        archive.write(piece)
                        if number % _PIECES_A_PULSE == 0:
                            self._pulse()
                    archive.flush()
                    os.fsync(archive.fileno())
                self._appear(part)
                sync_directory(os.path.dirname(self._path))
        finally:
            if os.path.exists(part):
                os.unlink(part)

    def _appear(self, part: str) -> None:
        try:
            os.link(part, self._path)
        except FileExistsError:
            raise AlreadyExistsError(f"cannot push to {self._path}: it exists by now", path=self._path) from None

    def close(self) -> None:
        """What was gathered goes with the directory."""

    def _items(self, digest: str, size: int) -> list[Entry]:
        index = os.path.join(self._directory, "index.json")
        mark = os.path.join(self._directory, "oci-layout")
        for path, body in ((index, _index([], digest, size, self._tag)), (mark, _MARK)):
            with open(path, "xb") as file:
                file.write(body)
        files = [("oci-layout", mark), ("index.json", index)]
        files += [("blobs/" + name.replace(":", "/"), path) for name, (path, _) in sorted(self._blobs.items())]
        folders = [Entry(name, Node(stat.S_IFDIR | 0o755)) for name in (b"blobs", b"blobs/sha256")]
        return [
            *folders,
            *(Entry(name.encode(), Node(stat.S_IFREG | 0o644), _FileContent(path)) for name, path in files),
        ]


class _FileContent:
    """See `Content`; the file is opened for each read, since a source may have many."""

    extents: tuple[Extent, ...] | None = None

    def __init__(self, path: str) -> None:
        self._path = path
        self._at = 0
        self.size = os.stat(path).st_size

    def readinto(self, view: memoryview) -> int:
        with open(self._path, "rb", buffering=0) as file:
            got = os.preadv(file.fileno(), [view], self._at)
        self._at += got
        return got


def layout_target(place: FilePlace, tag: str, directory: str, pulse: Callable[[], None]) -> Target:
    """`directory` and `pulse`: see `ArchiveTarget`.

    :raises InvalidArgumentError: images are not pushed to such a place."""
    if place.scheme == "oci":
        return LayoutTarget(place.path, place.tag or tag)
    if place.scheme == "oci-archive":
        return ArchiveTarget(place.path, place.tag or tag, directory, pulse)
    raise InvalidArgumentError(
        f"cannot push to {place}: it must be docker://HOST/NAME:TAG, oci:DIR or oci-archive:FILE", field="destination"
    )


def _index(others: list[dict[str, object]], digest: str, size: int, tag: str) -> bytes:
    mine = {
        "mediaType": OCI_MANIFEST,
        "digest": f"sha256:{digest}",
        "size": size,
        "annotations": {NAME: tag},
    }
    return msgspec.json.encode({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [*others, mine]})


def _name_of(manifest: dict[str, object]) -> object:
    annotations = manifest.get("annotations")
    return annotations.get(NAME) if isinstance(annotations, dict) else None


def _write_all(descriptor: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(descriptor, view) :]


@contextmanager
def _writing(path: str) -> Iterator[None]:
    """What the file system has against a push to `path` as our errors."""
    try:
        with disk_full.typed(f"push to {path}", path):
            yield
    except OSError as error:
        raise FileOperationError(
            f"cannot push to {path}: {error.strerror}", path=path, errno=error.errno or 0
        ) from error
