//! Calls that wait for the end of a sandbox that was killed.
//!
//! A process that is killed ends when it next runs, which one in a frozen cgroup does not: so a kill may be answered
//! late, and after its deadline by an error that says so. The sandbox is known until it has ended.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::connection::Origin;
use crate::wire::ErrorBody;

/// A kill that has not ended its sandbox by then is answered without.
pub const KILL_DEADLINE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub struct Kills {
    by_id: HashMap<String, Vec<(Instant, Origin)>>,
    /// In the order of the calls, which is that of their deadlines; some have long been answered.
    deadlines: VecDeque<(Instant, String)>,
}

impl Kills {
    pub fn wait(&mut self, id: &str, origin: Origin, now: Instant) {
        let deadline = now + KILL_DEADLINE;
        self.by_id.entry(id.into()).or_default().push((deadline, origin));
        self.deadlines.push_back((deadline, id.into()));
    }

    /// The sandbox has ended: whom to tell.
    pub fn ended(&mut self, id: &str) -> Vec<Origin> {
        self.by_id.remove(id).unwrap_or_default().into_iter().map(|(_, origin)| origin).collect()
    }

    /// When the next kill runs out of time.
    pub fn next_deadline(&mut self) -> Option<Instant> {
        while let Some((deadline, id)) = self.deadlines.front() {
            // the id may have been given out again since
            if self.by_id.get(id).is_some_and(|calls| calls.iter().any(|(wanted, _)| wanted == deadline)) {
                return Some(*deadline);
            }
            self.deadlines.pop_front();
        }
        None
    }

    /// A kill whose time is over, and its sandbox; each is named once.
    pub fn overdue(&mut self, now: Instant) -> Option<(Origin, String)> {
        let deadline = self.next_deadline().filter(|deadline| *deadline <= now)?;
        let (_, id) = self.deadlines.pop_front()?;
        let calls = self.by_id.get_mut(&id)?;
        let place = calls.iter().position(|(wanted, _)| *wanted == deadline)?;
        let (_, origin) = calls.remove(place);
        if calls.is_empty() {
            self.by_id.remove(&id);
        }
        Some((origin, id))
    }
}

pub fn too_late(id: &str) -> ErrorBody {
    let seconds = KILL_DEADLINE.as_secs();
    let message = format!(
        "cannot say that sandbox {id:?} has ended: it was killed {seconds} s ago and still exists; it ends once it can \
         run, so thaw it if it is frozen"
    );
    ErrorBody::new("deadline_exceeded", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(call: u64) -> Origin {
        Origin { connection: 1, call }
    }

    #[test]
    fn everyone_who_waits_for_an_end_is_told_once() {
        let start = Instant::now();
        let mut kills = Kills::default();
        kills.wait("a", origin(1), start);
        kills.wait("b", origin(2), start);
        kills.wait("a", origin(3), start + KILL_DEADLINE / 2);
        assert_eq!(kills.ended("a"), [origin(1), origin(3)]);
        assert_eq!(kills.ended("a"), []);
        assert_eq!(kills.next_deadline(), Some(start + KILL_DEADLINE));
        assert_eq!(kills.ended("b"), [origin(2)]);
        assert_eq!(kills.next_deadline(), None);
    }

    #[test]
    fn a_kill_is_overdue_once_and_others_of_its_sandbox_go_on_waiting() {
        let start = Instant::now();
        let later = start + KILL_DEADLINE / 2;
        let mut kills = Kills::default();
        kills.wait("a", origin(1), start);
        kills.wait("a", origin(2), later);
        assert_eq!(kills.overdue(start), None);
        assert_eq!(kills.overdue(start + KILL_DEADLINE), Some((origin(1), "a".into())));
        assert_eq!(kills.overdue(start + KILL_DEADLINE), None);
        assert_eq!(kills.next_deadline(), Some(later + KILL_DEADLINE));
        assert_eq!(kills.ended("a"), [origin(2)]);
    }
}
