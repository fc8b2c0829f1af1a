//! The stdin of a command: DATA from the edge into a pipe or terminal that may be full, under credit.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::edge::Edge;
use crate::seqpacket::ChannelError;
use crate::wire::{Frame, WireError, STDIN, WINDOW};

/// Bytes consumed before the sender gets them back as credit.
const GRANT: usize = WINDOW / 4;
/// What a terminal takes for the end of its input.
const END_OF_TRANSMISSION: u8 = 4;

/// What an edge may still send on one stream of a call.
pub struct Allowance {
    left: usize,
    consumed: usize,
}

impl Allowance {
    pub fn new() -> Self {
        Self { left: WINDOW, consumed: 0 }
    }

    /// The edge sent `count` bytes.
    pub fn receive(&mut self, count: usize) -> Result<(), WireError> {
        let Some(left) = self.left.checked_sub(count) else {
            return Err(WireError(format!("cannot take {count} bytes: only {} were granted", self.left)));
        };
        self.left = left;
        Ok(())
    }

    /// `count` bytes have gone where they should; what to grant now, if it is worth a frame.
    pub fn consume(&mut self, count: usize) -> Option<u32> {
        self.consumed += count;
        if self.consumed < GRANT {
            return None;
        }
        // what a predecessor of the edge has sent is no credit of its successor's
        let grant = std::mem::take(&mut self.consumed).min(WINDOW - self.left);
        self.left += grant;
        Some(grant as u32).filter(|grant| *grant > 0)
    }
}

pub struct Input {
    target: Option<OwnedFd>,
    awaits_target: bool,
    terminal: bool,
    queue: VecDeque<u8>,
    allowance: Allowance,
    ended: bool,
}

impl Input {
    /// Whether more is to come.
    pub fn lacks_end(&self) -> bool {
        !self.ended
    }

    /// `target` must not block; it may be attached later.
    pub fn new(target: Option<OwnedFd>, terminal: bool) -> Self {
        let (queue, allowance) = (VecDeque::new(), Allowance::new());
        Self { awaits_target: target.is_none(), target, terminal, queue, allowance, ended: false }
    }

    /// A new edge speaks from here on: its window is fresh.
    pub fn reset_window(&mut self) {
        self.allowance = Allowance::new();
    }

    pub fn attach(&mut self, target: OwnedFd) {
        self.target = Some(target);
        self.awaits_target = false;
    }

    /// DATA has come. After END, or when nobody reads, there is nothing it could be for.
    pub fn push(&mut self, call: u64, frame: &Frame, edge: &mut Edge) -> Result<(), ChannelError> {
        self.allowance.receive(frame.payload.len())?;
        if self.ended || self.target.is_none() && !self.awaits_target {
            return self.consumed(call, frame.payload.len(), edge);
        }
        self.queue.extend(&frame.payload);
        self.ended = frame.end;
        if frame.end && self.terminal {
            self.queue.push_back(END_OF_TRANSMISSION);
        }
        self.write(call, edge)
    }

    /// What to poll for, if there is something to write.
    pub fn wanted(&self) -> Option<BorrowedFd<'_>> {
        self.target.as_ref().filter(|_| !self.queue.is_empty()).map(AsFd::as_fd)
    }

    /// Write what fits now.
    pub fn write(&mut self, call: u64, edge: &mut Edge) -> Result<(), ChannelError> {
        let mut total = 0;
        while let Some(target) = self.target.as_ref().filter(|_| !self.queue.is_empty()) {
            match rustix::io::write(target, self.queue.as_slices().0) {
                Ok(count) => {
                    self.queue.drain(..count);
                    total += count;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // nobody reads any more
                Err(_) => {
                    total += self.queue.len();
                    self.queue = VecDeque::new();
                    self.target = None;
                }
            }
        }
        if self.queue.is_empty() && self.ended && !self.terminal {
            self.target = None;
        }
        self.consumed(call, total, edge)
    }

    fn consumed(&mut self, call: u64, count: usize, edge: &mut Edge) -> Result<(), ChannelError> {
        match self.allowance.consume(count) {
            Some(grant) => edge.send(&Frame::credit(call, STDIN, grant)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_is_granted_in_large_steps_and_never_exceeded() {
        let mut allowance = Allowance::new();
        assert!(allowance.receive(WINDOW).is_ok());
        assert!(allowance.receive(1).is_err());
        assert_eq!(allowance.consume(GRANT - 1), None);
        assert_eq!(allowance.consume(1), Some(GRANT as u32));
        assert!(allowance.receive(GRANT).is_ok());
        assert!(allowance.receive(1).is_err());
    }

    #[test]
    fn a_fresh_window_is_not_widened_by_older_input() {
        let mut allowance = Allowance::new();
        assert_eq!(allowance.consume(WINDOW), None);
        assert!(allowance.receive(WINDOW + 1).is_err());
    }
}
