//! Output pipes that a background process still holds after its command has been answered.
//!
//! Were they closed, a server started with `&` would die of SIGPIPE at its first line of log. So they are read and
//! thrown away, slowly: one that prints without end gets a pipe's worth per tick and waits like for a slow terminal.
//! Past the bound the oldest is closed.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;

const LIMIT: usize = 64;
const TICK: Duration = Duration::from_millis(50);

struct Orphan {
    source: OwnedFd,
    rest_until: Instant,
}

#[derive(Default)]
pub struct Orphans {
    pipes: VecDeque<Orphan>,
}

impl Orphans {
    pub fn adopt(&mut self, source: OwnedFd, now: Instant) {
        self.pipes.push_back(Orphan { source, rest_until: now });
        if self.pipes.len() > LIMIT {
            self.pipes.pop_front();
        }
    }

    /// What to poll for, each with its place for `drain`.
    pub fn wanted(&self, now: Instant) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        let awake = move |(_, orphan): &(usize, &Orphan)| orphan.rest_until <= now;
        self.pipes.iter().enumerate().filter(awake).map(|(place, orphan)| (place, orphan.source.as_fd()))
    }

    /// When the next one wakes up.
    pub fn next_wake(&self, now: Instant) -> Option<Instant> {
        self.pipes.iter().map(|orphan| orphan.rest_until).filter(|until| *until > now).min()
    }

    /// Throw away what the pipes at `places` hold.
    pub fn drain(&mut self, places: &[usize], now: Instant, scratch: &mut [u8]) {
        let mut closed = Vec::new();
        for &place in places {
            let Some(orphan) = self.pipes.get_mut(place) else { continue };
            match rustix::io::read(&orphan.source, &mut *scratch) {
                Ok(count) if count > 0 => orphan.rest_until = now + TICK,
                Err(Errno::AGAIN | Errno::INTR) => {}
                _ => closed.push(place),
            }
        }
        for place in closed.into_iter().rev() {
            self.pipes.remove(place);
        }
    }
}
