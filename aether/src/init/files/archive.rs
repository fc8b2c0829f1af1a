//! `file.archive`: a tree as a tar stream.
//!
//! Members are named relative to the archived directory (which itself is `./`); anything else is one member of its
//! own name. Kept are types, modes, ids as seen inside, times, hard links, and the extended attributes of users and
//! file capabilities (as pax records). Sockets are left out: nothing could be unpacked from them.

use std::collections::HashMap;
use std::io::{BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{fgetxattr, flistxattr, lstat, major, minor, openat, readlinkat, FileType, Mode, OFlags, Stat, CWD};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};

use super::failure::{Failure, On};
use super::port::{Port, PortWriter};
use super::walk::{open_directory, walk, Entry, Walk, When};
use super::FileAnswer;
use crate::wire::DATA_CHUNK;

/// Prefix of a pax record that holds an extended attribute.
pub const XATTR: &str = "SCHILY.xattr.";
/// The largest value of one, as the kernel has it.
const LIMIT_XATTR: usize = 64 * 1024;

struct Packer<W: Write> {
    archive: Builder<BufWriter<W>>,
    /// Where the first name of a file with several went, by device and inode.
    links: HashMap<(u64, u64), PathBuf>,
    answer: FileAnswer,
}

pub fn archive(path: &str, port: &mut Port) -> Result<FileAnswer, Failure> {
    pack(Path::new(path), PortWriter(port))
}

/// Write the archive of a path.
pub fn pack<W: Write>(path: &Path, writer: W) -> Result<FileAnswer, Failure> {
    let mut archive = Builder::new(BufWriter::with_capacity(DATA_CHUNK, writer));
    archive.mode(tar::HeaderMode::Complete);
    let mut packer = Packer { archive, links: HashMap::new(), answer: FileAnswer::default() };
    let status = lstat(path).on(path)?;
    if FileType::from_raw_mode(status.st_mode) == FileType::Directory {
        let directory = open_directory(CWD, path).on(path)?;
        packer.add(&directory, Path::new("."), Path::new("./"), &status)?;
        walk(&directory, &mut |entry, when| {
            if when == When::Before {
                packer.add_entry(entry)?;
            }
            Ok(Walk::On)
        })?;
    } else {
        let name = path.file_name().ok_or(Failure::system(path, Errno::INVAL))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, parent, flags, Mode::empty()).on(parent)?;
        packer.add(&directory, Path::new(name), Path::new(name), &status)?;
    }
    packer.archive.into_inner().and_then(|mut writer| writer.flush()).on(path)?;
    Ok(packer.answer)
}

impl<W: Write> Packer<W> {
    fn add_entry(&mut self, entry: &Entry<'_>) -> Result<(), Failure> {
        self.add(entry.directory, entry.name, entry.path, &entry.status)
    }

    fn add(&mut self, directory: &OwnedFd, name: &Path, shown: &Path, status: &Stat) -> Result<(), Failure> {
        let mut header = header(status);
        let kind = FileType::from_raw_mode(status.st_mode);
        if kind == FileType::Symlink {
            return self.add_symlink(directory, name, shown, status, header);
        }
        if matches!(kind, FileType::Directory | FileType::Fifo) {
            self.add_records(shown, time_record(status).into_iter().collect())?;
        }
        match kind {
            FileType::Socket => return Ok(()),
            FileType::RegularFile => return self.add_file(directory, name, shown, status, header),
            kind => {
                header.set_entry_type(entry_type(kind));
                self.archive.append_data(&mut header, shown, std::io::empty()).on(shown)?;
            }
        }
        self.answer.entries += 1;
        Ok(())
    }

    fn add_symlink(
        &mut self,
        directory: &OwnedFd,
        name: &Path,
        shown: &Path,
        status: &Stat,
        mut header: Header,
    ) -> Result<(), Failure> {
        let target = match readlinkat(directory, name, Vec::new()) {
            // gone, or something else by now
            Err(Errno::NOENT | Errno::INVAL) => return Ok(()),
            other => other.on(shown)?,
        };
        self.add_records(shown, time_record(status).into_iter().collect())?;
        header.set_entry_type(EntryType::Symlink);
        let target = Path::new(std::ffi::OsStr::from_bytes(target.as_bytes()));
        self.archive.append_link(&mut header, shown, target).on(shown)?;
        self.answer.entries += 1;
        Ok(())
    }

