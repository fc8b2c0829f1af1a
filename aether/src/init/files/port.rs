//! A file child's side of its conversation with PID 1: DATA in and out, both under credit, until its answer.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{poll, PollFd, PollFlags};
use serde::Serialize;

use super::failure::Failure;
use crate::seqpacket::{Channel, Received};
use crate::wire::{pack, ErrorBody, Frame, Kind, DATA_CHUNK, STDIN, STDOUT, WINDOW};

/// Bytes taken before they are granted again.
pub const GRANT: usize = WINDOW / 4;

pub struct Port {
    channel: Channel,
    call: u64,
    credit: usize,
    input: VecDeque<Vec<u8>>,
    input_ended: bool,
    consumed: usize,
    canceled: bool,
}

impl Port {
    pub fn new(channel: Channel, call: u64) -> Self {
        let input = VecDeque::new();
        Self { channel, call, credit: WINDOW, input, input_ended: false, consumed: 0, canceled: false }
    }

    /// Send bytes of stream 2, waiting for credit.
    pub fn send(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            while self.credit == 0 {
                self.wait(PollFlags::IN)?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(self.credit).min(DATA_CHUNK));
            self.credit -= now.len();
            self.post(&Frame::data(self.call, STDOUT, now.to_vec(), false))?;
            bytes = later;
        }
        Ok(())
    }

    /// Send one value as one DATA frame; it must be small enough for one.
    pub fn send_message<T: Serialize + ?Sized>(&mut self, message: &T) -> Result<(), Failure> {
        let bytes = pack(message).map_err(|error| Failure::Refused(ErrorBody::new("internal", error.0)))?;
        while self.credit < bytes.len() {
            self.wait(PollFlags::IN)?;
        }
        self.credit -= bytes.len();
        self.post(&Frame::data(self.call, STDOUT, bytes, false))
    }

    /// The next bytes of stream 1; none after its end.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            if let Some(bytes) = self.input.pop_front() {
                self.consumed += bytes.len();
                if self.consumed >= GRANT {
                    let grant = std::mem::take(&mut self.consumed) as u32;
                    self.post(&Frame::credit(self.call, STDIN, grant))?;
                }
                return Ok(Some(bytes));
            }
            if self.input_ended {
                return Ok(None);
            }
            self.wait(PollFlags::IN)?;
        }
    }

    /// End the call.
    pub fn answer<T: Serialize>(&mut self, result: Result<T, Failure>) -> Result<(), Failure> {
        // an answer ends a canceled call as well
        self.canceled = false;
        let frame = match result {
            Ok(answer) => Frame::message(Kind::Result, self.call, &answer),
            Err(failure) => Frame::message(Kind::Error, self.call, &failure.body()),
        };
        let frame = frame.map_err(|error| Failure::Refused(ErrorBody::new("internal", error.0)))?;
        self.post(&frame)
    }

    fn post(&mut self, frame: &Frame) -> Result<(), Failure> {
        while !self.channel.send(frame, &[]).map_err(|_| Failure::Gone)? {
            self.wait(PollFlags::OUT)?;
        }
        Ok(())
    }

    /// Wait until the channel is ready and take what has come.
    fn wait(&mut self, flags: PollFlags) -> Result<(), Failure> {
        let mut polled = [PollFd::from_borrowed_fd(self.channel.as_fd(), flags | PollFlags::IN)];
        // how long this may take is PID 1's to say, which ends us
        let _interrupted = poll(&mut polled, None);
        self.take()
    }

    /// Take every frame that is there.
    pub fn take(&mut self) -> Result<(), Failure> {
        loop {
            match self.channel.receive().map_err(|_| Failure::Gone)? {
                Received::Frame(frame, _) => self.take_frame(frame)?,
                Received::Empty if self.canceled => return Err(Failure::Canceled),
                Received::Empty => return Ok(()),
                Received::Closed => return Err(Failure::Gone),
            }
        }
    }

    fn take_frame(&mut self, frame: Frame) -> Result<(), Failure> {
        match frame.kind {
            Kind::Data => {
                self.input_ended |= frame.end;
                if !frame.payload.is_empty() {
                    self.input.push_back(frame.payload);
                }
            }
            Kind::Credit => self.credit += frame.credit_amount().map_err(|_| Failure::Gone)? as usize,
            Kind::Cancel => self.canceled = true,
            _ => {}
        }
        Ok(())
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Values of stream 2 on their way, sent as arrays: several a DATA, or one that is large. Each DATA must be smaller than
/// what a reader grants at the latest (half a window), or it would never fit into what is left.
pub struct Batch<T> {
    values: Vec<T>,
    weight: usize,
}

/// Bytes of several values in one DATA, at most.
const BATCH: usize = 32 * 1024;

impl<T: Serialize> Batch<T> {
    pub fn new() -> Self {
        Self { values: Vec::new(), weight: 0 }
    }

    /// `weight` is what the value takes on the wire, roughly and at most.
    pub fn push(&mut self, value: T, weight: usize, port: &mut Port) -> Result<(), Failure> {
        if self.weight + weight > BATCH {
            self.flush(port)?;
        }
        self.values.push(value);
        self.weight += weight;
        Ok(())
    }

    /// Send what is there.
    pub fn flush(&mut self, port: &mut Port) -> Result<(), Failure> {
        self.weight = 0;
        let values = std::mem::take(&mut self.values);
        if values.is_empty() {
            return Ok(());
        }
        port.send_message(&values)
    }
}

/// Stream 2 as something to write to.
pub struct PortWriter<'a>(pub &'a mut Port);

impl io::Write for PortWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Stream 1 as something to read from.
pub struct PortReader<'a> {
    port: &'a mut Port,
    current: Vec<u8>,
    taken: usize,
}

impl<'a> PortReader<'a> {
    pub fn new(port: &'a mut Port) -> Self {
        Self { port, current: Vec::new(), taken: 0 }
    }
}

impl io::Read for PortReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.current.len() {
            let Some(bytes) = self.port.receive()? else { return Ok(0) };
            self.current = bytes;
            self.taken = 0;
        }
        let count = buffer.len().min(self.current.len() - self.taken);
        buffer[..count].copy_from_slice(&self.current[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}
