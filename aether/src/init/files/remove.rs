//! `file.remove`.

use std::path::Path;

use rustix::fs::{lstat, rmdir, unlink, unlinkat, AtFlags, FileType, CWD};
use rustix::io::Errno;

use super::failure::{Failure, On};
use super::walk::{open_directory, walk, Walk, When};
use super::{FileAnswer, FileArgs};

pub fn remove(args: &FileArgs) -> Result<FileAnswer, Failure> {
    let path = Path::new(&args.path);
    let status = lstat(path).on(path)?;
    let mut entries = 1;
    if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
        unlink(path).on(path)?;
    } else {
        if args.recursive {
            entries += empty(path)?;
        }
        rmdir(path).on(path)?;
    }
    Ok(FileAnswer { entries, ..FileAnswer::default() })
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
