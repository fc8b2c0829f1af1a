//! `file.read`.

use std::path::Path;

use rustix::fs::{open, seek, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use serde::Deserialize;

use super::failure::{Failure, On};
use super::port::Port;
use super::FileAnswer;
use crate::wire::DATA_CHUNK;

#[derive(Debug, Deserialize)]
pub struct Args {
    pub path: String,
    #[serde(default)]
    pub offset: u64,
    #[serde(default)]
    pub length: Option<u64>,
}

pub fn read(args: &Args, port: &mut Port) -> Result<FileAnswer, Failure> {
    let path = Path::new(&args.path);
    let file = open(path, OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).on(path)?;
    if args.offset > 0 {
        seek(&file, SeekFrom::Start(args.offset)).on(path)?;
    }
    let mut buffer = vec![0; DATA_CHUNK];
    let mut left = args.length.unwrap_or(u64::MAX);
    let mut size = 0;
    while left > 0 {
        let want = left.min(DATA_CHUNK as u64) as usize;
        let count = match rustix::io::read(&file, &mut buffer[..want]) {
            Err(Errno::INTR) => continue,
            other => other.on(path)?,
        };
        if count == 0 {
            break;
        }
        port.send(&buffer[..count])?;
        left -= count as u64;
        size += count as u64;
    }
    Ok(FileAnswer { size, ..FileAnswer::default() })
}
