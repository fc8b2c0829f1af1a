//! One peer of the fork server: frames in, frames with descriptors out.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::seqpacket::{Channel, ChannelError};
use crate::wire::{Frame, Hello, Kind, WireError};

/// Frames that wait for a peer that does not read; one more and it is taken for dead.
const MAX_WAITING: usize = 4096;
/// A peer that has not said hello by then is sent away.
pub const HELLO_DEADLINE: Duration = Duration::from_secs(5);

/// Whom to answer: a call on a connection, which may be gone by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub connection: u64,
    pub call: u64,
}

pub struct Connection {
    channel: Channel,
    waiting: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    pub greeted: bool,
    pub hello_by: Instant,
}

impl Connection {
    pub fn new(socket: OwnedFd, now: Instant) -> std::io::Result<Self> {
        let channel = Channel::new(socket)?;
        Ok(Self { channel, waiting: VecDeque::new(), greeted: false, hello_by: now + HELLO_DEADLINE })
    }

    pub fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// Check the first frame of a peer.
    pub fn greet(&mut self, frame: &Frame) -> Result<(), WireError> {
        if frame.kind != Kind::Hello || frame.call != 0 {
            return Err(WireError("cannot listen to a peer that does not say hello first".into()));
        }
        let hello: Hello = frame.read()?;
        if hello.generation == 0 {
            return Err(WireError("cannot speak with generation 0: there is none".into()));
        }
        self.greeted = true;
        Ok(())
    }

    /// Send now or, when the socket is full, later.
    pub fn send(&mut self, frame: &Frame, descriptors: Vec<OwnedFd>) -> Result<(), ChannelError> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(WireError(format!("cannot keep more than {MAX_WAITING} frames for a peer")).into());
        }
        self.waiting.push_back((frame.encode()?, descriptors));
        self.flush()
    }

    /// Send what waits, as far as the socket takes it.
    pub fn flush(&mut self) -> Result<(), ChannelError> {
        while let Some((packet, descriptors)) = self.waiting.front() {
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            if !self.channel.send_packet(packet, &borrowed)? {
                break;
            }
            self.waiting.pop_front();
        }
        Ok(())
    }

    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}
