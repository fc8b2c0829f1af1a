//! How names are resolved in a sandbox that has the host's network: as the host does it now.
//!
//! What is shown are copies: neither the host's files nor what directory they lie in can be reached through them.

use rustix::fs::{openat, Mode, OFlags, CWD};
use rustix::io::Errno;

use super::inside::Inside;
use super::limits::write_new;
use crate::sys::{KernelError, On};

const DIRECTORY: &str = "etc";
const FILES: [(&str, &str); 2] = [("resolv.conf", "/etc/resolv.conf"), ("hosts", "/etc/hosts")];
/// Of a file of the host's; a longer one is cut.
const LIMIT: usize = 64 * 1024;

/// Show them; call it before the pivot. One that the host has not is not shown.
pub fn show(inside: &Inside<'_>) -> Result<(), KernelError> {
    for (name, path) in FILES {
        let Some(content) = read(path)? else { continue };
        drop(write_new(inside.scratch, name, &content)?);
        inside.make_file(DIRECTORY, path)?;
        inside.show(name, path)?;
    }
    Ok(())
}

fn read(path: &str) -> Result<Option<Vec<u8>>, KernelError> {
    let file = match openat(CWD, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.on("open", path)?,
    };
    let mut content = vec![0; LIMIT];
    let mut filled = 0;
    while filled < content.len() {
        match rustix::io::read(&file, &mut content[filled..]).on("read", path)? {
            0 => break,
            count => filled += count,
        }
    }
    content.truncate(filled);
    Ok(Some(content))
}
