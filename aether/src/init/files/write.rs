//! `file.write`.
//!
//! A regular file is replaced at once: the new one is written beside it under a name of its own and renamed over it,
//! so a reader sees the old one or the new one whole, and a failure leaves the old one. It keeps the old one's mode
//! and, where that is allowed, its owner. Appending, a symlink, and what is not a regular file are written in place.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    fchmod, fchown, fstat, lstat, open, renameat_with, unlink, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid, CWD,
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
    let (file, temporary) = create_beside(path)?;
    let written = fill(&file, path, port).and_then(|size| {
        dress(&file, args, old).on(path)?;
        let flags = if args.exclusive { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        renameat_with(CWD, &temporary, CWD, path, flags).on(path)?;
        Ok(size)
    });
    if written.is_err() {
        // what made the write fail is what matters, not whether the rest of it could be removed
        let _left_behind = unlink(&temporary);
    }
    written
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

fn create_beside(path: &Path) -> Result<(OwnedFd, PathBuf), Failure> {
    let Some(name) = path.file_name() else { return Err(Failure::system(path, Errno::ISDIR)) };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for attempt in 0..LIMIT_TRIES {
        let mut hidden = OsString::from(".");
        // a long name is shortened, so that the name made of it is not longer than a name may be
        hidden.push(std::ffi::OsStr::from_bytes(&name.as_bytes()[..name.len().min(200)]));
        hidden.push(format!(".{}-{attempt}.new", std::process::id()));
        let temporary = path.with_file_name(hidden);
        match open(&temporary, flags, Mode::from_raw_mode(0o600)) {
            Ok(file) => return Ok((file, temporary)),
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
