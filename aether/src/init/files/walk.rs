//! Visiting a tree by descriptors, so that nothing that changes in it meanwhile leads out of it.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{openat, statat, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use super::failure::{Failure, On};

/// Directories below each other; each holds a descriptor while it is visited.
const LIMIT_DEPTH: usize = 3000;

/// What a visitor sees of an entry.
pub struct Entry<'a> {
    pub directory: &'a OwnedFd,
    pub name: &'a Path,
    /// Relative to where the walk began.
    pub path: &'a Path,
    pub status: Stat,
}

impl Entry<'_> {
    pub fn is_directory(&self) -> bool {
        FileType::from_raw_mode(self.status.st_mode) == FileType::Directory
    }
}

/// Whether to go on.
#[derive(PartialEq, Eq)]
pub enum Walk {
    On,
    /// Not into this directory.
    Over,
    Stop,
}

/// When a visitor is called: before and after what is in a directory, once for anything else.
#[derive(PartialEq, Eq)]
pub enum When {
    Before,
    After,
}

pub type Visitor<'a> = dyn FnMut(&Entry<'_>, When) -> Result<Walk, Failure> + 'a;

/// Visit every entry below `directory`, by name; what vanishes meanwhile is not there.
pub fn walk(directory: &OwnedFd, visitor: &mut Visitor<'_>) -> Result<(), Failure> {
    allow_descriptors();
    visit(directory, &PathBuf::new(), 0, visitor).map(|_| ())
}

fn visit(directory: &OwnedFd, path: &Path, depth: usize, visitor: &mut Visitor<'_>) -> Result<Walk, Failure> {
    if depth > LIMIT_DEPTH {
        return Err(Failure::system(path, Errno::NAMETOOLONG));
    }
    for name in names(directory).on(path)? {
        let name = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let shown = path.join(name);
        let status = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            other => other.on(&shown)?,
        };
        let entry = Entry { directory, name, path: &shown, status };
        let walk = visitor(&entry, When::Before)?;
        if walk == Walk::On && entry.is_directory() {
            match open_directory(directory, name) {
                Ok(inner) => {
                    if visit(&inner, &shown, depth + 1, visitor)? == Walk::Stop {
                        return Ok(Walk::Stop);
                    }
                }
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(errno) => return Err(Failure::system(&shown, errno)),
            }
        }
        if walk == Walk::Stop || entry.is_directory() && visitor(&entry, When::After)? == Walk::Stop {
            return Ok(Walk::Stop);
        }
    }
    Ok(Walk::On)
}

/// Open a directory, not what a symlink of that name points to.
pub fn open_directory(directory: impl std::os::fd::AsFd, name: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::empty())
}

fn names(directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// As many descriptors as this process may have; fewer only make a deep tree fail.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _unchanged = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
