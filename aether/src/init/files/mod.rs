//! File operations: `file.*`.
//!
//! Theory of operation. PID 1 touches no path of the sandbox. For each operation it forks a child that enters the
//! sandbox as its user (`child::enter`) and does the work by system calls, so that it works in an image with no
//! program at all and can do exactly what that user can. The child speaks frames over a socketpair (`port.rs`);
//! PID 1 passes them on between it and the edge (`relay.rs`), checks both sides' credit, and ends a child that makes
//! no progress: the sandbox may stop it, or give it a path that never answers.
//!
//! One file an operation; `failure.rs` says why one did not work, `walk.rs` visits trees without following links.

mod archive;
mod extract;
mod failure;
mod info;
mod list;
mod mkdir;
mod port;
mod read;
mod relay;
mod remove;
mod rename;
mod walk;
mod watch;
mod write;

pub use self::relay::FileCall;

use serde::{Deserialize, Serialize};

use self::failure::Failure;
use self::info::FileInfo;
use self::port::Port;
use super::calls::args;
use super::outcome::invalid;
use crate::wire::{ErrorBody, Frame};

/// Who does it and where a relative path begins; common to all.
#[derive(Debug, Deserialize)]
pub struct Place {
    pub user: String,
    pub cwd: String,
    pub path: String,
}

#[derive(Debug, Deserialize)]
struct FileArgs {
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default)]
    follow: bool,
}

/// The RESULT of every file operation.
#[derive(Debug, Default, Serialize)]
struct FileAnswer {
    size: u64,
    entries: u64,
    truncated: bool,
    info: Option<FileInfo>,
}

/// What is to be done, read before the fork.
pub enum Operation {
    Stat(FileArgsOf),
    Mkdir(FileArgsOf),
    Remove(FileArgsOf),
    Archive(FileArgsOf),
    Read(read::Args),
    Write(write::Args),
    Move(rename::Args),
    List(list::Args),
    Extract(FileArgsOf),
    Watch(FileArgsOf),
}

/// Keeps the argument types of the operations inside this module.
pub struct FileArgsOf(FileArgs);

/// For whom a child without progress is waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    /// For nobody: it only works.
    None,
    /// It takes DATA.
    Input,
    /// It sends DATA.
    Output,
    /// It waits for things to happen.
    Endless,
}

impl Operation {
    /// The operation that a CALL asks for; none if the method is no file operation.
    pub fn read(method: &str, frame: &Frame) -> Result<Option<Self>, ErrorBody> {
        let common = || args(frame).map(FileArgsOf);
        let operation = match method {
            "file.stat" => Self::Stat(common()?),
            "file.mkdir" => Self::Mkdir(common()?),
            "file.remove" => Self::Remove(common()?),
            "file.archive" => Self::Archive(common()?),
            "file.read" => Self::Read(args(frame)?),
            "file.write" => Self::Write(args(frame)?),
            "file.move" => Self::Move(args(frame)?),
            "file.list" => Self::List(args(frame)?),
            "file.extract" => Self::Extract(common()?),
            "file.watch" => Self::Watch(common()?),
            _ => return Ok(None),
        };
        operation.check()?;
        Ok(Some(operation))
    }

    fn check(&self) -> Result<(), ErrorBody> {
        let paths = self.paths();
        if paths.iter().any(|path| path.is_empty() || path.contains('\0')) {
            return Err(invalid("path", "it is empty or holds a NUL character"));
        }
        match self {
            Self::Stat(FileArgsOf(args)) | Self::Archive(FileArgsOf(args)) if args.recursive => {
                Err(invalid("recursive", "this operation does not have it"))
            }
            _ => Ok(()),
        }
    }

    /// The paths it names.
    fn paths(&self) -> Vec<&str> {
        match self {
            Self::Stat(FileArgsOf(args))
            | Self::Mkdir(FileArgsOf(args))
            | Self::Remove(FileArgsOf(args))
            | Self::Archive(FileArgsOf(args))
            | Self::Extract(FileArgsOf(args))
            | Self::Watch(FileArgsOf(args)) => vec![&args.path],
            Self::Read(args) => vec![&args.path],
            Self::Write(args) => vec![&args.path],
            Self::List(args) => vec![&args.path],
            Self::Move(args) => vec![&args.path, &args.to],
        }
    }

    fn flow(&self) -> Flow {
        match self {
            Self::Stat(_) | Self::Mkdir(_) | Self::Remove(_) | Self::Move(_) => Flow::None,
            Self::Write(_) | Self::Extract(_) => Flow::Input,
            Self::Read(_) | Self::List(_) | Self::Archive(_) => Flow::Output,
            Self::Watch(_) => Flow::Endless,
        }
    }

    /// Do it, in the child, as the sandbox's user.
    fn perform(&self, port: &mut Port) -> Result<FileAnswer, Failure> {
        match self {
            Self::Stat(FileArgsOf(args)) => info::stat(args),
            Self::Mkdir(FileArgsOf(args)) => mkdir::make(args),
            Self::Remove(FileArgsOf(args)) => remove::remove(args),
            Self::Archive(FileArgsOf(args)) => archive::archive(&args.path, port),
            Self::Read(args) => read::read(args, port),
            Self::Write(args) => write::write(args, port),
            Self::Move(args) => rename::rename(args),
            Self::List(args) => list::list(args, port),
            Self::Extract(FileArgsOf(args)) => extract::extract(&args.path, port),
            Self::Watch(FileArgsOf(args)) => watch::watch(args, port),
        }
    }
}
