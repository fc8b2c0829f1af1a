"""The ground a bench stands on: everything it needs, and its end."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec

from dsec.environments.image import HostImage, host_image
from dsec.linux.mounts import attach, mount_erofs, umount
from dsec.store.catalogue import Catalogue
from libdsec import DSecClient
from libdsec.protocol.errors import ImageNotFoundError, InvalidArgumentError, PermissionDeniedError

from .native import Native, compile_native
from .node import Node, OwnNode, UsersNode, unmount_below

CATALOGUE = "catalogue.db"

Say = Callable[[str], None]
"""Told what is being done, for a person who waits."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    image: str | None = None
    """None: of the host's own distribution."""
    private: bool = True
    """A node of our own; False measures the one that DSEC_URL names or the machine has."""
    scratch: str = "/var/tmp"
    """Where the scratch directory is made: it must be on the kind of disk that counts."""
    state_dir: str = "/var/lib/dsec"
    """The user's state, from which an image that is there already is copied instead of being built anew."""


class Ground(msgspec.Struct, frozen=True):
    directory: Path
    lower: Path
    """The image's tree, mounted from the layers that our sandboxes use."""
    native: Native
    node: Node
    image: str
    load: float


@contextlib.contextmanager
def _mounted(state_dir: Path, image: str, where: Path) -> Iterator[Path]:
    """The tree of an image of a store."""
    catalogue = Catalogue(str(state_dir / CATALOGUE))
    try:
        layers = catalogue.get(image).layers
    finally:
        catalogue.close()
    if len(layers) != 1:
        raise InvalidArgumentError(f"cannot measure with {image}: it has {len(layers)} layers; name a base image")
    where.mkdir()
    mount = mount_erofs(layers[0].metadata, layers[0].data, label=image)
    try:
        attach(mount, str(where))
    finally:
        os.close(mount)
    try:
        yield where
    finally:
        umount(str(where), lazy=True)


async def _build(client: DSecClient, image: HostImage, users: Path, where: Path, say: Say) -> None:
    """Publish the image on a node of our own: from the user's store if it is there, else from its release."""
    if (users / CATALOGUE).exists():
        with contextlib.suppress(ImageNotFoundError), _mounted(users, image.ref, where) as tree:
            say(f"copying image {image.ref}")
            await client.build_image(image.ref, f"dir:{tree}")
            return
    if not image.source:
        raise ImageNotFoundError(
            f"cannot measure with {image.ref}: there is none in {users}; `dsec image ls` lists all"
        )
    say(f"building image {image.ref}")
    await client.build_image(image.ref, image.source, packages=image.packages)


@contextlib.asynccontextmanager
async def ground(options: Options, say: Say) -> AsyncIterator[Ground]:
    """Everything of the ground is gone at the end, however that comes.

    :raises PermissionDeniedError: not root.
    """
    if os.geteuid() != 0:
        raise PermissionDeniedError("cannot measure: namespaces and mounts need root")
    image = host_image() if options.image is None else HostImage(options.image, "")
    load = os.getloadavg()[0]
    directory = Path(tempfile.mkdtemp(prefix="dsec-bench-", dir=options.scratch))
    try:
        node: Node = OwnNode(directory) if options.private else UsersNode(Path(options.state_dir))
        if options.private:
            async with node.running() as client:
                await _build(client, image, Path(options.state_dir), directory / "users", say)
        with _mounted(node.state_dir, image.ref, directory / "lower") as lower:
            floor = directory / "floor-scratch"
            floor.mkdir()
            say("compiling the floor")
            yield Ground(directory, lower, await compile_native(directory, lower, floor), node, image.ref, load)
    finally:
        unmount_below(directory)
        shutil.rmtree(directory)
