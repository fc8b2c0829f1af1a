//! Why a file operation did not work.

use std::fmt;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::super::outcome::describe;
use crate::wire::ErrorBody;

#[derive(Debug)]
pub enum Failure {
    /// The sandbox's file system said no.
    System { path: String, errno: Errno },
    /// The request cannot be done as it is.
    Refused(ErrorBody),
    /// The caller no longer wants it.
    Canceled,
    /// PID 1 is gone, so nobody waits for an answer.
    Gone,
}

impl Failure {
    pub fn system(path: &Path, errno: Errno) -> Self {
        Self::System { path: path.to_string_lossy().into_owned(), errno }
    }

    pub fn body(&self) -> ErrorBody {
        match self {
            Self::System { path, errno } => {
                let code = match *errno {
                    Errno::NOENT | Errno::NOTDIR => "path_not_found",
                    _ => "file_operation",
                };
                let why = describe(*errno);
                ErrorBody::new(code, format!("cannot use {path:?} in the sandbox: {why}"))
                    .with("path", path.as_str())
                    .with("errno", errno.raw_os_error())
            }
            Self::Refused(body) => body.clone(),
            Self::Canceled => ErrorBody::new("deadline_exceeded", "cannot finish the file operation: it was canceled"),
            Self::Gone => ErrorBody::new("unavailable", "cannot finish the file operation: PID 1 is gone"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.body().message)
    }
}

impl std::error::Error for Failure {}

/// Attach the path to an error of a system call.
pub trait On<T> {
    fn on(self, path: &Path) -> Result<T, Failure>;
}

impl<T> On<T> for Result<T, Errno> {
    fn on(self, path: &Path) -> Result<T, Failure> {
        self.map_err(|errno| Failure::system(path, errno))
    }
}

impl<T> On<T> for io::Result<T> {
    /// A failure that travelled inside of an `io::Error` comes out as it went in.
    fn on(self, path: &Path) -> Result<T, Failure> {
        self.map_err(|error| {
            let errno = Errno::from_io_error(&error);
            match error.into_inner().and_then(|inner| inner.downcast::<Failure>().ok()) {
                Some(failure) => *failure,
                None => Failure::system(path, errno.unwrap_or(Errno::IO)),
            }
        })
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        Self::other(failure)
    }
}
