//! `file.mkdir`, and the parents that other operations make.

use std::path::Path;

use rustix::fs::{mkdir, stat, FileType, Mode};
use rustix::io::Errno;

use super::failure::{Failure, On};
use super::{FileAnswer, FileArgs};

pub fn make(args: &FileArgs) -> Result<FileAnswer, Failure> {
    let path = Path::new(&args.path);
    if args.recursive {
        make_all(path)?;
    } else {
        mkdir(path, Mode::from_raw_mode(0o755)).on(path)?;
    }
    Ok(FileAnswer { entries: 1, ..FileAnswer::default() })
}

/// Make a directory and those above it; one that exists is fine.
pub fn make_all(path: &Path) -> Result<(), Failure> {
    for ancestor in path.ancestors().collect::<Vec<_>>().into_iter().rev() {
        if ancestor.as_os_str().is_empty() {
            continue;
        }
        match mkdir(ancestor, Mode::from_raw_mode(0o755)) {
            Ok(()) => {}
            // a read-only or foreign directory above is fine as long as it is there
            Err(errno) => match stat(ancestor) {
                Ok(status) if FileType::from_raw_mode(status.st_mode) == FileType::Directory => {}
                Ok(_) if errno == Errno::EXIST => return Err(Failure::system(ancestor, Errno::NOTDIR)),
                _ => return Err(Failure::system(ancestor, errno)),
            },
        }
    }
    Ok(())
}
