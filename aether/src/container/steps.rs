//! The steps of a create, by the names that the edge hears, and a step that failed.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::sys::KernelError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Cgroup,
    Namespaces,
    UserNamespace,
    Layer,
    Overlay,
    Mount,
    Pivot,
    Network,
    Seccomp,
    Drop,
}

impl Stage {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Namespaces => "namespaces",
            Self::UserNamespace => "user_namespace",
            Self::Layer => "layer",
            Self::Overlay => "overlay",
            Self::Mount => "mount",
            Self::Pivot => "pivot",
            Self::Network => "network",
            Self::Seccomp => "seccomp",
            Self::Drop => "drop",
        }
    }
}

/// A step that failed in PID 1, as it travels to the fork server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub stage: String,
    pub errno: i32,
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

/// Says in which step a system call failed.
pub trait During<T> {
    fn during(self, stage: Stage) -> Result<T, Failure>;
}

impl<T> During<T> for Result<T, KernelError> {
    fn during(self, stage: Stage) -> Result<T, Failure> {
        self.map_err(|error| Failure {
            stage: stage.name().into(),
            errno: error.errno.raw_os_error(),
            message: error.to_string(),
        })
    }
}
