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
use super::plan::Plan;
use crate::container::steps::Failure;
use crate::sys::{self, KernelError, On};

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
}

/// A create whose turn has not come.
pub struct Waiting {
    pub origin: Origin,
    pub plan: Plan,
}

/// By pid, and by id; and those still to come.
pub struct Children {
    by_pid: HashMap<i32, Sandbox>,
    by_id: BTreeMap<String, Pid>,
    /// In the order of their start, which is that of their deadlines; some have long been made.
    deadlines: VecDeque<(Instant, Pid)>,
    under_way: usize,
    side_by_side: usize,
    waiting: VecDeque<Waiting>,
}

impl Children {
    /// So many creates run side by side. More would only slow each other down, up to their deadlines.
    pub fn new(side_by_side: usize) -> Self {
        Self {
            by_pid: HashMap::new(),
            by_id: BTreeMap::new(),
            deadlines: VecDeque::new(),
            under_way: 0,
            side_by_side,
            waiting: VecDeque::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.by_pid.is_empty()
    }

    /// Whether any create is under way.
    pub fn are_being_made(&self) -> bool {
        self.under_way > 0
    }

    /// With those still to come.
    pub fn count(&self) -> usize {
        self.by_pid.len() + self.waiting.len()
    }

    pub fn wait(&mut self, create: Waiting) {
        self.waiting.push_back(create);
    }

    /// The create whose turn it is.
    pub fn next_turn(&mut self) -> Option<Waiting> {
        if self.under_way < self.side_by_side {
            self.waiting.pop_front()
        } else {
            None
        }
    }

    /// Take back a create whose turn has not come.
    pub fn withdraw(&mut self, id: &str) -> Option<Waiting> {
        let place = self.waiting.iter().position(|create| create.plan.id == id)?;
        self.waiting.remove(place)
    }

    /// A create is over; its sandbox may live on.
    pub fn finish(&mut self, pid: Pid) -> Option<(&Sandbox, Making)> {
        let sandbox = self.by_pid.get_mut(&pid.as_raw_nonzero().get())?;
        let making = sandbox.making.take()?;
        self.under_way -= 1;
        Some((sandbox, *making))
    }

    pub fn insert(&mut self, sandbox: Sandbox) {
        if let Some(making) = &sandbox.making {
            self.deadlines.push_back((making.deadline, sandbox.pid));
            self.under_way += 1;
        }
        self.by_id.insert(sandbox.id.clone(), sandbox.pid);
        self.by_pid.insert(sandbox.pid.as_raw_nonzero().get(), sandbox);
    }

    pub fn knows(&self, id: &str) -> bool {
        self.by_id.contains_key(id) || self.waiting.iter().any(|create| create.plan.id == id)
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

    /// Those still to come are taken back and returned.
    pub fn kill_all(&mut self) -> Result<VecDeque<Waiting>, KernelError> {
        self.by_id.values().try_for_each(|pid| kill(*pid))?;
        Ok(std::mem::take(&mut self.waiting))
    }

    /// The next child that has died, out of the tables, with its wait status.
    pub fn reap(&mut self) -> Result<Option<(Sandbox, i32)>, KernelError> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let Some(sandbox) = self.by_pid.remove(&pid.as_raw_nonzero().get()) else { continue };
                    self.by_id.remove(&sandbox.id);
                    self.under_way -= usize::from(sandbox.making.is_some());
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
    sys::stat_field(stat, 22)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).unwrap()
    }

    fn making(id: &str, number: i32, deadline: Instant) -> Sandbox {
        let origin = Origin { connection: 1, call: 1 };
        let making = Making { origin, report: nothing(), pidfd: nothing(), deadline, failure: None };
        Sandbox {
            id: id.into(),
            pid: pid(number),
            start_time: 1,
            channel: nothing(),
            layers: vec![],
            making: Some(Box::new(making)),
        }
    }

    #[test]
    fn a_create_is_overdue_once_and_only_while_it_is_under_way() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut children = Children::new(8);
        children.insert(making("a", 10, after(1)));
        children.insert(making("b", 11, after(2)));
        children.insert(making("c", 12, after(3)));
        assert!(children.finish(pid(10)).is_some());
        assert_eq!(children.next_deadline(), Some(after(2)));
        assert!(children.overdue(after(1)).is_none());
        assert_eq!(children.overdue(after(2)).map(|sandbox| sandbox.id.clone()), Some("b".into()));
        assert!(children.overdue(after(2)).is_none());
        assert_eq!(children.next_deadline(), Some(after(3)));
    }

    #[test]
    fn a_pid_given_out_again_has_the_deadline_of_its_own_create() {
        let start = Instant::now();
        let mut children = Children::new(8);
        children.insert(making("a", 10, start));
        assert!(children.finish(pid(10)).is_some());
        children.by_pid.clear();
        children.insert(making("b", 10, start + CREATE_DEADLINE));
        assert_eq!(children.next_deadline(), Some(start + CREATE_DEADLINE));
    }

    #[test]
    fn creates_take_turns_in_the_order_they_came() {
        let plan = |id: &str| Plan { id: id.into(), ..Plan::sample() };
        let mut children = Children::new(1);
        for id in ["a", "b", "c"] {
            children.wait(Waiting { origin: Origin { connection: 1, call: 1 }, plan: plan(id) });
        }
        assert!(children.knows("c"));
        assert_eq!(children.next_turn().map(|create| create.plan.id), Some("a".into()));
        children.insert(making("a", 10, Instant::now()));
        assert!(children.next_turn().is_none());
        assert_eq!(children.withdraw("b").map(|create| create.plan.id), Some("b".into()));
        assert!(children.finish(pid(10)).is_some());
        assert_eq!(children.next_turn().map(|create| create.plan.id), Some("c".into()));
        assert_eq!(children.count(), 1);
    }

    #[test]
    fn a_start_time_is_found_past_any_name() {
        let fields = (3..=52).map(|field| if field == 22 { "777".into() } else { field.to_string() });
        let stat = format!("1 (a) b (c) {}", fields.collect::<Vec<_>>().join(" "));
        assert_eq!(parse_start_time(&stat), Some(777));
        assert_eq!(parse_start_time("1 (a"), None);
    }
}
