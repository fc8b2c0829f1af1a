//! Answers kept until the edge has acknowledged them, so that an edge that dies between reading and recording loses
//! none.
//!
//! Bounded by bytes and by number. The oldest goes first; what remains of it is its number, so that its outcome is said
//! to be unknown and it is never run again. An answer that alone is over the bound is kept without its output, which is
//! then counted as cut.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Bytes kept of all answers together.
const LIMIT: usize = 1024 * 1024;
/// Answers remembered, and as many numbers of those that are gone.
const LIMIT_ANSWERS: usize = 4096;

/// An encoded frame, shared between what is kept and what waits to be sent.
pub type Packet = Rc<[u8]>;

#[derive(Default)]
pub struct Kept {
    answers: BTreeMap<u64, Vec<Packet>>,
    /// Oldest first; numbers that were acknowledged are skipped when they come up.
    order: VecDeque<u64>,
    bytes: usize,
    /// Calls whose answers had to go, oldest first.
    faded: VecDeque<u64>,
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
            if self.forget(oldest) {
                self.faded.push_back(oldest);
            }
        }
        while self.faded.len() > LIMIT_ANSWERS {
            self.faded.pop_front();
        }
    }

    /// Calls that have ended with an answer that is no longer known, oldest first.
    pub fn faded(&self) -> impl Iterator<Item = u64> + '_ {
        self.faded.iter().copied()
    }

    pub fn acknowledge(&mut self, call: u64) {
        self.faded.retain(|faded| *faded != call);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(size: usize) -> Packet {
        vec![0; size].into()
    }

    fn known(kept: &Kept) -> Vec<usize> {
        kept.packets().map(|packet| packet.len()).collect()
    }

    #[test]
    fn the_oldest_goes_first_and_is_remembered_as_gone() {
        let mut kept = Kept::default();
        for call in 1..=4 {
            kept.keep(call, vec![packet(400_000 + call as usize)], packet(1));
        }
        assert_eq!(known(&kept), [400_003, 400_004]);
        assert_eq!(kept.faded().collect::<Vec<_>>(), [1, 2]);
        kept.acknowledge(3);
        kept.acknowledge(2);
        assert_eq!((known(&kept), kept.faded().collect::<Vec<_>>()), (vec![400_004], vec![1]));
        assert!(kept.get(3).is_none() && kept.get(4).is_some());
    }

    #[test]
    fn what_alone_is_too_large_is_kept_without_its_output() {
        let mut kept = Kept::default();
        kept.keep(1, vec![packet(10)], packet(1));
        kept.keep(2, vec![packet(LIMIT + 1)], packet(7));
        assert_eq!(known(&kept), [10, 7]);
    }

    #[test]
    fn numbers_are_bounded() {
        let mut kept = Kept::default();
        (0..3 * LIMIT_ANSWERS as u64).for_each(|call| kept.keep(call, vec![packet(1)], packet(1)));
        assert_eq!((kept.order.len(), kept.faded.len()), (LIMIT_ANSWERS, LIMIT_ANSWERS));
    }
}
