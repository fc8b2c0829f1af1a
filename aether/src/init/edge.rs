//! The edge's side of PID 1: frames out in order and bounded, answers kept, one epoch at a time.
//!
//! Every call is known here from `begin` to the ACK of its answer, and ends once: so a successor of the edge can be
//! told of each, with the tag that its predecessor gave it.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};

use serde::Serialize;

use super::kept::{Ended, Kept, Known, Packet};
use crate::fault;
use crate::seqpacket::{Channel, ChannelError, Received};
use crate::wire::{ErrorBody, Frame, Hello, Kind, WireError};

/// Bytes waiting for the edge above which nothing more is read for it: no output, no call.
const ROOM: usize = 1024 * 1024;

pub struct Edge {
    channel: Channel,
    waiting: VecDeque<Packet>,
    waiting_bytes: usize,
    /// Calls that were taken and not answered.
    running: BTreeMap<u64, Known>,
    /// Calls taken so far.
    taken: u64,
    kept: Kept,
    /// Of the newest edge that said hello.
    epoch: Option<String>,
}

/// What a successor is told of a call.
#[derive(Serialize)]
struct News<'a> {
    known: &'a str,
    running: bool,
}

impl Edge {
    pub fn new(channel: Channel, kept: Kept) -> Self {
        let (waiting, running) = (VecDeque::new(), BTreeMap::new());
        Self { channel, waiting, waiting_bytes: 0, running, taken: 0, kept, epoch: None }
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

    /// With the epoch of the edge that is answered: a successor may find the hello to one that never read its own.
    pub fn say_hello(&mut self) -> Result<(), ChannelError> {
        let epoch = self.epoch.clone().unwrap_or_default();
        let hello = Frame::message(Kind::Hello, 0, &Hello { epoch, ..Hello::ours("init") })?;
        self.send(&hello)
    }

    /// An edge said hello. The first one has our hello already. A successor gets it again and then every call that is
    /// known; what waited for its predecessor is dropped, since each answer in it is kept too.
    pub fn meet(&mut self, hello: &Hello) -> Result<bool, ChannelError> {
        let successor = self.epoch.replace(hello.epoch.clone()).is_some();
        if successor {
            self.waiting.clear();
            self.waiting_bytes = 0;
            self.say_hello()?;
            self.known()?.into_iter().for_each(|packet| self.push(packet));
            self.flush()?;
        }
        Ok(successor)
    }

    /// What there is to say of every call, oldest first.
    fn known(&self) -> Result<Vec<Packet>, WireError> {
        let running = self.running.iter().map(|(call, known)| (known.order, call_that_runs(*call, known)));
        let ended = self.kept.ended().map(|ended| (ended.known.order, call_that_ended(&ended)));
        let mut calls: Vec<_> = running.chain(ended).collect();
        calls.sort_by_key(|(order, _)| *order);
        let packets = calls.into_iter().map(|(_, packets)| packets).collect::<Result<Vec<_>, _>>()?;
        Ok(packets.into_iter().flatten().collect())
    }

    /// A call is taken: it will be ended by one RESULT or ERROR.
    pub fn begin(&mut self, call: u64, tag: String) {
        self.taken += 1;
        self.running.insert(call, Known { order: self.taken, tag });
    }

    pub fn runs(&self, call: u64) -> bool {
        self.running.contains_key(&call)
    }

    /// Bytes that are kept no more.
    pub fn acknowledge(&mut self, call: u64) -> usize {
        self.kept.acknowledge(call)
    }

    /// Send the kept answer of `call` once more; false says that none is kept.
    pub fn answer_again(&mut self, call: u64) -> Result<bool, ChannelError> {
        let packets = match self.kept.get(call) {
            Some(packets) => packets.to_vec(),
            None if self.kept.has_faded(call) => vec![unknown(call)?],
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
        let known = self.running.remove(&call);
        debug_assert!(known.is_some(), "call {call} was not taken or ends twice");
        packets.iter().cloned().for_each(|packet| self.push(packet));
        self.kept.keep(call, known.unwrap_or_default(), packets, cut);
        fault::point("init.answer.kept");
        self.flush()?;
        fault::point("init.answer.sent");
        Ok(())
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

fn call_that_runs(call: u64, known: &Known) -> Result<Vec<Packet>, WireError> {
    Ok(vec![encode(&Frame::message(Kind::Event, call, &News { known: &known.tag, running: true })?)?])
}

fn call_that_ended(ended: &Ended<'_>) -> Result<Vec<Packet>, WireError> {
    let news = News { known: &ended.known.tag, running: false };
    let mut packets = vec![encode(&Frame::message(Kind::Event, ended.call, &news)?)?];
    match ended.answer {
        Some(answer) => packets.extend_from_slice(answer),
        None => packets.push(unknown(ended.call)?),
    }
    Ok(packets)
}

fn unknown(call: u64) -> Result<Packet, WireError> {
    let message = "cannot say how the call ended: its answer was not acknowledged and had to make room";
    encode(&Frame::message(Kind::Error, call, &ErrorBody::new("outcome_unknown", message))?)
}

fn encode(frame: &Frame) -> Result<Packet, WireError> {
    Ok(frame.encode()?.into())
}
