"""Building images: a release, a directory or a tar becomes one layer and a published name.

Blocking; the caller runs it in a thread. Either the image is published and durable, or nothing of it is left.
"""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from libdsec.protocol.environment import BuildProgress, ImageBuildRequest, ImageInfo, parse_ref
from libdsec.protocol.errors import DSecError, InvalidArgumentError

from . import apt
from .build import LayerBuild, build_layer
from .catalogue import already_exists
from .local import LocalStore
from .records import ImageRecord, LayerRecord
from .release import ReleaseStream
from .sources import DirectorySource, Source, TarSource

Progress = Callable[[BuildProgress], None]
_LAYER = "layer"


class BuildCancelledError(Exception):
    """The caller's own wish; outside the tree, it never goes over the wire."""


class Cancellation:
    """Set from another thread, it ends a build soon: at the next MiB, or at once while a release is fetched."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._stop: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def cancel(self) -> None:
        with self._lock:
            self._asked.set()
            if self._stop is not None:
                self._stop()

    def check(self) -> None:
        if self._asked.is_set():
            raise BuildCancelledError("the build was cancelled")

    @contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """Within it, `cancel` also calls `stop`."""
        with self._lock:
            self._stop = stop
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._stop = None


def build_image(
    store: LocalStore, request: ImageBuildRequest, progress: Progress, cancellation: Cancellation | None = None
) -> ImageInfo:
    """Build and publish.

    :raises InvalidArgumentError: the request or the source is wrong; names what.
    :raises AlreadyExistsError: the name is taken (asked before anything is fetched).
    :raises CapacityError: the disk is full.
    :raises UnsupportedOperationError: a program that it needs is missing.
    :raises BuildCancelledError: as asked for.
    """
    cancellation = cancellation or Cancellation()
    parse_ref(request.ref)
    scheme, _, where = request.source.partition(":")
    build = _SOURCES.get(scheme)
    if build is None or not where:
        raise InvalidArgumentError(
            f"cannot build from {request.source[:200]!r}: it must be release:NAME, dir:/PATH or tar:/PATH",
            field="source",
        )
    if scheme != "release" and (request.packages or request.mirror is not None):
        raise InvalidArgumentError(
            f"cannot build {request.ref}: packages and a mirror go with release:NAME only", field="packages"
        )
    if store.catalogue.exists(request.ref):
        raise already_exists(request.ref)
    with store.build_directory() as directory:
        progress(BuildProgress("fetch"))
        layer = build(_Build(directory, request, where, progress, cancellation))
        progress(BuildProgress("publish", layer.content_bytes, layer.files))
        cancellation.check()

        def image(record: LayerRecord) -> ImageRecord:
            return ImageRecord(request.ref, request.kind, (record,), request.config, time.time())

        return store.publish(image, layer).info()


class _Build:
    """One build under way."""

    def __init__(
        self, directory: str, request: ImageBuildRequest, where: str, progress: Progress, cancellation: Cancellation
    ) -> None:
        self.directory = directory
        self.request = request
        self.where = where
        self.cancellation = cancellation
        self._progress = progress

    def write(self, source: Source) -> LayerBuild:
        return build_layer(source, self.directory, _LAYER, progress=self._advance)

    def _advance(self, done: int) -> None:
        self.cancellation.check()
        self._progress(BuildProgress("write", done))


def _from_directory(build: _Build) -> LayerBuild:
    path = _absolute(build.where)
    if not os.path.isdir(path):
        raise InvalidArgumentError(f"cannot build from {path}: there is no such directory", field="source")
    return build.write(DirectorySource(path))


def _from_tar(build: _Build) -> LayerBuild:
    path = _absolute(build.where)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidArgumentError(f"cannot build from {path}: {error.strerror}", field="source") from None
    with open(descriptor, "rb", buffering=0) as file:
        return build.write(TarSource(file))


def _from_release(build: _Build) -> LayerBuild:
    host: apt.HostDistribution | None
    try:
        host = apt.host_distribution()
    except DSecError:
        if build.where == "host" or build.request.mirror is None:
            raise
        host = None
    release = host.codename if build.where == "host" and host is not None else build.where
    sources = apt.sources_for(release, build.request.mirror, host, apt.host_sources())
    made = ReleaseStream(release, sources, build.request.packages, build.directory, _epoch())
    with made as stream, build.cancellation.stopping(stream.kill):
        try:
            layer = build.write(TarSource(stream.file))
        except InvalidArgumentError as error:
            build.cancellation.check()
            # a tar that ends early is not the fault to report when its writer says what went wrong
            raise stream.failure() or error from error
        build.cancellation.check()
        if (failure := stream.failure()) is not None:
            raise failure
    return layer


_SOURCES: dict[str, Callable[[_Build], LayerBuild]] = {
    "release": _from_release,
    "dir": _from_directory,
    "tar": _from_tar,
}


def _absolute(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise InvalidArgumentError(f"cannot build from {path[:200]!r}: the path must be absolute", field="source")
    return path


def _epoch() -> int:
    """Time of the files that the build itself makes: $SOURCE_DATE_EPOCH, else the start of the day."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if given.isdigit():
        return int(given)
    today = datetime.datetime.now(datetime.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return int(today.timestamp())


__all__ = ["BuildCancelledError", "Cancellation", "build_image"]
