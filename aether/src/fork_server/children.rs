//! Every PID 1 from its clone to its reaping.
//!
//! A pid stays this process's to name until it has been reaped, so that killing, opening a pidfd and matching a death
//! by pid are safe without a descriptor kept for each. What is kept for each is a duplicate of the edge's end of its
//! channel: while it is open, init goes on although the edge is gone.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, wait, Pid, Signal, WaitOptions};

use super::connection::Origin;
use crate::container::steps::Failure;
use crate::sys::{KernelError, On};

pub const MAX_SANDBOXES: usize = 20_000;
/// A create that has not reported by then is killed.
pub const CREATE_DEADLINE: Duration = Duration::from_secs(30);

/// A create under way.
pub struct Making {
    pub origin: Origin,
    pub report: OwnedFd,
    pub pidfd: OwnedFd,
    pub deadline: Instant,
    /// What it said before it ended, or why it was ended.
    pub failure: Option<Failure>,
}

pub struct Sandbox {
    pub id: String,
    pub pid: Pid,
    pub start_time: u64,
    pub channel: OwnedFd,
    pub layers: Vec<String>,
    pub making: Option<Box<Making>>,
    /// Calls that are answered when it is reaped.
    pub kill_origins: Vec<Origin>,
}

/// By pid, and by id.
#[derive(Default)]
pub struct Children {
    by_pid: HashMap<i32, Sandbox>,
    by_id: BTreeMap<String, Pid>,
    /// In the order of their start, which is that of their deadlines; some have long been made.
    deadlines: VecDeque<(Instant, Pid)>,
}

impl Children {
    pub fn len(&self) -> usize {
        self.by_pid.len()
    }

    pub fn insert(&mut self, sandbox: Sandbox) {
        if let Some(making) = &sandbox.making {
            self.deadlines.push_back((making.deadline, sandbox.pid));
        }
        self.by_id.insert(sandbox.id.clone(), sandbox.pid);
        self.by_pid.insert(sandbox.pid.as_raw_nonzero().get(), sandbox);
    }

    pub fn knows(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    pub fn by_pid(&mut self, pid: Pid) -> Option<&mut Sandbox> {
        self.by_pid.get_mut(&pid.as_raw_nonzero().get())
    }

    pub fn by_id(&mut self, id: &str) -> Option<&mut Sandbox> {
        let pid = *self.by_id.get(id)?;
        self.by_pid(pid)
    }

    /// In the order of their ids, those whose creation is over.
    pub fn made(&self) -> impl Iterator<Item = &Sandbox> {
        self.by_id
            .values()
            .filter_map(|pid| self.by_pid.get(&pid.as_raw_nonzero().get()))
            .filter(|sandbox| sandbox.making.is_none())
    }

    pub fn kill_all(&self) -> Result<(), KernelError> {
        self.by_id.values().try_for_each(|pid| kill(*pid))
    }

    /// The next child that has died, out of the tables, with its wait status.
    pub fn reap(&mut self) -> Result<Option<(Sandbox, i32)>, KernelError> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let Some(sandbox) = self.by_pid.remove(&pid.as_raw_nonzero().get()) else { continue };
                    self.by_id.remove(&sandbox.id);
                    return Ok(Some((sandbox, status.as_raw())));
                }
                Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(None),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno).on("wait for", "children"),
            }
        }
    }

    /// When the next create runs out of time, if any is under way.
    pub fn next_deadline(&mut self) -> Option<Instant> {
        while let Some((deadline, pid)) = self.deadlines.front().copied() {
            // the pid may have been given out again since
            let making = self.by_pid(pid).and_then(|sandbox| sandbox.making.as_ref());
            if making.is_some_and(|making| making.deadline == deadline) {
                return Some(deadline);
            }
            self.deadlines.pop_front();
        }
        None
    }

    /// The create whose time is over; each is named once.
    pub fn overdue(&mut self, now: Instant) -> Option<&mut Sandbox> {
        self.next_deadline().filter(|deadline| *deadline <= now)?;
        let (_, pid) = self.deadlines.pop_front()?;
        self.by_pid(pid)
    }
}

/// Kill a child that has not been reaped.
pub fn kill(pid: Pid) -> Result<(), KernelError> {
    kill_process(pid, Signal::KILL).on("kill", pid.as_raw_nonzero())
}

/// Field 22 of /proc/PID/stat, which with the pid names a process for good.
pub fn start_time(pid: Pid) -> Result<u64, KernelError> {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let stat = std::fs::read_to_string(&path).on("read", &path)?;
    parse_start_time(&stat).ok_or(rustix::io::Errno::PROTO).on("find the start time in", path)
}

fn parse_start_time(stat: &str) -> Option<u64> {
    // the program's name, in parentheses, may hold anything
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::parse_start_time;

    #[test]
    fn a_start_time_is_found_past_any_name() {
        let fields = (3..=52).map(|field| if field == 22 { "777".into() } else { field.to_string() });
        let stat = format!("1 (a) b (c) {}", fields.collect::<Vec<_>>().join(" "));
        assert_eq!(parse_start_time(&stat), Some(777));
        assert_eq!(parse_start_time("1 (a"), None);
    }
}
