//! Every process of the sandbox that loses its parent becomes a child of PID 1 and is reaped here, with the commands.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::{Pid, WaitOptions, WaitStatus};

use crate::sys;

pub struct Reaper {
    signals: OwnedFd,
}

impl Reaper {
    /// Must exist before the first fork, so that no end is missed.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { signals: sys::sigchld_descriptor()? })
    }

    /// Every child that has ended; to be called when the descriptor is readable.
    pub fn reap(&self) -> Vec<(Pid, WaitStatus)> {
        let mut discarded = [0; 128];
        // one signal stands for any number of ended children, so what it says does not matter; one that comes after
        // this makes the descriptor readable again
        let _none_there = rustix::io::read(&self.signals, &mut discarded);
        let mut ended = Vec::new();
        while let Ok(Some(child)) = rustix::process::wait(WaitOptions::NOHANG) {
            ended.push(child);
        }
        ended
    }
}

impl AsFd for Reaper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}
