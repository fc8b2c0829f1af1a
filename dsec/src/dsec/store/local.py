"""The store of one node: the catalogue and the files of its layers.

    STATE/catalogue.db
    STATE/layers/<64 hex digits>/{metadata.erofs, data.erofs, layer.json}
    STATE/building/<random>/          a build under way; gone when it ends
    STATE/store.lock                  held shared by everyone who has the store open

A layer appears by one rename of its whole directory, after its files are on the disk, and only then in the catalogue.
What a crash leaves is therefore a directory below `building`, or a layer that the catalogue does not know; the next
one who opens the store alone removes both.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from dsec.linux.removal import remove_tree
from libdsec.protocol.errors import ConflictError

from .build import LayerBuild
from .catalogue import Catalogue, layer_directory
from .digest import LAYER_GENERATION
from .records import DATA_NAME, METADATA_NAME, RECORD_NAME, RECORD_SCHEMA, ImageRecord, LayerFile, LayerRecord


class LocalStore:
    """Calls are safe from several threads. Opening it removes what earlier crashes left."""

    def __init__(self, state_dir: str) -> None:
        self.state_dir = os.path.abspath(state_dir)
        self.layers_dir = os.path.join(self.state_dir, "layers")
        self._building = os.path.join(self.state_dir, "building")
        for directory in (self.state_dir, self.layers_dir, self._building):
            os.makedirs(directory, 0o700, exist_ok=True)
        self._files = threading.Lock()
        self._lock_file = os.open(
            os.path.join(self.state_dir, "store.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            self.catalogue = Catalogue(os.path.join(self.state_dir, "catalogue.db"), self.layers_dir)
            self._collect_if_alone()
        except BaseException:
            os.close(self._lock_file)
            raise

    def close(self) -> None:
        self.catalogue.close()
        os.close(self._lock_file)

    @contextmanager
    def build_directory(self) -> Iterator[str]:
        """A fresh directory on the file system of the layers, removed at the end with what is left in it."""
        path = os.path.join(self._building, secrets.token_hex(12))
        os.mkdir(path, 0o700)
        try:
            yield path
        finally:
            remove_tree(path)

    def publish(self, image: Callable[[LayerRecord], ImageRecord], build: LayerBuild) -> ImageRecord:
        """Take a finished layer into the store and publish an image made from its record.

        A layer that is there already is used, since its digest says that it is the same.
        :raises AlreadyExistsError: the image's name is taken; the layer is gone again.
        """
        with self._files:
            layer = self._take(build)
            record = image(layer)
            try:
                self.catalogue.publish(record)
            except BaseException:
                self._remove_unknown([layer.digest])
                raise
        return record

    def remove(self, ref: str, in_use: Callable[[str], bool]) -> tuple[str, ...]:
        """Remove an image and those of its layers that no other image has. Returns the digests of these.

        :raises ImageNotFoundError: no such image.
        :raises ConflictError: `in_use` says yes to one of those layers; nothing has changed.
        """

        def check(orphans: tuple[str, ...]) -> None:
            used = [digest for digest in orphans if in_use(digest)]
            if used:
                raise ConflictError(
                    f"cannot remove image {ref}: {len(used)} of its layers are in use by sandboxes; stop them first",
                    ref=ref,
                    layers=used,
                )

        with self._files:
            orphans = self.catalogue.remove(ref, check)
            self._remove_unknown(orphans)
        return orphans

    def _take(self, build: LayerBuild) -> LayerRecord:
        target = layer_directory(self.layers_dir, build.layer_digest)
        if not os.path.isdir(target):
            self._rename_into_place(build, target)
        return LayerRecord(
            build.layer_digest,
            os.path.join(target, METADATA_NAME),
            os.path.join(target, DATA_NAME),
            build.metadata_size,
            build.data_size,
            build.files,
            build.metadata_digest.hex(),
        )

    def _rename_into_place(self, build: LayerBuild, target: str) -> None:
        """The files were synced by the build; here the directory is made whole, synced, and given its name."""
        file = LayerFile(
            RECORD_SCHEMA,
            LAYER_GENERATION,
            build.layer_digest,
            build.metadata_digest,
            build.metadata_size,
            build.data_size,
            build.chunk_size,
            b"".join(build.chunk_digests),
            build.files,
        )
        with self.build_directory() as whole:
            os.chmod(whole, 0o755)
            os.rename(build.metadata_path, os.path.join(whole, METADATA_NAME))
            os.rename(build.data_path, os.path.join(whole, DATA_NAME))
            with open(os.path.join(whole, RECORD_NAME), "wb") as record:
                record.write(msgspec.json.encode(file))
                record.flush()
                os.fsync(record.fileno())
            _sync_directory(whole)
            os.rename(whole, target)
            _sync_directory(self.layers_dir)

    def _remove_unknown(self, digests: list[str] | tuple[str, ...]) -> None:
        """Remove layers unless the catalogue has them. A rename first: half a layer never has a layer's name."""
        known = self.catalogue.layer_digests()
        for digest in digests:
            if digest in known:
                continue
            grave = os.path.join(self._building, secrets.token_hex(12))
            try:
                os.rename(layer_directory(self.layers_dir, digest), grave)
            except FileNotFoundError:
                continue
            remove_tree(grave)

    def _collect_if_alone(self) -> None:
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK:
                raise
        else:
            for name in os.listdir(self._building):
                remove_tree(os.path.join(self._building, name))
            self._remove_unknown([f"sha256:{name}" for name in os.listdir(self.layers_dir)])
        fcntl.flock(self._lock_file, fcntl.LOCK_SH)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
