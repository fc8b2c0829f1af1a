"""A full disk as what it is."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from libdsec.protocol.errors import CapacityError


@contextmanager
def typed(doing: str, directory: str) -> Iterator[None]:
    """Errors of a file system without room, or of a file that may not grow, become `CapacityError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise CapacityError(
            f"cannot {doing}: no room in {directory}: {os.strerror(error.errno)}", path=directory, errno=error.errno
        ) from error
