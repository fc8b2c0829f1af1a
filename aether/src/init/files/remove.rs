//! `file.remove`.

use std::path::Path;

use rustix::fs::{lstat, rmdir, unlink, unlinkat, AtFlags, FileType, CWD};
use rustix::io::Errno;

use super::failure::{Failure, On};
use super::walk::{open_directory, walk, Walk, When};
use super::{FileAnswer, FileArgs};

pub fn remove(args: &FileArgs) -> Result<FileAnswer, Failure> {
    let path = Path::new(&args.path);
    let entries = if args.recursive {
        remove_tree(path)?
    } else {
        remove_one(path)?;
        1
    };
    Ok(FileAnswer { entries, ..FileAnswer::default() })
}

/// Remove a path with all below it; how many entries that were.
pub fn remove_tree(path: &Path) -> Result<u64, Failure> {
    let status = lstat(path).on(path)?;
    let below = match FileType::from_raw_mode(status.st_mode) {
        FileType::Directory => empty(path)?,
        _ => 0,
    };
    remove_one(path)?;
    Ok(below + 1)
}

fn remove_one(path: &Path) -> Result<(), Failure> {
    let status = lstat(path).on(path)?;
    match FileType::from_raw_mode(status.st_mode) {
        FileType::Directory => rmdir(path).on(path),
        _ => unlink(path).on(path),
    }
}

fn empty(path: &Path) -> Result<u64, Failure> {
    let directory = open_directory(CWD, path).on(path)?;
    let mut entries = 0;
    walk(&directory, &mut |entry, when| {
        let flags = match (entry.is_directory(), when) {
            (true, When::Before) => return Ok(Walk::On),
            (true, When::After) => AtFlags::REMOVEDIR,
            (false, _) => AtFlags::empty(),
        };
        match unlinkat(entry.directory, entry.name, flags) {
            Ok(()) => entries += 1,
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(Failure::system(&path.join(entry.path), errno)),
        }
        Ok(Walk::On)
    })?;
    Ok(entries)
}
