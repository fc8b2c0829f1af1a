//! Mounts that lie in no tree yet: made or copied, restricted, then attached.

use std::os::fd::{AsFd, OwnedFd};

use rustix::mount::{
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, FsMountFlags, FsOpenFlags,
    MountAttrFlags, MoveMountFlags, OpenTreeFlags,
};
use rustix::path::Arg;

use crate::sys::{KernelError, On};

/// For file systems that hold no programs and no devices.
pub const PLAIN: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV).union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// A new file system of type `kind`.
pub fn make(kind: &str, options: &[(&str, &str)], attributes: MountAttrFlags) -> Result<OwnedFd, KernelError> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).on("open file system", kind)?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, *value).on("set option", format!("{kind} {key}={value}"))?;
    }
    create(&context, kind, attributes)
}

/// The file system of a configured context.
pub fn create(context: &OwnedFd, kind: &str, attributes: MountAttrFlags) -> Result<OwnedFd, KernelError> {
    fsconfig_create(context).on("create file system", kind)?;
    fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).on("mount file system", kind)
}

/// A copy of the mount at `path` below `directory` (or of `directory` itself when the path is empty), without what is
/// mounted inside it.
pub fn copy(directory: impl AsFd, path: &str) -> Result<OwnedFd, KernelError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(directory, path, flags).on("copy the mount of", if path.is_empty() { "a descriptor" } else { path })
}

/// Mount at `path` below `directory`, or on `directory` itself when the path is empty; the last component of the path
/// may not be a symbolic link.
pub fn attach(mount: impl AsFd, directory: impl AsFd, path: impl Arg) -> Result<(), rustix::io::Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", directory, path, flags)
}
