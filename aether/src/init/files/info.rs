//! `file.stat`, and what lstat says of an entry.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{readlinkat, statat, AtFlags, FileType, Stat, CWD};
use rustix::io::Errno;
use serde::Serialize;

use super::failure::{Failure, On};
use super::{FileAnswer, FileArgs};

#[derive(Debug, Serialize)]
pub struct FileInfo {
    path: String,
    r#type: &'static str,
    size: i64,
    mode: u32,
    uid: u32,
    gid: u32,
    mtime_ns: i64,
    nlink: u64,
    target: Option<String>,
}

impl FileInfo {
    /// Bytes it takes on the wire, roughly and at most.
    pub fn weight(&self) -> usize {
        160 + self.path.len() + self.target.as_ref().map_or(0, String::len)
    }
}

pub fn stat(args: &FileArgs) -> Result<FileAnswer, Failure> {
    let path = Path::new(&args.path);
    let flags = if args.follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let status = statat(CWD, path, flags).on(path)?;
    let info = describe(CWD, path, path, &status)?;
    Ok(FileAnswer { size: status.st_size as u64, entries: 1, truncated: false, info: Some(info) })
}

/// The entry `name` of `directory`, shown as `shown`.
pub fn describe(directory: impl AsFd, name: &Path, shown: &Path, status: &Stat) -> Result<FileInfo, Failure> {
    let kind = FileType::from_raw_mode(status.st_mode);
    let target = match kind {
        FileType::Symlink => match readlinkat(directory, name, Vec::new()) {
            // gone, or something else by now
            Err(Errno::NOENT | Errno::INVAL) => None,
            other => Some(other.on(shown)?.to_string_lossy().into_owned()),
        },
        _ => None,
    };
    let nanoseconds = i64::try_from(status.st_mtime_nsec).unwrap_or(0);
    Ok(FileInfo {
        path: shown.to_string_lossy().into_owned(),
        r#type: type_name(kind),
        size: status.st_size,
        mode: status.st_mode & 0o7777,
        uid: status.st_uid,
        gid: status.st_gid,
        mtime_ns: status.st_mtime.saturating_mul(1_000_000_000).saturating_add(nanoseconds),
        nlink: status.st_nlink,
        target,
    })
}

fn type_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::CharacterDevice => "char",
        FileType::BlockDevice => "block",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::RegularFile | FileType::Unknown => "file",
    }
}
