"""Errors of system calls name the call and what it was made on."""

import errno
from pathlib import Path

import pytest

from dsec.linux import KernelError, mounts
from dsec.linux.specimen import empty_erofs
from dsec.linux.syscalls import filesystem_magic, umount


def test_the_message_has_the_call_the_target_and_the_reason() -> None:
    error = KernelError(errno.EINVAL, "fsmount", "layer x", "erofs: bad magic")
    assert str(error) == "cannot fsmount layer x: Invalid argument [EINVAL] (erofs: bad magic)"
    assert isinstance(error, OSError)
    assert (error.errno, error.syscall, error.target) == (errno.EINVAL, "fsmount", "layer x")


def test_a_refused_call_raises_it(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="cannot umount"):
        umount(str(tmp_path))
    with pytest.raises(KernelError, match="cannot statfs") as caught:
        filesystem_magic(str(tmp_path / "none"))
    assert caught.value.errno == errno.ENOENT


def test_a_missing_layer_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"sha256:abc .*metadata\.erofs.* is missing") as caught:
        mounts.mount_erofs(str(tmp_path / "metadata.erofs"), None, label="sha256:abc")
    assert caught.value.errno == errno.ENOENT


def test_the_specimen_is_one_block() -> None:
    assert len(empty_erofs()) == 4096
    assert empty_erofs()[1024:1028] == b"\xe2\xe1\xf5\xe0"
