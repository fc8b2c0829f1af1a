"""A layer read on demand, in small: a reader of a mounted file is held until its bytes are in the file below."""

from __future__ import annotations

import errno
import os
import select

from .. import fanotify, mounts
from ..specimen import FILE_BYTES, FILE_NAME, erofs_with_file

_CONTENT = b"on demand".ljust(FILE_BYTES, b".")


def pre_content(directory: str) -> str:
    """Called in a mount namespace of its own."""
    metadata, data, root = (os.path.join(directory, name) for name in ("metadata", "data", "root"))
    with open(metadata, "wb") as file:
        file.write(erofs_with_file())
    with open(data, "wb") as file:
        file.truncate(FILE_BYTES)
    os.mkdir(root)
    group = fanotify.open_group()
    fanotify.mark(group, data)
    mount = mounts.mount_erofs(metadata, data, method="files")
    mounts.attach(mount, root)
    os.close(mount)
    try:
        _read_and_fill(group, os.path.join(root, FILE_NAME))
    finally:
        mounts.umount(root)
    return "a reader of a mounted layer waited until its bytes had come, and got an error where they had not"


def _read_and_fill(group: int, path: str) -> None:
    # the first answer is a refusal, which the kernel may ask again after
    for refusal in (errno.EIO, 0):
        reader = os.fork()
        if reader == 0:
            # the group must end with its one holder, or the read behind the answered one waits for ever
            os.close(group)
            os._exit(_outcome(path))
        while (ended := os.waitpid(reader, os.WNOHANG))[0] == 0:
            select.select([group], [], [], 0.01)
            event = fanotify.read_event(group)
            if event is None:
                continue
            if not refusal:
                os.pwrite(event.descriptor, _CONTENT[event.offset :], event.offset)
            fanotify.answer(group, event.descriptor, refusal)
            os.close(event.descriptor)
        if os.waitstatus_to_exitcode(ended[1]) != refusal:
            raise RuntimeError(f"a reader ended with {os.waitstatus_to_exitcode(ended[1])} and not {refusal}")


def _outcome(path: str) -> int:
    """0, or how reading failed."""
    try:
        with open(path, "rb") as file:
            return 0 if file.read() == _CONTENT else 255
    except OSError as error:
        return error.errno or 254
