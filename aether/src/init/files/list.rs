//! `file.list`.

use std::path::Path;

use rustix::fs::{openat, Mode, OFlags, CWD};
use rustix::io::Errno;
use serde::Deserialize;

use super::failure::{Failure, On};
use super::info::describe;
use super::port::{Batch, Port};
use super::walk::{walk, Walk, When};
use super::FileAnswer;

/// The longest path that is shown.
const LIMIT_PATH: usize = 32 * 1024;

#[derive(Debug, Deserialize)]
pub struct Args {
    pub path: String,
    #[serde(default)]
    pub recursive: bool,
    #[serde(default = "default_limit")]
    pub limit: u64,
}

fn default_limit() -> u64 {
    100_000
}

pub fn list(args: &Args, port: &mut Port) -> Result<FileAnswer, Failure> {
    let path = Path::new(&args.path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, path, flags, Mode::empty()).on(path)?;
    let mut answer = FileAnswer::default();
    let mut batch = Batch::new();
    walk(&directory, &mut |entry, when| {
        if when == When::After {
            return Ok(Walk::On);
        }
        if answer.entries == args.limit {
            answer.truncated = true;
            return Ok(Walk::Stop);
        }
        if entry.path.as_os_str().len() > LIMIT_PATH {
            return Err(Failure::system(path, Errno::NAMETOOLONG));
        }
        answer.entries += 1;
        let info = describe(entry.directory, entry.name, entry.path, &entry.status)?;
        let weight = info.weight();
        batch.push(info, weight, port)?;
        Ok(if args.recursive { Walk::On } else { Walk::Over })
    })?;
    batch.flush(port)?;
    Ok(answer)
}
