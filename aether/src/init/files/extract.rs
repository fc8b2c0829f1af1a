//! `file.extract`: a tar stream unpacked below a directory.
//!
//! Nothing lands outside: a member with an absolute name or `..` is refused, and the directory it goes to is resolved
//! beneath the root by the kernel (RESOLVE_BENEATH), so a symlink that leads out, also one that the archive itself
//! brought, is refused as well. Links are made as they are: what a symlink says is only a word until somebody follows
//! it. A refusal ends the call; what was unpacked before it stays.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    chmod, chownat, fchmod, fchown, fsetxattr, fstat, futimens, linkat, mkdirat, mknodat, openat, openat2, statat,
    symlinkat, unlinkat, utimensat, AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid,
    XattrFlags, CWD,
};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use super::archive::{is_kept, XATTR};
use super::failure::{Failure, On};
use super::mkdir::make_all;
use super::port::{Port, PortReader};
use super::FileAnswer;
use crate::wire::{ErrorBody, DATA_CHUNK};

/// Characters of the reader's words about a broken archive that are passed on.
const LIMIT_QUOTE: usize = 120;

struct Unpacker {
    root: OwnedFd,
    /// Whether files can be given to any user.
    privileged: bool,
    /// Modes and times of directories, set when nothing more goes into them.
    directories: Vec<(PathBuf, Attributes)>,
    answer: FileAnswer,
}

#[derive(Clone, Copy)]
struct Attributes {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: Timespec,
}

impl Attributes {
    fn owner(self) -> (Uid, Gid) {
        (Uid::from_raw(self.uid), Gid::from_raw(self.gid))
    }

    fn times(self) -> Timestamps {
        Timestamps { last_access: self.mtime, last_modification: self.mtime }
    }
}

pub fn extract(path: &str, port: &mut Port) -> Result<FileAnswer, Failure> {
    unpack(Path::new(path), PortReader::new(port))
}

/// Unpack an archive below a path.
pub fn unpack<R: Read>(path: &Path, reader: R) -> Result<FileAnswer, Failure> {
    make_all(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, path, flags, Mode::empty()).on(path)?;
    let privileged = rustix::process::geteuid().is_root();
    let mut unpacker = Unpacker { root, privileged, directories: Vec::new(), answer: FileAnswer::default() };
    let mut archive = Archive::new(reader);
    for entry in archive.entries().map_err(broken)? {
        unpacker.add(&mut entry.map_err(broken)?)?;
    }
    unpacker.finish_directories()?;
    // what comes after the end of the archive is padding; the sender still has to be let go on to its end
    let mut rest = archive.into_inner();
    std::io::copy(&mut rest, &mut std::io::sink()).map_err(broken)?;
    Ok(unpacker.answer)
}

impl Unpacker {
    fn add<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<(), Failure> {
        let path = entry.path().map_err(broken)?.into_owned();
        let member = beneath(&path)?;
        let attributes = attributes(entry)?;
        let kind = entry.header().entry_type();
        if member.as_os_str().is_empty() {
            // the root itself: what it says is for it
            self.directories.push((PathBuf::from("."), attributes));
            return Ok(());
        }
        let (parent, name) = self.place(&member)?;
        if kind == EntryType::Directory {
            make_directory(&parent, name).on(&member)?;
            self.directories.push((member.clone(), attributes));
        } else {
            clear(&parent, name).on(&member)?;
            self.make(entry, kind, &parent, name, &member, attributes)?;
        }
        self.answer.entries += 1;
        Ok(())
    }

