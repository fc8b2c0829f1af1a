"""The store of one node: the catalogue and the files of its layers.

    STATE/catalogue.db
    STATE/layers/<64 hex digits>/{metadata.erofs, data.erofs, layer.json}
    STATE/building/<random>/          a build under way; gone when it ends
    STATE/catalogue.room              given back when the disk is full, so that images can be removed
    STATE/store.lock                  held shared by everyone who has the store open

A layer appears by one rename of its whole directory, after its files are on the disk, and only then in the catalogue;
between the two it is kept by whoever took it (`Taken`). What a crash leaves is therefore a directory below `building`,
or a layer that the catalogue does not know; the next one who opens the store alone removes both.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import msgspec

from dsec.linux.removal import remove_tree
from libdsec.protocol.errors import CapacityError, ConflictError, ImageNotFoundError

from .build import LayerBuild
from .catalogue import Catalogue, Statement, layer_directory
from .digest import LAYER_GENERATION
from .durable import sync_directory
from .records import DATA_NAME, METADATA_NAME, RECORD_NAME, RECORD_SCHEMA, ImageRecord, LayerFile, LayerRecord
from .reserve import Reserve

T = TypeVar("T")


class LocalStore:
    """Calls are safe from several threads. Opening it removes what earlier crashes left."""

    def __init__(self, state_dir: str) -> None:
        self.state_dir = os.path.abspath(state_dir)
        self.layers_dir = os.path.join(self.state_dir, "layers")
        self._building = os.path.join(self.state_dir, "building")
        for directory in (self.state_dir, self.layers_dir, self._building):
            os.makedirs(directory, 0o700, exist_ok=True)
        self._files = threading.Lock()
        self._kept: Counter[str] = Counter()
        """Layers that somebody will name in an image yet."""
        self._lock_file = os.open(
            os.path.join(self.state_dir, "store.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            self.catalogue = Catalogue(os.path.join(self.state_dir, "catalogue.db"), self.layers_dir)
            self._collect_if_alone()
            self._reserve = Reserve(os.path.join(self.state_dir, "catalogue.room"))
            self._reserve.fill()
        except BaseException:
            os.close(self._lock_file)
            raise

    def close(self) -> None:
        self.catalogue.close()
        os.close(self._lock_file)

    @property
    def graves_dir(self) -> str:
        """Where what is taken away may go first: on the layers' file system, emptied by who opens the store alone."""
        return self._building

    @contextmanager
    def build_directory(self) -> Iterator[str]:
        """A fresh directory on the file system of the layers, removed at the end with what is left in it, unless it has
        become a layer's (`Taken.take`)."""
        path = os.path.join(self._building, secrets.token_hex(12))
        os.mkdir(path, 0o700)
        try:
            yield path
        finally:
            remove_tree(path)

    def publish(self, image: Callable[[LayerRecord], ImageRecord], build: LayerBuild, made_by: str = "") -> ImageRecord:
        """Take a finished layer into the store and publish an image made from its record. `made_by`: how, in words.

        A layer that is there already is used, since its digest says that it is the same.
        :raises AlreadyExistsError: the image's name is taken; the layer is gone again.
        """
        with self.taking() as taken:
            return self.publish_image(image(taken.take(build)), (made_by,))

    @contextmanager
    def taking(self) -> Iterator[Taken]:
        """Take layers one after another, and publish what is made of them before the end: those that no image has
        then are gone again."""
        taken = Taken(self)
        try:
            yield taken
        finally:
            taken.let_go()

    @contextmanager
    def keeping(self, ref: str) -> Iterator[ImageRecord]:
        """An image whose files stay until the end, also when it is removed meanwhile.

        :raises ImageNotFoundError: no such image.
        """
        with self.taking() as taken:
            image = self.catalogue.get(ref)
            for layer in image.layers:
                if taken.find(layer.digest) is None:
                    raise ImageNotFoundError(f"cannot use image {ref}: it was removed in this moment", ref=ref)
            yield image

    def unless_kept(self, digest: str, work: Callable[[], T]) -> T | None:
        """What `work` returns, which takes something of a layer away and is quick: nobody begins to keep the layer
        meanwhile. None, and no work, where somebody keeps it."""
        with self._files:
            return None if self._kept[digest] else work()

    def publish_image(
        self, image: ImageRecord, made_by: Sequence[str] = (), beside: Sequence[Statement] = ()
    ) -> ImageRecord:
        """Publish an image of layers that are kept (`taking`) or that other images have. `made_by` says of each of its
        layers, in words, how it came to be; of one that is known already what was said first stays.
        `beside`: as `Catalogue.publish`.

        :raises AlreadyExistsError: its name is taken.
        """
        with self._files:
            self.catalogue.publish(image, made_by, beside)
        return image

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
            try:
                orphans = self.catalogue.remove(ref, check)
            except CapacityError:
                if not self._reserve.give_back():
                    raise
                orphans = self.catalogue.remove(ref, check)
            self._remove_unknown(orphans)
            self._reserve.fill()
        return orphans

    def _add(self, file: LayerFile, files: Mapping[str, str], within: str | None) -> LayerRecord:
        """The files were synced by whoever made them; here the directory is made whole, given its name, and synced.

        In this order, since the first sync then writes all of it, and a layer whose names a crash has half lost is not
        in the catalogue yet."""
        target = layer_directory(self.layers_dir, file.digest)
        if not os.path.isdir(target):
            with self.build_directory() if within is None else nullcontext(within) as whole:
                os.chmod(whole, 0o755)
                for name, path in files.items():
                    os.rename(path, os.path.join(whole, name))
                with open(os.path.join(whole, RECORD_NAME), "wb") as record:
                    record.write(msgspec.json.encode(file))
                    record.flush()
                    os.rename(whole, target)
                    os.fsync(record.fileno())
            sync_directory(target)
            sync_directory(self.layers_dir)
        return LayerRecord(
            file.digest,
            os.path.join(target, METADATA_NAME),
            os.path.join(target, DATA_NAME),
            file.metadata_bytes,
            file.data_bytes,
            file.files,
            file.metadata_digest.hex(),
        )

    def _remove_unknown(self, digests: list[str] | tuple[str, ...]) -> None:
        """Remove layers unless the catalogue has them. A rename first: half a layer never has a layer's name."""
        for digest in digests:
            if self._kept[digest] or self.catalogue.has_layer(digest):
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


