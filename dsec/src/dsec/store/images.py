"""Building images: a release, a directory or a tar becomes one layer and a published name.

Blocking; the caller runs it in a thread. Either the image is published and durable, or nothing of it is left.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass

from libdsec.protocol.environment import BuildProgress, ImageBuildRequest, ImageInfo, parse_ref
from libdsec.protocol.errors import (
    ImageNotFoundError,
    InvalidArgumentError,
    UnsupportedOperationError,
)

from . import apt, disk_full
from .build import LayerBuild, build_layer
from .catalogue import already_exists
from .local import LocalStore
from .origins import handed_on
from .records import ImageRecord, LayerRecord
from .release import ReleaseStream
from .sources import DirectorySource, Source, TarSource

Progress = Callable[[BuildProgress], None]
"""Called at least once a second while a release is fetched and once a MiB while a layer is written. What it raises
ends the build and comes out of it."""

_LAYER = "layer"


def build_image(store: LocalStore, request: ImageBuildRequest, progress: Progress) -> ImageInfo:
    """Build and publish.

    :raises InvalidArgumentError: the request or the source is wrong; names what.
    :raises ImageNotFoundError: there is no image that it is to be made from.
    :raises AlreadyExistsError: the name is taken (asked before anything is fetched).
    :raises CapacityError: the disk is full.
    :raises UnavailableError: the mirror could not be reached, or fetching ended in an error.
    :raises UnsupportedOperationError: a program that it needs is missing.
    """
    parse_ref(request.ref)
    scheme, _, where = request.source.partition(":")
    build = _SOURCES.get(scheme)
    if not where or (build is None and scheme != "image"):
        raise InvalidArgumentError(
            f"cannot build from {request.source[:200]!r}: it must be release:NAME, dir:/PATH, tar:/PATH, "
            "image:NAME:TAG or empty:/",
            field="source",
        )
    if scheme != "release" and (request.packages or request.mirror is not None):
        raise InvalidArgumentError(
            f"cannot build {request.ref}: packages and a mirror go with release:NAME only", field="packages"
        )
    if store.catalogue.exists(request.ref):
        raise already_exists(request.ref)
    if build is None:
        return _with_other_config(store, request, where)
    with disk_full.typed(f"build {request.ref}", store.state_dir), store.build_directory() as directory:
        progress(BuildProgress("fetch"))
        layer = build(_Build(directory, request, where, progress))
        progress(BuildProgress("publish", layer.content_bytes, layer.files))

        def image(record: LayerRecord) -> ImageRecord:
            return ImageRecord(request.ref, request.kind, (record,), request.config, time.time())

        return store.publish(image, layer, _made_by(request)).info()


def _with_other_config(store: LocalStore, request: ImageBuildRequest, where: str) -> ImageInfo:
    """The layers of an image under another name, with another configuration."""
    original = store.catalogue.get(where)
    with store.taking() as taken:
        if not all(taken.find(layer.digest) for layer in original.layers):
            raise ImageNotFoundError(f"cannot build from image {where}: it was removed meanwhile", ref=where)
        record = ImageRecord(request.ref, request.kind, original.layers, request.config, time.time(), where)
        return store.publish_image(record, beside=(handed_on(record.ref, (where,)),)).info()


def _made_by(request: ImageBuildRequest) -> str:
    return " ".join((f"build from {request.source}", *(f"with {package}" for package in request.packages)))


@dataclass(frozen=True)
class _Build:
    """One build under way."""

    directory: str
    request: ImageBuildRequest
    where: str
    progress: Progress

    def write(self, source: Source) -> LayerBuild:
        return build_layer(
            source, self.directory, _LAYER, progress=lambda done: self.progress(BuildProgress("write", done))
        )


def _from_directory(build: _Build) -> LayerBuild:
    path = _absolute(build.where)
    if not os.path.isdir(path):
        raise InvalidArgumentError(f"cannot build from {path}: there is no such directory", field="source")
    return build.write(DirectorySource(path))


def _from_tar(build: _Build) -> LayerBuild:
    path = _absolute(build.where)
    try:
        # a pipe without a writer would hold the open for ever
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidArgumentError(f"cannot build from {path}: {error.strerror}", field="source") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidArgumentError(f"cannot build from {path}: it is no regular file", field="source")
    with open(descriptor, "rb", buffering=0) as file:
        return build.write(TarSource(file))


def _from_release(build: _Build) -> LayerBuild:
    request = build.request
    host: apt.HostDistribution | None
    try:
        host = apt.host_distribution()
    except UnsupportedOperationError:
        if build.where == "host" or request.mirror is None:
            raise
        host = None
    release = host.codename if build.where == "host" and host is not None else build.where
    sources = apt.sources_for(release, request.mirror, host, apt.host_sources())
    with ReleaseStream(
        release, sources, request.packages, build.directory, lambda: build.progress(BuildProgress("fetch"))
    ) as stream:
        try:
            layer = build.write(TarSource(stream))
        except InvalidArgumentError as error:
            # a tar that ends early is not the fault to report when its writer says what went wrong
            failure = stream.failure() if stream.ended else None
            raise failure or error from error
        if (failure := stream.failure()) is not None:
            raise failure
    return layer


def _from_nothing(build: _Build) -> LayerBuild:
    """A root directory with nothing in it, the same on every node."""
    if build.where != "/":
        raise InvalidArgumentError(f"cannot build from empty:{build.where[:100]}: it is empty:/", field="source")
    root = os.path.join(build.directory, "root")
    os.mkdir(root)
    os.chmod(root, 0o755)
    os.utime(root, (0, 0))
    return build.write(DirectorySource(root))


_SOURCES: dict[str, Callable[[_Build], LayerBuild]] = {
    "release": _from_release,
    "dir": _from_directory,
    "tar": _from_tar,
    "empty": _from_nothing,
}


def _absolute(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise InvalidArgumentError(f"cannot build from {path[:200]!r}: the path must be absolute", field="source")
    return path
