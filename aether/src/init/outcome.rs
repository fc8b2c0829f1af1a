//! How a command ended, and the errors that PID 1 answers instead.

use std::time::Duration;

use rustix::io::Errno;
use rustix::process::WaitStatus;
use serde::Serialize;

use super::child::{Failure, Stage};
use super::output::OutputInfo;
use crate::wire::ErrorBody;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Exited(i32),
    Signaled(i32),
    TimedOut,
    Canceled,
}

impl Ended {
    pub fn of(status: WaitStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, signal) => Self::Signaled(signal.unwrap_or(0)),
        }
    }
}

/// The RESULT of exec and session.run.
#[derive(Clone, Debug, Serialize)]
pub struct ExecAnswer {
    ended: &'static str,
    exit_code: Option<i32>,
    signal: Option<i32>,
    duration_us: u64,
    pub stdout: OutputInfo,
    pub stderr: OutputInfo,
    pub oom_kills: u64,
    pub pids_refused: u64,
    pub untrusted: bool,
    pub session_ended: bool,
}

impl ExecAnswer {
    pub fn new(ended: Ended, duration: Duration) -> Self {
        let (ended, exit_code, signal) = match ended {
            Ended::Exited(code) => ("exited", Some(code), None),
            Ended::Signaled(signal) => ("signaled", None, Some(signal)),
            Ended::TimedOut => ("timed_out", None, None),
            Ended::Canceled => ("canceled", None, None),
        };
        Self {
            ended,
            exit_code,
            signal,
            duration_us: duration.as_micros() as u64,
            stdout: OutputInfo::default(),
            stderr: OutputInfo::default(),
            oom_kills: 0,
            pids_refused: 0,
            untrusted: false,
            session_ended: false,
        }
    }

    /// The same answer when its output is not kept.
    pub fn cut(&self) -> Self {
        Self { stdout: self.stdout.cut(), stderr: self.stderr.cut(), ..self.clone() }
    }
}

/// The command never ran.
pub fn not_started(what: &str, failure: Failure) -> ErrorBody {
    let Failure { stage, errno } = failure;
    let kind = match (stage, errno) {
        (_, Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::NOSPC | Errno::TOOBIG) => "resources",
        (Stage::User, Errno::NOENT) => "no_such_user",
        // ids that the sandbox's range does not have
        (Stage::Groups, Errno::INVAL) => "no_such_user",
        (Stage::Cwd, Errno::NOENT | Errno::NOTDIR) => "no_such_directory",
        (Stage::Exec, Errno::NOENT | Errno::NOTDIR) => "not_found",
        (Stage::Exec, Errno::NOEXEC) => "not_executable",
        (_, Errno::ACCESS | Errno::PERM) => "permission",
        _ => "other",
    };
    let why = match kind {
        "no_such_user" => "the sandbox has no such user".to_owned(),
        "no_such_directory" => "there is no such directory in the sandbox".to_owned(),
        "not_found" => "there is no such program, or what interprets it is missing".to_owned(),
        "not_executable" => "it is not an executable file".to_owned(),
        _ => exhausted(failure).map_or_else(|| describe(errno), |(_, why)| why.to_owned()),
    };
    let body = ErrorBody::new("command_not_started", format!("cannot start {what:?}: {why} ({})", stage.name()))
        .with("kind", kind)
        .with("errno", errno.raw_os_error())
        .with("stage", stage.name());
    match exhausted(failure) {
        Some((resource, _)) => body.with("resource", resource),
        None => body,
    }
}

/// Which bound of the sandbox keeps a process from being made, and what to do.
fn exhausted(failure: Failure) -> Option<(&'static str, &'static str)> {
    match (failure.stage, failure.errno) {
        (Stage::Fork, Errno::AGAIN) => {
            Some(("pids", "the sandbox has as many processes as its limit allows; wait for some to end, or stop it"))
        }
        (Stage::Fork, Errno::NOMEM) => {
            Some(("memory", "the sandbox's memory is used up; wait for something to end, or stop it"))
        }
        _ => None,
    }
}

/// What the system says of an error, as part of a sentence.
pub fn describe(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

pub fn invalid(field: &str, why: &str) -> ErrorBody {
    ErrorBody::new("invalid_argument", format!("cannot use {field}: {why}")).with("field", field)
}

/// A bound of PID 1 is reached.
pub fn too_many(resource: &str, limit: usize) -> ErrorBody {
    let message = format!("cannot open another call: {limit} {resource} at once are the limit; wait for one to end");
    ErrorBody::new("quota_exceeded", message).with("resource", resource).with("limit", limit as i64)
}
