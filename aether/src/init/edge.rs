//! The edge's side of PID 1: frames out in order and bounded, answers kept, one epoch at a time.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use serde::Serialize;

use super::kept::{Kept, Packet};
use crate::seqpacket::{Channel, ChannelError, Received};
use crate::wire::{ErrorBody, Frame, Hello, Kind, WireError};

/// Bytes waiting for the edge above which nothing more is read for it: no output, no call.
const ROOM: usize = 1024 * 1024;

pub struct Edge {
    channel: Channel,
    waiting: VecDeque<Packet>,
    waiting_bytes: usize,
    kept: Kept,
    /// Of the newest edge that said hello.
    epoch: Option<String>,
}

impl Edge {
    pub fn new(channel: Channel) -> Self {
        Self { channel, waiting: VecDeque::new(), waiting_bytes: 0, kept: Kept::default(), epoch: None }
    }

    /// Whether something that produces frames may go on.
    pub fn has_room(&self) -> bool {
        self.waiting_bytes < ROOM
    }

    pub fn wants_write(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub fn receive(&mut self) -> Result<Received, ChannelError> {
        self.channel.receive()
    }

    pub fn greeted(&self) -> bool {
        self.epoch.is_some()
    }

    pub fn say_hello(&mut self) -> Result<(), ChannelError> {
        let hello = Frame::message(Kind::Hello, 0, &Hello::ours("init"))?;
        self.send(&hello)
    }

    /// An edge said hello. The first one has our hello already. A successor gets it again and then every kept answer;
    /// what waited for its predecessor is dropped, since each answer in it is kept too.
    pub fn meet(&mut self, hello: &Hello) -> Result<bool, ChannelError> {
        let successor = self.epoch.replace(hello.epoch.clone()).is_some();
        if successor {
            self.waiting.clear();
            self.waiting_bytes = 0;
            self.say_hello()?;
            let unknown = self.kept.faded().map(unknown).collect::<Result<Vec<_>, _>>()?;
            let kept: Vec<Packet> = self.kept.packets().cloned().collect();
            unknown.into_iter().chain(kept).for_each(|packet| self.push(packet));
            self.flush()?;
        }
        Ok(successor)
    }

    pub fn acknowledge(&mut self, call: u64) {
        self.kept.acknowledge(call);
    }

    /// Send the kept answer of `call` once more; false says that none is kept.
    pub fn answer_again(&mut self, call: u64) -> Result<bool, ChannelError> {
        let packets = match self.kept.get(call) {
            Some(packets) => packets.to_vec(),
            None if self.kept.faded().any(|faded| faded == call) => vec![unknown(call)?],
            None => return Ok(false),
        };
        packets.into_iter().for_each(|packet| self.push(packet));
        self.flush()?;
        Ok(true)
    }

    pub fn send(&mut self, frame: &Frame) -> Result<(), ChannelError> {
        let packet = frame.encode()?;
        if self.waiting.is_empty() && self.channel.send_packet(&packet, &[])? {
            return Ok(());
        }
        self.push(packet.into());
        Ok(())
    }

    /// End `call` with a RESULT after `output`, its collected DATA. `cut` is the same RESULT for when the output
    /// cannot be kept.
    pub fn answer<T: Serialize>(
        &mut self,
        call: u64,
        output: Vec<Frame>,
        result: &T,
        cut: &T,
    ) -> Result<(), ChannelError> {
        let cut = encode(&Frame::message(Kind::Result, call, cut)?)?;
        let mut packets = output.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
        packets.push(encode(&Frame::message(Kind::Result, call, result)?)?);
        self.end(call, packets, cut)
    }

    /// End `call` with a RESULT.
    pub fn result<T: Serialize>(&mut self, call: u64, result: &T) -> Result<(), ChannelError> {
        let packet = encode(&Frame::message(Kind::Result, call, result)?)?;
        self.end(call, vec![packet.clone()], packet)
    }

    /// End `call` with an ERROR.
    pub fn error(&mut self, call: u64, error: &ErrorBody) -> Result<(), ChannelError> {
        let packet = encode(&Frame::message(Kind::Error, call, error)?)?;
        self.end(call, vec![packet.clone()], packet)
    }

    /// End `call` with a RESULT or ERROR that is encoded already.
    pub fn pass(&mut self, answer: &Frame) -> Result<(), ChannelError> {
        let packet = encode(answer)?;
        self.end(answer.call, vec![packet.clone()], packet)
    }

    fn end(&mut self, call: u64, packets: Vec<Packet>, cut: Packet) -> Result<(), ChannelError> {
        packets.iter().cloned().for_each(|packet| self.push(packet));
        self.kept.keep(call, packets, cut);
        self.flush()
    }

    fn push(&mut self, packet: Packet) {
        self.waiting_bytes += packet.len();
        self.waiting.push_back(packet);
    }

    pub fn flush(&mut self) -> Result<(), ChannelError> {
        while let Some(packet) = self.waiting.front() {
            if !self.channel.send_packet(packet, &[])? {
                break;
            }
            self.waiting_bytes -= packet.len();
            self.waiting.pop_front();
        }
        Ok(())
    }
}

impl AsFd for Edge {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

fn unknown(call: u64) -> Result<Packet, WireError> {
    let message = "cannot say how the call ended: its answer was not acknowledged and had to make room";
    encode(&Frame::message(Kind::Error, call, &ErrorBody::new("outcome_unknown", message))?)
}

fn encode(frame: &Frame) -> Result<Packet, WireError> {
    Ok(frame.encode()?.into())
}
