//! The time by which PID 1 measures every timeout and deadline: it can be held.
//!
//! While it is held it stands still, and afterwards it is behind by as long as that took, so that whatever was to
//! happen then happens later by the same time. Nothing in PID 1 asks the system's clock but this.

use std::time::{Duration, Instant};

#[derive(Default)]
pub struct Clock {
    /// All the time it was held, up to the last release.
    behind: Duration,
    held_since: Option<Instant>,
}

impl Clock {
    pub fn now(&self) -> Instant {
        self.at(Instant::now())
    }

    /// Whether it stands still: nothing becomes due by waiting.
    pub fn held(&self) -> bool {
        self.held_since.is_some()
    }

    /// Hold it, if it is not held already.
    pub fn hold(&mut self) {
        self.hold_at(Instant::now());
    }

    /// Let it go on; how long it was held.
    pub fn release(&mut self) -> Duration {
        self.release_at(Instant::now())
    }

    fn at(&self, system: Instant) -> Instant {
        self.held_since.unwrap_or(system) - self.behind
    }

    fn hold_at(&mut self, system: Instant) {
        self.held_since.get_or_insert(system);
    }

    fn release_at(&mut self, system: Instant) -> Duration {
        let held = self.held_since.take().map_or(Duration::ZERO, |since| system.saturating_duration_since(since));
        self.behind += held;
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stands_still_while_held_and_goes_on_from_there() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut clock = Clock::default();
        assert_eq!((clock.at(start), clock.held()), (start, false));
        clock.hold_at(after(10));
        assert_eq!((clock.at(after(99)), clock.held()), (after(10), true));
        assert_eq!(clock.release_at(after(110)), Duration::from_secs(100));
        assert_eq!((clock.at(after(111)), clock.held()), (after(11), false));
    }

    #[test]
    fn holding_and_releasing_twice_count_once() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut clock = Clock::default();
        assert_eq!(clock.release_at(after(1)), Duration::ZERO);
        clock.hold_at(after(2));
        clock.hold_at(after(3));
        assert_eq!(clock.release_at(after(5)), Duration::from_secs(3));
        assert_eq!(clock.release_at(after(9)), Duration::ZERO);
        clock.hold_at(after(10));
        assert_eq!(clock.release_at(after(11)), Duration::from_secs(1));
        assert_eq!(clock.at(after(12)), after(8));
    }
}
