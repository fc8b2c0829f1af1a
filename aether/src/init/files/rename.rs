//! `file.move`.
//!
//! A rename, where the kernel can. Between two file systems, and for a directory of the image (an overlay does not
//! rename those), what is moved is copied to a hidden name beside its goal, put there by a rename, and then removed
//! where it was: a failure leaves the source whole.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;

use rustix::fs::{lstat, mkdir, FileType, Mode};
use rustix::io::Errno;
use rustix::pipe::{pipe_with, PipeFlags};
use serde::Deserialize;

use super::archive::pack;
use super::extract::unpack;
use super::failure::{Failure, On};
use super::remove::remove_tree;
use super::FileAnswer;

#[derive(Debug, Deserialize)]
pub struct Args {
    pub path: String,
    pub to: String,
}

/// What lies in the way is replaced as rename(2) does it.
pub fn rename(args: &Args) -> Result<FileAnswer, Failure> {
    let (from, to) = (Path::new(&args.path), Path::new(&args.to));
    match rustix::fs::rename(from, to) {
        Err(Errno::XDEV) => copy_over(from, to)?,
        other => other.on(from)?,
    }
    Ok(FileAnswer { entries: 1, ..FileAnswer::default() })
}

fn copy_over(from: &Path, to: &Path) -> Result<(), Failure> {
    let status = lstat(from).on(from)?;
    let (Some(name), Some(goal)) = (from.file_name(), to.file_name()) else {
        return Err(Failure::system(to, Errno::INVAL));
    };
    let mut hidden = OsString::from(".");
    hidden.push(goal);
    hidden.push(format!(".{}.new", std::process::id()));
    let draft = to.with_file_name(hidden);
    mkdir(&draft, Mode::from_raw_mode(0o700)).on(to)?;
    let is_directory = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
    let made = if is_directory { draft.clone() } else { draft.join(name) };
    let put = copy(from, &draft).and_then(|()| rustix::fs::rename(&made, to).on(to));
    if put.is_err() || !is_directory {
        // why it failed is what matters, not whether all of the draft could be removed
        let _left_behind = remove_tree(&draft);
    }
    put.and_then(|()| remove_tree(from).map(|_| ()))
}

fn copy(from: &Path, draft: &Path) -> Result<(), Failure> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).on(from)?;
    std::thread::scope(|scope| {
        let packing = scope.spawn(|| pack(from, File::from(writer)));
        let unpacked = unpack(draft, File::from(reader));
        let packed = packing.join().unwrap_or_else(|_| Err(Failure::system(from, Errno::IO)));
        match (packed, unpacked) {
            // the writer noticed that the reader had given up
            (Err(Failure::System { errno: Errno::PIPE, .. }), Err(cause)) | (Err(cause), _) | (_, Err(cause)) => {
                Err(cause)
            }
            (Ok(_), Ok(_)) => Ok(()),
        }
    })
}