class Taken:
    """Layers that no removal takes away while `LocalStore.taking` is not left."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._digests: list[str] = []

    def take(self, build: LayerBuild, within: str | None = None) -> LayerRecord:
        """A finished layer, into the store. One that is there already is used. `within`: the `build_directory` that it
        lies in, where nothing else does; it may become the layer's own."""
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
        return self.add(file, {METADATA_NAME: build.metadata_path, DATA_NAME: build.data_path}, within)

    def add(self, file: LayerFile, files: Mapping[str, str], within: str | None = None) -> LayerRecord:
        """A layer of files, name → path on this file system, synced: at least its metadata image. Its data may be
        missing where `remote.json` says how it is had. The files are moved, unless there is such a layer. `within`: as
        `take`."""
        with self._store._files:
            self._keep(file.digest)
            return self._store._add(file, files, within)

    def find(self, digest: str) -> LayerRecord | None:
        """A layer that an image has, kept from now on; None where none has it."""
        with self._store._files:
            try:
                layer = self._store.catalogue.layer(digest)
            except ImageNotFoundError:
                return None
            self._keep(digest)
            return layer

    def share(self, layer: LayerRecord) -> LayerRecord:
        """A layer that somebody else has taken and has not let go yet, kept from now on by this one too."""
        with self._store._files:
            self._keep(layer.digest)
        return layer

    def let_go(self) -> None:
        """Those that no image has are removed. Again is fine."""
        with self._store._files:
            digests, self._digests = self._digests, []
            self._store._kept.subtract(digests)
            self._store._kept += Counter()  # forgets those that nobody keeps
            self._store._remove_unknown(digests)

    def _keep(self, digest: str) -> None:
        self._store._kept[digest] += 1
        self._digests.append(digest)