    fn make<R: Read>(
        &mut self,
        entry: &mut Entry<'_, R>,
        kind: EntryType,
        parent: &OwnedFd,
        name: &Path,
        member: &Path,
        attributes: Attributes,
    ) -> Result<(), Failure> {
        match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.answer.size += self.make_file(entry, parent, name, member, attributes)?;
                return Ok(());
            }
            EntryType::Symlink => symlinkat(target(entry, member)?, parent, name).on(member)?,
            EntryType::Link => return self.make_link(&target(entry, member)?, parent, name, member),
            EntryType::Fifo => mknodat(parent, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0).on(member)?,
            EntryType::Char | EntryType::Block => return Err(Failure::system(member, Errno::PERM)),
            _ => return Err(refused(member, "it is of a kind that cannot be unpacked")),
        }
        self.dress(parent, name, attributes, kind != EntryType::Symlink).on(member)
    }

    fn make_file<R: Read>(
        &self,
        entry: &mut Entry<'_, R>,
        parent: &OwnedFd,
        name: &Path,
        member: &Path,
        attributes: Attributes,
    ) -> Result<u64, Failure> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = std::fs::File::from(openat(parent, name, flags, Mode::from_raw_mode(0o600)).on(member)?);
        let mut buffer = vec![0; DATA_CHUNK];
        let mut size = 0;
        loop {
            let count = entry.read(&mut buffer).map_err(broken)?;
            if count == 0 {
                break;
            }
            file.write_all(&buffer[..count]).on(member)?;
            size += count as u64;
        }
        let file = OwnedFd::from(file);
        // first the owner: a change of owner takes away set-user-id bits and file capabilities
        if self.privileged {
            let (uid, gid) = attributes.owner();
            fchown(&file, Some(uid), Some(gid)).on(member)?;
        }
        for (attribute, value) in extended_attributes(entry)? {
            fsetxattr(&file, attribute.as_str(), &value, XattrFlags::empty()).on(member)?;
        }
        fchmod(&file, Mode::from_raw_mode(attributes.mode)).on(member)?;
        futimens(&file, &attributes.times()).on(member)?;
        Ok(size)
    }

    fn make_link(&self, target: &Path, parent: &OwnedFd, name: &Path, member: &Path) -> Result<(), Failure> {
        let (directory, existing) = (beneath(target)?, target);
        let (directory, existing) = match directory.file_name() {
            Some(file) => (self.place(&directory)?.0, PathBuf::from(file)),
            None => return Err(refused(existing, "a hard link cannot point to the directory itself")),
        };
        linkat(&directory, &existing, parent, name, AtFlags::empty()).on(member)
    }

    /// The directory a member goes to, made if it is missing, and the name it has there.
    fn place<'m>(&self, member: &'m Path) -> Result<(OwnedFd, &'m Path), Failure> {
        let name = member.file_name().map_or(member, Path::new);
        let parent = member.parent().unwrap_or(Path::new(""));
        match self.open_beneath(parent) {
            Err(Errno::NOENT) => {}
            Err(Errno::XDEV) => return Err(refused(member, "its directory leads outside through a symlink")),
            other => return Ok((other.on(member)?, name)),
        }
        for ancestor in parent.ancestors().collect::<Vec<_>>().into_iter().rev().skip(1) {
            let above = ancestor.parent().unwrap_or(Path::new(""));
            let above = self.open_beneath(above).on(member)?;
            match mkdirat(&above, ancestor.file_name().map_or(ancestor, Path::new), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(Failure::system(member, errno)),
            }
        }
        match self.open_beneath(parent) {
            Err(Errno::XDEV) => Err(refused(member, "its directory leads outside through a symlink")),
            other => Ok((other.on(member)?, name)),
        }
    }

    fn open_beneath(&self, directory: &Path) -> Result<OwnedFd, Errno> {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.root, directory, flags, Mode::empty(), resolve)
    }

    fn own(&self, parent: &OwnedFd, name: &Path, attributes: Attributes) -> Result<(), Errno> {
        if !self.privileged {
            return Ok(());
        }
        let (uid, gid) = attributes.owner();
        chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Of a pipe or a symlink, which cannot be opened to be dressed.
    fn dress(&self, parent: &OwnedFd, name: &Path, attributes: Attributes, has_mode: bool) -> Result<(), Errno> {
        self.own(parent, name, attributes)?;
        if has_mode {
            chmod_pipe(parent, name, attributes.mode)?;
        }
        set_time(parent, name, attributes)
    }

    /// Innermost first, since a directory's time changes with what is made in it.
    fn finish_directories(&mut self) -> Result<(), Failure> {
        for (path, attributes) in std::mem::take(&mut self.directories).into_iter().rev() {
            let directory = self.open_beneath(&path).on(&path)?;
            self.own(&directory, Path::new("."), attributes).on(&path)?;
            fchmod(&directory, Mode::from_raw_mode(attributes.mode)).on(&path)?;
            set_time(&directory, Path::new("."), attributes).on(&path)?;
        }
        Ok(())
    }
}

/// A member's name without `.`; refused if it is absolute or goes up.
fn beneath(path: &Path) -> Result<PathBuf, Failure> {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => clean.push(part),
            Component::CurDir => {}
            _ => return Err(refused(path, "its name leads outside")),
        }
    }
    Ok(clean)
}

