//! Sandboxes that another fork server made and left: `sandbox.hold`.
//!
//! Their PID 1 is not this process's child, so that its pid may be given out again and its end is not told by a wait:
//! each is named by its pidfd alone, which is readable from that end on. How it ended nobody here learns.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{sockopt, SocketType};
use rustix::process::{pidfd_send_signal, Pid, Signal};

use super::children;
use crate::sys::{KernelError, On};

pub struct Held {
    pub pid: Pid,
    pub start_time: u64,
    pub pidfd: OwnedFd,
    pub channel: OwnedFd,
}

impl Held {
    /// Believed once it is seen that `pidfd` is of that process; the reason says what it is of instead.
    pub fn checked(pid: i32, start_time: u64, pidfd: OwnedFd, channel: OwnedFd) -> Result<Self, String> {
        let number = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw);
        let number = number.ok_or_else(|| format!("{pid} is no pid"))?;
        let started = children::start_time(number).map_err(|error| error.to_string())?;
        // after the start time was read: a process that is not reaped had its pid then
        match named_pid(&pidfd).map_err(|error| error.to_string())? {
            Some(named) if named == pid => {}
            Some(named) => return Err(format!("the pidfd is of process {named}, not of {pid}")),
            None => return Err(format!("the pidfd of process {pid} is none")),
        }
        if started != start_time {
            return Err(format!("process {pid} has started at {started}, not at {start_time}"));
        }
        match sockopt::socket_type(&channel) {
            Ok(SocketType::SEQPACKET) => Ok(Self { pid: number, start_time, pidfd, channel }),
            _ => Err("the channel is no SOCK_SEQPACKET socket".into()),
        }
    }

    pub fn kill(&self) -> Result<(), KernelError> {
        match pidfd_send_signal(&self.pidfd, Signal::KILL) {
            // it has ended, which will be told
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno).on("kill", self.pid.as_raw_nonzero()),
        }
    }
}

/// The pid that a pidfd stands for, -1 once it is reaped; none of another descriptor.
fn named_pid(pidfd: &OwnedFd) -> Result<Option<i32>, KernelError> {
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
    let info = std::fs::read_to_string(&path).on("read", &path)?;
    Ok(info.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|text| text.trim().parse().ok()))
}

#[derive(Default)]
pub struct HeldSandboxes {
    by_id: BTreeMap<String, Held>,
    /// What the epoll set knows them by.
    ids: HashMap<u64, String>,
    last_number: u64,
}

impl HeldSandboxes {
    /// Hold it, and have `epoll` tell of its end under `first` and a number.
    pub fn insert(&mut self, id: &str, held: Held, epoll: &OwnedFd, first: u64) -> Result<(), Errno> {
        self.last_number += 1;
        let about = epoll::EventData::new_u64(first + self.last_number);
        epoll::add(epoll, &held.pidfd, about, epoll::EventFlags::IN)?;
        self.ids.insert(self.last_number, id.into());
        self.by_id.insert(id.into(), held);
        Ok(())
    }

    /// The one of that number, out of the tables.
    pub fn remove(&mut self, number: u64) -> Option<(String, Held)> {
        let id = self.ids.remove(&number)?;
        self.by_id.remove_entry(&id)
    }

    pub fn get(&self, id: &str) -> Option<&Held> {
        self.by_id.get(id)
    }

    pub fn knows(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    pub fn count(&self) -> usize {
        self.by_id.len()
    }

    /// In the order of their ids, those above `after`.
    pub fn above(&self, after: &str) -> impl Iterator<Item = (&str, &Held)> {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        self.by_id.range::<str, _>(range).map(|(id, held)| (id.as_str(), held))
    }

    pub fn kill_all(&self) -> Result<(), KernelError> {
        self.by_id.values().try_for_each(Held::kill)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{socketpair, AddressFamily, SocketFlags};
    use rustix::process::{getpid, pidfd_open, PidfdFlags};

    fn channel() -> OwnedFd {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap().0
    }

    fn pidfd() -> OwnedFd {
        pidfd_open(getpid(), PidfdFlags::empty()).unwrap()
    }

    #[test]
    fn only_what_is_that_process_is_believed() {
        let me = getpid().as_raw_nonzero().get();
        let started = children::start_time(getpid()).unwrap();
        let nothing = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let why = |pid, started, pidfd, channel| Held::checked(pid, started, pidfd, channel).err().unwrap_or_default();
        assert_eq!(why(me, started, pidfd(), channel()), "");
        assert!(why(1, started, pidfd(), channel()).contains(&format!("of process {me}, not of 1")));
        assert!(why(me, started + 1, pidfd(), channel()).contains("started at"));
        assert!(why(me, started, nothing(), channel()).contains("is none"));
        assert!(why(me, started, pidfd(), nothing()).contains("no SOCK_SEQPACKET"));
        assert!(why(0, started, pidfd(), channel()).contains("no pid"));
        assert!(why(-1, started, pidfd(), channel()).contains("no pid"));
    }

    #[test]
    fn the_held_are_listed_in_order_and_leave_by_their_number() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let started = children::start_time(getpid()).unwrap();
        let me = getpid().as_raw_nonzero().get();
        let mut held = HeldSandboxes::default();
        for id in ["c", "a", "b"] {
            let one = Held::checked(me, started, pidfd(), channel()).unwrap();
            held.insert(id, one, &epoll, 100).unwrap();
        }
        assert_eq!(held.above("a").map(|(id, _)| id).collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(held.above("").count(), 3);
        assert_eq!(held.remove(2).map(|(id, _)| id), Some("a".into()));
        assert!(held.remove(2).is_none() && !held.knows("a") && held.get("b").is_some());
        assert_eq!(held.count(), 2);
    }
}
