//! `file.move`.

use std::path::Path;

use serde::Deserialize;

use super::failure::{Failure, On};
use super::FileAnswer;

#[derive(Debug, Deserialize)]
pub struct Args {
    pub path: String,
    pub to: String,
}

/// Rename within one file system. What lies in the way is replaced as rename(2) does it.
pub fn rename(args: &Args) -> Result<FileAnswer, Failure> {
    rustix::fs::rename(&args.path, &args.to).on(Path::new(&args.path))?;
    Ok(FileAnswer { entries: 1, ..FileAnswer::default() })
}