fn make_directory(parent: &OwnedFd, name: &Path) -> Result<(), Errno> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        Err(Errno::EXIST) => {
            let status = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            match FileType::from_raw_mode(status.st_mode) {
                FileType::Directory => Ok(()),
                _ => {
                    unlinkat(parent, name, AtFlags::empty())?;
                    mkdirat(parent, name, Mode::from_raw_mode(0o700))
                }
            }
        }
        other => other,
    }
}

/// Take away what is in the way, unless it is a directory.
fn clear(parent: &OwnedFd, name: &Path) -> Result<(), Errno> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn set_time(parent: impl AsFd, name: &Path, attributes: Attributes) -> Result<(), Errno> {
    utimensat(parent, name, &attributes.times(), AtFlags::SYMLINK_NOFOLLOW)
}

/// Whoever owns the directory may have put a link to another's file in the pipe's place meanwhile: what is changed is
/// what was looked at.
fn chmod_pipe(parent: &OwnedFd, name: &Path, mode: u32) -> Result<(), Errno> {
    let pipe = openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&pipe)?.st_mode) != FileType::Fifo {
        return Err(Errno::STALE);
    }
    chmod(format!("/proc/self/fd/{}", pipe.as_raw_fd()), Mode::from_raw_mode(mode))
}

fn target<R: Read>(entry: &Entry<'_, R>, member: &Path) -> Result<PathBuf, Failure> {
    let target = entry.link_name().map_err(broken)?.map(|target| target.into_owned());
    target.ok_or_else(|| refused(member, "it is a link without a target"))
}

fn attributes<R: Read>(entry: &mut Entry<'_, R>) -> Result<Attributes, Failure> {
    let precise = pax_time(entry)?;
    let header = entry.header();
    let id = |value: std::io::Result<u64>| value.map_err(broken).map(|id| u32::try_from(id).unwrap_or(u32::MAX - 1));
    let seconds = header.mtime().map_err(broken)? as i64;
    Ok(Attributes {
        mode: header.mode().map_err(broken)? & 0o7777,
        uid: id(header.uid())?,
        gid: id(header.gid())?,
        mtime: precise.unwrap_or(Timespec { tv_sec: seconds, tv_nsec: 0 }),
    })
}

fn pax_time<R: Read>(entry: &mut Entry<'_, R>) -> Result<Option<Timespec>, Failure> {
    let Some(extensions) = entry.pax_extensions().map_err(broken)? else { return Ok(None) };
    for extension in extensions {
        let extension = extension.map_err(broken)?;
        if extension.key() == Ok("mtime") {
            let (seconds, fraction) = match extension.value() {
                Ok(value) => value.split_once('.').unwrap_or((value, "")),
                Err(_) => return Ok(None),
            };
            let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
            let parsed = seconds.parse().ok().zip(digits.parse().ok());
            return Ok(parsed.map(|(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec }));
        }
    }
    Ok(None)
}

fn extended_attributes<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let mut found = Vec::new();
    let Some(extensions) = entry.pax_extensions().map_err(broken)? else { return Ok(found) };
    for extension in extensions {
        let extension = extension.map_err(broken)?;
        let name = extension.key().ok().and_then(|key| key.strip_prefix(XATTR));
        if let Some(name) = name.filter(|name| is_kept(name)) {
            found.push((name.to_owned(), extension.value_bytes().to_vec()));
        }
    }
    Ok(found)
}

/// The stream is no archive; or a failure of the conversation itself, which travels inside.
fn broken(error: std::io::Error) -> Failure {
    // the reader quotes what it has read, which may be anything
    let text: String = error.to_string().chars().take(LIMIT_QUOTE).flat_map(char::escape_default).collect();
    match error.into_inner().and_then(|inner| inner.downcast::<Failure>().ok()) {
        Some(failure) => *failure,
        None => Failure::Refused(ErrorBody::new("invalid_argument", format!("cannot read the archive: {text}"))),
    }
}

fn refused(member: &Path, why: &str) -> Failure {
    let name = String::from_utf8_lossy(member.as_os_str().as_bytes()).into_owned();
    let message = format!("cannot unpack member {name:?}: {why}");
    Failure::Refused(ErrorBody::new("invalid_argument", message).with("field", "archive").with("path", name.as_str()))
}