    fn add_file(
        &mut self,
        directory: &OwnedFd,
        name: &Path,
        shown: &Path,
        status: &Stat,
        mut header: Header,
    ) -> Result<(), Failure> {
        if status.st_nlink > 1 {
            let first = self.links.entry((status.st_dev, status.st_ino)).or_insert_with(|| shown.to_path_buf());
            if first != shown {
                header.set_entry_type(EntryType::Link);
                self.archive.append_link(&mut header, shown, first).on(shown)?;
                self.answer.entries += 1;
                return Ok(());
            }
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(directory, name, flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(()),
            other => other.on(shown)?,
        };
        self.add_attributes(&file, shown, status)?;
        let size = status.st_size as u64;
        header.set_size(size);
        // a file that is cut while it is read is filled up with zeros: the size has been said already
        let content = std::fs::File::from(file).chain(std::io::repeat(0)).take(size);
        self.archive.append_data(&mut header, shown, content).on(shown)?;
        self.answer.entries += 1;
        self.answer.size += size;
        Ok(())
    }

    /// What the header has no room for: parts of a second, and extended attributes.
    fn add_attributes(&mut self, file: &OwnedFd, shown: &Path, status: &Stat) -> Result<(), Failure> {
        let mut records: Vec<_> = time_record(status).into_iter().collect();
        for name in attribute_names(file).on(shown)? {
            let mut value = Vec::with_capacity(LIMIT_XATTR);
            match fgetxattr(file, name.as_str(), rustix::buffer::spare_capacity(&mut value)) {
                Ok(_) => records.push((format!("{XATTR}{name}"), value)),
                Err(Errno::NODATA) => {}
                Err(errno) => return Err(Failure::system(shown, errno)),
            }
        }
        self.add_records(shown, records)
    }

    /// Records of the member that is added next.
    fn add_records(&mut self, shown: &Path, records: Vec<(String, Vec<u8>)>) -> Result<(), Failure> {
        let records = records.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        self.archive.append_pax_extensions(records).on(shown)
    }
}

/// The time of change, if the header's whole seconds do not say it.
fn time_record(status: &Stat) -> Option<(String, Vec<u8>)> {
    let time = format!("{}.{:09}", status.st_mtime, status.st_mtime_nsec);
    (status.st_mtime_nsec != 0).then(|| ("mtime".to_owned(), time.into_bytes()))
}

fn attribute_names(file: &OwnedFd) -> Result<Vec<String>, Errno> {
    let mut list = Vec::with_capacity(LIMIT_XATTR);
    match flistxattr(file, rustix::buffer::spare_capacity(&mut list)) {
        Ok(_) => {}
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(errno) => return Err(errno),
    }
    let names = list.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    Ok(names.filter(|name| is_kept(name)).map(str::to_owned).collect())
}

/// The rest belongs to the system the files are on.
pub fn is_kept(attribute: &str) -> bool {
    attribute.starts_with("user.") || attribute == "security.capability"
}

fn header(status: &Stat) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(status.st_mode & 0o7777);
    header.set_uid(status.st_uid.into());
    header.set_gid(status.st_gid.into());
    header.set_mtime(u64::try_from(status.st_mtime).unwrap_or(0));
    header.set_size(0);
    let kind = FileType::from_raw_mode(status.st_mode);
    if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) {
        // a GNU header always has room for both
        let _fits = header.set_device_major(major(status.st_rdev)).and(header.set_device_minor(minor(status.st_rdev)));
    }
    header
}

fn entry_type(kind: FileType) -> EntryType {
    match kind {
        FileType::Directory => EntryType::Directory,
        FileType::CharacterDevice => EntryType::Char,
        FileType::BlockDevice => EntryType::Block,
        FileType::Fifo => EntryType::Fifo,
        _ => EntryType::Regular,
    }
}
