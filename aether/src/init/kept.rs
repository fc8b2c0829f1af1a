//! Answers kept until the edge has acknowledged them, so that an edge that dies between reading and recording loses
//! none.
//!
//! Bounded by bytes and by number. The oldest goes first; what remains of it is that its outcome is unknown. An
//! answer that alone is over the bound is kept without its output, which is then counted as cut.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Bytes kept of all answers together.
const LIMIT: usize = 1024 * 1024;
/// Answers remembered, those whose frames are gone included.
const LIMIT_ANSWERS: usize = 4096;

/// An encoded frame, shared between what is kept and what waits to be sent.
pub type Packet = Rc<[u8]>;

#[derive(Default)]
pub struct Kept {
    answers: BTreeMap<u64, Vec<Packet>>,
    /// Oldest first; numbers that were acknowledged are skipped when they come up.
    order: VecDeque<u64>,
    bytes: usize,
}

impl Kept {
    /// Keep the answer of `call`. `without_output` stands for it when it is too large.
    pub fn keep(&mut self, call: u64, packets: Vec<Packet>, without_output: Packet) {
        let packets = if size(&packets) > LIMIT { vec![without_output] } else { packets };
        self.bytes += size(&packets);
        self.answers.insert(call, packets);
        self.order.push_back(call);
        while self.bytes > LIMIT || self.order.len() > LIMIT_ANSWERS {
            let Some(oldest) = self.order.pop_front() else { break };
            self.forget(oldest);
        }
    }

    pub fn acknowledge(&mut self, call: u64) {
        if self.forget(call) {
            while self.order.front().is_some_and(|oldest| !self.answers.contains_key(oldest)) {
                self.order.pop_front();
            }
        }
    }

    pub fn get(&self, call: u64) -> Option<&[Packet]> {
        self.answers.get(&call).map(Vec::as_slice)
    }

    /// Every kept answer's packets, oldest first.
    pub fn packets(&self) -> impl Iterator<Item = &Packet> {
        self.order.iter().filter_map(|call| self.answers.get(call)).flatten()
    }

    fn forget(&mut self, call: u64) -> bool {
        let Some(packets) = self.answers.remove(&call) else { return false };
        self.bytes -= size(&packets);
        true
    }
}

fn size(packets: &[Packet]) -> usize {
    packets.iter().map(|packet| packet.len()).sum()
}
