//! Paths inside the sandbox's root, which an image controls, and mounting on them.
//!
//! Every path is resolved as if the sandbox's root were the root, so that no symbolic link of an image leads outside.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{mkdirat, openat2, AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;

use super::detached;
use crate::sys::{self, mount_attribute, KernelError, On};

const SEALED: u64 =
    mount_attribute::RDONLY | mount_attribute::NOSUID | mount_attribute::NODEV | mount_attribute::NOEXEC;

/// The root as PID 1 arranges it, and the scratch from which things are shown.
pub struct Inside<'a> {
    pub root: &'a OwnedFd,
    pub scratch: &'a OwnedFd,
    pub owner: u32,
}

impl Inside<'_> {
    /// Mount on a directory directly below the root, which is made where the image has none.
    pub fn mount(&self, mount: impl AsFd, name: &str) -> Result<(), KernelError> {
        let attached = match detached::attach(&mount, self.root, name) {
            Err(Errno::NOENT) => {
                mkdirat(self.root, name, Mode::from_raw_mode(0o755)).on("make directory", format!("/{name}"))?;
                self.own(self.root, name)?;
                detached::attach(&mount, self.root, name)
            }
            other => other,
        };
        let target = match attached {
            Err(Errno::INVAL | Errno::NOTDIR | Errno::LOOP) => format!("/{name}, which is no directory in this image"),
            _ => format!("/{name}"),
        };
        attached.on("mount on", target)
    }

    /// Give a path to the sandbox's own root user.
    pub fn own(&self, directory: impl AsFd, path: &str) -> Result<(), KernelError> {
        let ids = (Some(Uid::from_raw(self.owner)), Some(Gid::from_raw(self.owner)));
        rustix::fs::chownat(directory, path, ids.0, ids.1, AtFlags::SYMLINK_NOFOLLOW).on("change the owner of", path)
    }

    /// The file or directory at an absolute path, or nothing.
    fn resolve(&self, path: &str) -> Result<Option<OwnedFd>, KernelError> {
        let flags = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        match openat2(self.root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), flags) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(errno).on("open", path),
        }
    }

    /// Make an empty file at an absolute path where there is none, and the directory directly below the root that it
    /// lies in.
    pub fn make_file(&self, directory: &str, path: &str) -> Result<(), KernelError> {
        if self.resolve(path)?.is_some() {
            return Ok(());
        }
        match mkdirat(self.root, directory, Mode::from_raw_mode(0o755)) {
            Ok(()) => self.own(self.root, directory)?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno).on("make directory", format!("/{directory}")),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(self.root, path, flags, Mode::from_raw_mode(0o644), resolve).on("make file", path)?;
        let owner = (Some(Uid::from_raw(self.owner)), Some(Gid::from_raw(self.owner)));
        rustix::fs::fchown(&file, owner.0, owner.1).on("change the owner of", path)
    }

    /// Show `source`, a path in the scratch, at the path of a file or directory that exists.
    pub fn show(&self, source: &str, path: &str) -> Result<(), KernelError> {
        let target = self.resolve(path)?.ok_or(Errno::NOENT).on("open", path)?;
        let copy = detached::copy(self.scratch, source)?;
        seal_and_attach(&copy, &target, path)
    }

    /// Hide a path behind an empty file or directory; what is not there needs no hiding.
    pub fn mask(&self, path: &str) -> Result<(), KernelError> {
        let Some(target) = self.resolve(path)? else { return Ok(()) };
        let status = rustix::fs::fstat(&target).on("look at", path)?;
        let is_directory = FileType::from_raw_mode(status.st_mode).is_dir();
        let copy = detached::copy(self.scratch, if is_directory { EMPTY_DIRECTORY } else { EMPTY_FILE })?;
        seal_and_attach(&copy, &target, path)
    }

    /// Make a path read-only; what is not there cannot be written.
    pub fn protect(&self, path: &str) -> Result<(), KernelError> {
        let Some(target) = self.resolve(path)? else { return Ok(()) };
        let copy = detached::copy(&target, "")?;
        sys::restrict_mount(&copy, mount_attribute::RDONLY).on("make read-only", path)?;
        detached::attach(&copy, &target, "").on("mount on", path)
    }
}

pub const EMPTY_DIRECTORY: &str = "empty";
pub const EMPTY_FILE: &str = "nothing";

/// Restrict a detached mount to reading plain files and put it on `target`.
pub fn seal_and_attach(mount: &OwnedFd, target: &OwnedFd, path: &str) -> Result<(), KernelError> {
    sys::restrict_mount(mount, SEALED).on("make read-only", path)?;
    detached::attach(mount, target, "").on("mount on", path)
}
