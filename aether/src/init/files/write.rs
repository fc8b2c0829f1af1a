//! `file.write`.
//!
//! A regular file is replaced at once: the new one is written beside it and renamed over it, so a reader sees the old
//! one or the new one whole, and a failure leaves the old one. It keeps the old one's mode and, where that is allowed,
//! its owner. Appending, a symlink, and what is not a regular file are written in place.
//!
//! This process may be killed at any line (by the sandbox, the OOM killer, or PID 1 itself), so the new file has no name
//! while it is written and goes with whoever writes it. It gets its own where there was none before, else a hidden one
//! from which it is renamed at once. Where the file system has no files without a name (an overlay before Linux 6.1)
//! it has the hidden one from the start.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    fchmod, fchown, fstat, linkat, lstat, open, renameat_with, unlink, AtFlags, FileType, Gid, Mode, OFlags,
    RenameFlags, Stat, Uid, CWD,
};
use rustix::io::Errno;
use serde::Deserialize;

use super::failure::{Failure, On};
use super::mkdir::make_all;
use super::port::Port;
use super::FileAnswer;

/// Names tried for the new file.
const LIMIT_TRIES: u32 = 100;

#[derive(Debug, Deserialize)]
pub struct Args {
    pub path: String,
    #[serde(default)]
    pub append: bool,
    #[serde(default = "default_mode")]
    pub mode: u32,
    #[serde(default)]
    pub parents: bool,
    #[serde(default)]
    pub exclusive: bool,
}

fn default_mode() -> u32 {
    0o644
}

pub fn write(args: &Args, port: &mut Port) -> Result<FileAnswer, Failure> {
    let path = Path::new(&args.path);
    if args.parents {
        path.parent().map_or(Ok(()), make_all)?;
    }
    let old = match lstat(path) {
        Ok(_) if args.exclusive => return Err(Failure::system(path, Errno::EXIST)),
        Ok(status) => Some(status),
        Err(Errno::NOENT) => None,
        Err(errno) => return Err(Failure::system(path, errno)),
    };
    let regular = |status: &Stat| FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
    let size = if args.append || !old.as_ref().map_or(true, regular) {
        in_place(args, path, port)?
    } else {
        replace(args, path, old.as_ref(), port)?
    };
    Ok(FileAnswer { size, entries: 1, ..FileAnswer::default() })
}

fn in_place(args: &Args, path: &Path, port: &mut Port) -> Result<u64, Failure> {
    let mut flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOCTTY | OFlags::CLOEXEC;
    flags |= if args.append { OFlags::APPEND } else { OFlags::TRUNC };
    flags.set(OFlags::EXCL, args.exclusive);
    let file = open(path, flags, Mode::from_raw_mode(args.mode & 0o7777)).on(path)?;
    fill(&file, path, port)
}

fn replace(args: &Args, path: &Path, old: Option<&Stat>, port: &mut Port) -> Result<u64, Failure> {
    let mut draft = Draft::beside(path)?;
    let size = fill(&draft.file, path, port)?;
    dress(&draft.file, args, old).on(path)?;
    draft.put(path, args.exclusive)?;
    Ok(size)
}

/// A new file on its way to a path.
struct Draft {
    file: OwnedFd,
    /// Its hidden name, which goes with it unless it was put where it should be.
    name: Option<PathBuf>,
}

impl Draft {
    fn beside(path: &Path) -> Result<Self, Failure> {
        if path.file_name().is_none() {
            return Err(Failure::system(path, Errno::ISDIR));
        }
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mode = Mode::from_raw_mode(0o600);
        match open(directory, OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC, mode) {
            Ok(file) => Ok(Self { file, name: None }),
            // a file system, or a kernel, without such files
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let (file, name) = with_hidden_name(path, |name| open(name, flags, mode))?;
                Ok(Self { file, name: Some(name) })
            }
            Err(errno) => Err(Failure::system(path, errno)),
        }
    }

    /// Make it the file at `path`; `exclusive` refuses if there is one by now.
    fn put(&mut self, path: &Path, exclusive: bool) -> Result<(), Failure> {
        if self.name.is_none() {
            match self.link(path) {
                Err(Errno::EXIST) if !exclusive => {}
                other => return other.on(path),
            }
            let ((), name) = with_hidden_name(path, |name| self.link(name))?;
            self.name = Some(name);
        }
        let Some(name) = &self.name else { return Ok(()) };
        let flags = if exclusive { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        renameat_with(CWD, name, CWD, path, flags).on(path)?;
        self.name = None;
        Ok(())
    }

    fn link(&self, name: &Path) -> Result<(), Errno> {
        let nameless = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        linkat(CWD, nameless, CWD, name, AtFlags::SYMLINK_FOLLOW)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // what made the write fail is what matters, not whether the rest of it could be removed
        if let Some(name) = &self.name {
            let _left_behind = unlink(name);
        }
    }
}

/// Give the new file the mode and owner it should have.
fn dress(file: &OwnedFd, args: &Args, old: Option<&Stat>) -> Result<(), Errno> {
    let Some(old) = old else { return fchmod(file, Mode::from_raw_mode(args.mode & 0o7777)) };
    let new = fstat(file)?;
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid) {
        match fchown(file, Some(Uid::from_raw(old.st_uid)), Some(Gid::from_raw(old.st_gid))) {
            // a user who may replace another's file gets a file of its own, as with any editor
            Ok(()) | Err(Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    fchmod(file, Mode::from_raw_mode(old.st_mode & 0o7777))
}

/// Make something under a hidden name beside `path` that nothing has yet.
fn with_hidden_name<T>(path: &Path, make: impl Fn(&Path) -> Result<T, Errno>) -> Result<(T, PathBuf), Failure> {
    let name = path.file_name().unwrap_or_default().as_bytes();
    for attempt in 0..LIMIT_TRIES {
        let mut hidden = OsString::from(".");
        // a long name is shortened, so that the name made of it is not longer than a name may be
        hidden.push(std::ffi::OsStr::from_bytes(&name[..name.len().min(200)]));
        hidden.push(format!(".{}-{attempt}.new", std::process::id()));
        let hidden = path.with_file_name(hidden);
        match make(&hidden) {
            Ok(made) => return Ok((made, hidden)),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(Failure::system(path, errno)),
        }
    }
    Err(Failure::system(path, Errno::EXIST))
}

/// Write all of stream 1.
fn fill(file: &OwnedFd, path: &Path, port: &mut Port) -> Result<u64, Failure> {
    let mut size = 0;
    while let Some(bytes) = port.receive()? {
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match rustix::io::write(file, rest) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Failure::system(path, errno)),
            }
        }
        size += bytes.len() as u64;
    }
    Ok(size)
}
