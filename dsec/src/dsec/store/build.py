"""Building a layer: a source in, a metadata image, a data file and their digests out.

Two threads: the caller's reads the source and packs chunks, another hashes and writes them; where the caller's would
wait for that, it does so as well.
What is being built has names ending in `.partial`; the data file gets its name first and the metadata image last, both
after fsync, so a metadata image under its own name always has its data beside it. After an error nothing of the build
is left.

Memory: 5.5 MiB of buffers whatever the input, and 0.9 KB for each name in the tree.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from dsec.store import disk_full
from dsec.store.digest import STORE_CHUNK_SIZE, layer_digest
from dsec.store.durable import sync_directory
from dsec.store.erofs.chunks import ChunkWriter
from dsec.store.erofs.data import DataFile
from dsec.store.erofs.format import BLOCK_SIZE
from dsec.store.erofs.metadata import seal, unsealed_metadata
from dsec.store.rules import IdMap, Rules
from dsec.store.sources.base import Entry, HardLink, Opaque, Source
from dsec.store.tree import Tree
from libdsec.protocol.errors import AlreadyExistsError, ConflictError, InvalidArgumentError

METADATA_SUFFIX = ".erofs"
DATA_SUFFIX = ".data"
PARTIAL_SUFFIX = ".partial"


@dataclass(frozen=True, slots=True)
class LayerBuild:
    """A finished layer. Sizes are in bytes."""

    metadata_path: str
    data_path: str
    metadata_size: int
    data_size: int
    metadata_digest: bytes
    """Raw SHA-256 of the metadata image."""
    chunk_size: int
    chunk_digests: tuple[bytes, ...]
    """Raw BLAKE3 of each chunk of the data file; the last chunk may be short."""
    layer_digest: str
    inodes: int
    files: int
    """Regular files, each counted once however many names it has."""
    content_bytes: int
    """Sum of the lengths of the regular files, holes included."""
    implied: tuple[bytes, ...] = ()
    """Directories that the source has names in but does not describe; parents first."""


def build_layer(
    source: Source,
    out_dir: str | os.PathLike[str],
    name: str,
    *,
    progress: Callable[[int], None] | None = None,
    remap: IdMap | None = None,
    keep_overlay: bool = False,
    sync_names: bool = True,
) -> LayerBuild:
    """Write `NAME.erofs` and `NAME.data` into `out_dir`, an existing directory.

    `progress` is called on the calling thread with the bytes of content done so far, about once a MiB. `remap` maps
    the source's user and group ids, `keep_overlay` keeps `trusted.overlay.*` attributes (see `rules.Rules`). Contents
    are on the disk afterwards, and with `sync_names` the names too, which a store that moves the files need not have.

    Raises `InvalidArgumentError` when the source cannot become a layer (the member is named), `FileOperationError`
    when reading it fails, `QuotaExceededError` when it has more data than a layer may have, `AlreadyExistsError` when
    there is such a layer, `ConflictError` when another build of that name is under way, `CapacityError` when the disk
    is full. An exception of `progress` ends the build. In each case neither file exists afterwards under its own or its
    partial name.
    """
    if not name or "/" in name or "\0" in name or name.startswith("."):
        raise InvalidArgumentError(f"cannot build layer: {name!r} is not a file name", name=name)
    directory = os.fspath(out_dir)
    metadata_path = os.path.join(directory, name + METADATA_SUFFIX)
    data_path = os.path.join(directory, name + DATA_SUFFIX)
    rules = Rules(remap, keep_overlay=keep_overlay)
    with ExitStack() as stack:
        stack.enter_context(disk_full.typed("build layer", directory))
        metadata_fd = stack.enter_context(_partial(metadata_path, exclusive=True))
        if os.path.lexists(metadata_path):
            raise AlreadyExistsError(f"cannot build layer: {metadata_path} exists", path=metadata_path)
        data_fd = stack.enter_context(_partial(data_path, exclusive=False))
        tree = Tree()
        with ChunkWriter(data_fd) as writer:
            data = DataFile(writer, progress)
            _read(source, tree, data, rules)
            data_size = data.finish()
            image, inodes = unsealed_metadata(tree, data_size // BLOCK_SIZE)
            digests = writer.finish(data_size)
            seal(image, b"".join(digests))
            _write_all(metadata_fd, image)
            built = finished(
                image,
                digests,
                metadata_path=metadata_path,
                data_path=data_path,
                data_size=data_size,
                inodes=inodes,
                files=_count_files(tree),
                content_bytes=data.content_bytes,
                implied=tuple(sorted(tree.implied)),
            )
            os.fsync(metadata_fd)
            writer.sync()
        _publish(directory, [data_path, metadata_path], sync_names)
    return built


def finished(
    image: bytearray,
    chunk_digests: tuple[bytes, ...],
    *,
    metadata_path: str,
    data_path: str,
    data_size: int,
    inodes: int,
    files: int,
    content_bytes: int,
    implied: tuple[bytes, ...] = (),
) -> LayerBuild:
    """The layer of a metadata image and of a data file whose chunks have these digests, with what follows from them."""
    metadata_digest = hashlib.sha256(image).digest()
    return LayerBuild(
        metadata_path=metadata_path,
        data_path=data_path,
        metadata_size=len(image),
        data_size=data_size,
        metadata_digest=metadata_digest,
        chunk_size=STORE_CHUNK_SIZE,
        chunk_digests=chunk_digests,
        layer_digest=layer_digest(metadata_digest, chunk_digests),
        inodes=inodes,
        files=files,
        content_bytes=content_bytes,
        implied=implied,
    )


def _read(source: Source, tree: Tree, data: DataFile, rules: Rules) -> None:
    with closing(source.entries()) as entries:
        for entry in entries:
            if isinstance(entry, Entry):
                node = entry.node
                rules.apply(entry.path, node)
                tree.insert(entry.path, node)
                content = entry.content
                if content is not None:
                    node.runs = data.place(entry.path, content)
                    node.size = content.size
            elif isinstance(entry, HardLink):
                tree.link(entry.path, entry.target)
            elif isinstance(entry, Opaque):
                tree.hide_below(entry.path)
            else:
                tree.hide(entry.path)


def _count_files(tree: Tree) -> int:
    files: set[int] = set()
    pending = [tree.root]
    while pending:
        for node in (pending.pop().children or {}).values():
            if node.children is not None:
                pending.append(node)
            elif stat.S_ISREG(node.mode):
                files.add(id(node))
    return len(files)


@contextmanager
def _partial(path: str, *, exclusive: bool) -> Iterator[int]:
    """A new, empty `path`.partial, open for writing, removed at the end unless it was renamed.

    An `exclusive` one is locked: the kernel drops the lock of a builder that died, and the next takes over its file.
    """
    partial = path + PARTIAL_SUFFIX
    while True:
        fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            if exclusive:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(fd, partial):
                os.ftruncate(fd, 0)
                break
        except BlockingIOError:
            os.close(fd)
            raise ConflictError(f"cannot build layer: {path} is being built", path=path) from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    try:
        yield fd
    finally:
        if _is_at(fd, partial):
            os.unlink(partial)
        os.close(fd)


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _write_all(fd: int, content: bytearray) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _publish(directory: str, paths: list[str], sync_names: bool) -> None:
    """Give the finished, durable files their names; all or, after an error, none."""
    named: list[str] = []
    try:
        for path in paths:
            os.rename(path + PARTIAL_SUFFIX, path)
            named.append(path)
        if sync_names:
            sync_directory(directory)
    except BaseException:
        for path in named:
            os.unlink(path)
        raise
