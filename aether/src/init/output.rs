//! One output stream of a command: collected within bounds, or streamed under credit.
//!
//! Collected output keeps the first `head` and the last `tail` bytes and counts the rest. A stream without credit is
//! not read, so that its pipe fills and the command waits; PID 1 never does. When the command's own process ends,
//! what the pipe holds at that moment still belongs to it (`finish`), even if a background process keeps it open.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::edge::Edge;
use crate::seqpacket::ChannelError;
use crate::wire::{Frame, DATA_CHUNK, WINDOW};

/// Chunks read from one stream before the others get their turn.
const TURN: usize = 4;

/// Bytes kept of one stream.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct OutputLimit {
    pub head: u64,
    pub tail: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct OutputInfo {
    pub total: u64,
    pub head: u64,
    pub tail: u64,
}

impl OutputInfo {
    /// The same, with nothing kept.
    pub fn cut(self) -> Self {
        Self { head: 0, tail: 0, ..self }
    }
}

/// The first and the last bytes of a stream of any length.
pub struct Collector {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    limit: OutputLimit,
    total: u64,
}

impl Collector {
    pub fn new(limit: OutputLimit) -> Self {
        Self { head: Vec::new(), tail: VecDeque::new(), limit, total: 0 }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = (self.limit.head as usize - self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        let limit = self.limit.tail as usize;
        let rest = &rest[rest.len() - rest.len().min(limit)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(limit);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    /// Bytes held now.
    pub fn held(&self) -> u64 {
        (self.head.len() + self.tail.len()) as u64
    }

    /// Hold no more than now: what is still to come is counted, and of it the last is kept where the tail has room.
    pub fn seal(&mut self) {
        self.limit = OutputLimit { head: self.head.len() as u64, tail: self.tail.len() as u64 };
    }

    pub fn info(&self) -> OutputInfo {
        OutputInfo { total: self.total, head: self.head.len() as u64, tail: self.tail.len() as u64 }
    }

    /// What was kept, head then tail, as DATA of `stream`.
    pub fn frames(self, call: u64, stream: u16) -> Vec<Frame> {
        let mut kept = self.head;
        let (first, second) = self.tail.as_slices();
        kept.extend_from_slice(first);
        kept.extend_from_slice(second);
        kept.chunks(DATA_CHUNK).map(|chunk| Frame::data(call, stream, chunk.to_vec(), false)).collect()
    }
}

pub enum Sink {
    Collect(Collector),
    Stream { credit: u64, total: u64 },
}

impl Sink {
    pub fn stream() -> Self {
        Self::Stream { credit: WINDOW as u64, total: 0 }
    }
}

/// Our end of the pipe (or terminal) that a command prints to.
pub struct Output {
    source: Option<OwnedFd>,
    pub stream: u16,
    sink: Sink,
    /// After the command's own process has ended: bytes of the pipe that still belong to it.
    remaining: Option<u64>,
}

impl Output {
    /// `source` must not block.
    pub fn new(source: OwnedFd, stream: u16, sink: Sink) -> Self {
        Self { source: Some(source), stream, sink, remaining: None }
    }

    /// What to poll for, if reading is possible now.
    pub fn wanted(&self, edge: &Edge) -> Option<BorrowedFd<'_>> {
        let may_read = match &self.sink {
            Sink::Collect(_) => true,
            Sink::Stream { credit, .. } => *credit > 0 && edge.has_room(),
        };
        self.source.as_ref().filter(|_| may_read && !self.done()).map(AsFd::as_fd)
    }

    /// Take what is there, at most one turn's worth.
    pub fn read(&mut self, call: u64, edge: &mut Edge, scratch: &mut [u8]) -> Result<(), ChannelError> {
        for _ in 0..TURN {
            if self.wanted(edge).is_none() || !self.read_chunk(call, edge, scratch)? {
                break;
            }
        }
        Ok(())
    }

    fn read_chunk(&mut self, call: u64, edge: &mut Edge, scratch: &mut [u8]) -> Result<bool, ChannelError> {
        let Some(source) = &self.source else { return Ok(false) };
        let mut want = scratch.len().min(DATA_CHUNK) as u64;
        if let Sink::Stream { credit, .. } = &self.sink {
            want = want.min(*credit);
        }
        want = want.min(self.remaining.unwrap_or(want));
        let count = match rustix::io::read(source, &mut scratch[..want as usize]) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => {
                // of what was there at the end nothing is left: a process inside that holds the pipe has read it
                self.remaining = self.remaining.map(|_| 0);
                return Ok(false);
            }
            // EIO is how a terminal says that its last process has closed it
            Err(_) => 0,
        };
        if count == 0 {
            self.source = None;
            return Ok(false);
        }
        self.take(call, &scratch[..count], edge)?;
        if let Some(remaining) = &mut self.remaining {
            *remaining -= count as u64;
        }
        Ok(true)
    }

    fn take(&mut self, call: u64, bytes: &[u8], edge: &mut Edge) -> Result<(), ChannelError> {
        match &mut self.sink {
            Sink::Collect(collector) => collector.push(bytes),
            Sink::Stream { credit, total } => {
                *credit -= bytes.len() as u64;
                *total += bytes.len() as u64;
                edge.send(&Frame::data(call, self.stream, bytes.to_vec(), false))?;
            }
        }
        Ok(())
    }

    /// The command's own process has ended: what the pipe holds now is the last of it. A terminal passes on late
    /// what was printed early, but hangs up when its session ends, so it is read up to that.
    pub fn finish(&mut self, terminal: bool) {
        if self.remaining.is_none() && !terminal {
            let held = self.source.as_ref().and_then(|source| rustix::io::ioctl_fionread(source).ok());
            self.remaining = Some(held.unwrap_or(0));
        }
    }

    /// Whether nothing more will come.
    pub fn done(&self) -> bool {
        self.source.is_none() || self.remaining == Some(0)
    }

    /// Nobody wants what is left.
    pub fn abandon(&mut self) {
        self.remaining = Some(0);
    }

    /// The pipe, when a process in the background still holds it open.
    pub fn take_source(&mut self) -> Option<OwnedFd> {
        self.source.take()
    }

    /// Bytes of PID 1's memory in what was collected.
    pub fn held(&self) -> u64 {
        match &self.sink {
            Sink::Collect(collector) => collector.held(),
            Sink::Stream { .. } => 0,
        }
    }

    pub fn seal(&mut self) {
        if let Sink::Collect(collector) = &mut self.sink {
            collector.seal();
        }
    }

    pub fn grant(&mut self, amount: u32) {
        if let Sink::Stream { credit, .. } = &mut self.sink {
            *credit = credit.saturating_add(amount.into());
        }
    }

    /// A new edge reads from here on: its window is fresh.
    pub fn reset_window(&mut self) {
        if let Sink::Stream { credit, .. } = &mut self.sink {
            *credit = WINDOW as u64;
        }
    }

    pub fn info(&self) -> OutputInfo {
        match &self.sink {
            Sink::Collect(collector) => collector.info(),
            Sink::Stream { total, .. } => OutputInfo { total: *total, head: 0, tail: 0 },
        }
    }

    /// The frames to send before the RESULT: what was collected, or the END of the stream.
    pub fn into_frames(self, call: u64) -> Vec<Frame> {
        match self.sink {
            Sink::Collect(collector) => collector.frames(call, self.stream),
            Sink::Stream { .. } => vec![Frame::data(call, self.stream, Vec::new(), true)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected(head: u64, tail: u64, pieces: &[&[u8]]) -> (Vec<u8>, OutputInfo) {
        let mut collector = Collector::new(OutputLimit { head, tail });
        pieces.iter().for_each(|piece| collector.push(piece));
        let info = collector.info();
        (collector.frames(1, 2).into_iter().flat_map(|frame| frame.payload).collect(), info)
    }

    #[test]
    fn the_first_and_the_last_are_kept_however_they_come() {
        for pieces in [&[&b"0123456789"[..]][..], &[b"012", b"3456", b"789"], &[b"0", b"12345678", b"9"]] {
            let (kept, info) = collected(3, 4, pieces);
            assert_eq!((kept.as_slice(), info.total, info.head, info.tail), (&b"0126789"[..], 10, 3, 4));
        }
        assert_eq!(collected(0, 0, &[b"abc"]).0, b"");
        assert_eq!(collected(0, 2, &[b"abc", b"d"]).0, b"cd");
        assert_eq!(collected(5, 5, &[b"abc"]).0, b"abc");
    }

    #[test]
    fn a_sealed_collector_grows_no_more_and_goes_on_counting() {
        let mut collector = Collector::new(OutputLimit { head: 2, tail: 8 });
        collector.push(b"abcd");
        collector.seal();
        collector.push(b"efgh");
        let info = collector.info();
        assert_eq!((collector.held(), info.total, info.head, info.tail), (4, 8, 2, 2));
        assert_eq!(collector.frames(1, 2)[0].payload, b"abgh");
    }
}
