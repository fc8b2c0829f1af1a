//! Answers kept until the edge has acknowledged them, so that an edge that dies between reading and recording loses
//! none.
//!
//! Bounded by bytes and by number. The oldest goes first; what remains of it is its number and its tag, so that its
//! outcome is said to be unknown and it is never run again. An answer that alone is over the bound is kept without its
//! output, which is then counted as cut.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Bytes kept of all answers together where the sandbox's memory has no limit, and at most.
const MOST: usize = 32 * 1024 * 1024;
/// As much is kept however small the sandbox is.
const LEAST: usize = 1024 * 1024;
/// PID 1 lives on the sandbox's memory, and answers may take this part of it.
const SHARE: u64 = 8;
/// Answers remembered, and as many numbers of those that are gone.
const LIMIT_ANSWERS: usize = 4096;

/// An encoded frame, shared between what is kept and what waits to be sent.
pub type Packet = Rc<[u8]>;

/// What a successor of the edge is told of a call beside its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// How many calls were taken before it.
    pub order: u64,
    pub tag: String,
}

struct Answer {
    known: Known,
    packets: Vec<Packet>,
}

pub struct Kept {
    /// Bytes.
    limit: usize,
    answers: BTreeMap<u64, Answer>,
    /// Oldest first; numbers that were acknowledged are skipped when they come up.
    order: VecDeque<u64>,
    bytes: usize,
    /// Calls whose answers had to go, oldest first.
    faded: VecDeque<(u64, Known)>,
}

/// A call that has ended.
pub struct Ended<'a> {
    pub call: u64,
    pub known: &'a Known,
    /// None when it had to go.
    pub answer: Option<&'a [Packet]>,
}

/// What may be kept in a sandbox with so much memory.
pub fn limit(memory_bytes: Option<u64>) -> usize {
    memory_bytes.map_or(MOST, |bytes| usize::try_from(bytes / SHARE).unwrap_or(MOST).clamp(LEAST, MOST))
}

impl Kept {
    pub fn new(limit: usize) -> Self {
        Self { limit, answers: BTreeMap::new(), order: VecDeque::new(), bytes: 0, faded: VecDeque::new() }
    }

    /// Keep the answer of `call`. `without_output` stands for it when it is too large.
    pub fn keep(&mut self, call: u64, known: Known, packets: Vec<Packet>, without_output: Packet) {
        let packets = if size(&packets) > self.limit { vec![without_output] } else { packets };
        self.bytes += size(&packets);
        self.answers.insert(call, Answer { known, packets });
        self.order.push_back(call);
        while self.bytes > self.limit || self.order.len() > LIMIT_ANSWERS {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(answer) = self.forget(oldest) {
                self.faded.push_back((oldest, answer.known));
            }
        }
        while self.faded.len() > LIMIT_ANSWERS {
            self.faded.pop_front();
        }
    }

    /// Bytes that are kept no more.
    pub fn acknowledge(&mut self, call: u64) -> usize {
        self.faded.retain(|(faded, _)| *faded != call);
        let Some(answer) = self.forget(call) else { return 0 };
        while self.order.front().is_some_and(|oldest| !self.answers.contains_key(oldest)) {
            self.order.pop_front();
        }
        size(&answer.packets)
    }

    pub fn get(&self, call: u64) -> Option<&[Packet]> {
        self.answers.get(&call).map(|answer| answer.packets.as_slice())
    }

    /// Whether the call has ended with an answer that is no longer known.
    pub fn has_faded(&self, call: u64) -> bool {
        self.faded.iter().any(|(faded, _)| *faded == call)
    }

    /// Every call that has ended and was not acknowledged.
    pub fn ended(&self) -> impl Iterator<Item = Ended<'_>> {
        let faded = self.faded.iter().map(|(call, known)| Ended { call: *call, known, answer: None });
        faded.chain(self.answers.iter().map(|(call, answer)| Ended {
            call: *call,
            known: &answer.known,
            answer: Some(&answer.packets),
        }))
    }

    fn forget(&mut self, call: u64) -> Option<Answer> {
        let answer = self.answers.remove(&call)?;
        self.bytes -= size(&answer.packets);
        Some(answer)
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

    fn known(call: u64) -> Known {
        Known { order: call, tag: format!("tag {call}") }
    }

    fn keep(kept: &mut Kept, call: u64, size: usize, without_output: usize) {
        kept.keep(call, known(call), vec![packet(size)], packet(without_output));
    }

    /// Of each call that has ended its size, none for those that are gone.
    fn sizes(kept: &Kept) -> Vec<(u64, Option<usize>)> {
        kept.ended().map(|ended| (ended.call, ended.answer.map(size))).collect()
    }

    #[test]
    fn the_oldest_goes_first_and_is_remembered_as_gone() {
        let mut kept = Kept::new(1_000_000);
        (1..=4).for_each(|call| keep(&mut kept, call, 400_000 + call as usize, 1));
        assert_eq!(sizes(&kept), [(1, None), (2, None), (3, Some(400_003)), (4, Some(400_004))]);
        assert_eq!((kept.acknowledge(3), kept.acknowledge(2), kept.acknowledge(9)), (400_003, 0, 0));
        assert_eq!(sizes(&kept), [(1, None), (4, Some(400_004))]);
        assert!(kept.get(3).is_none() && kept.get(4).is_some());
        assert!(kept.has_faded(1) && !kept.has_faded(2));
    }

    #[test]
    fn tags_are_remembered_with_answers_and_without() {
        let mut kept = Kept::new(100);
        (1..=3).for_each(|call| keep(&mut kept, call, 50, 1));
        let ended: Vec<_> = kept.ended().map(|ended| (ended.known.clone(), ended.answer.is_some())).collect();
        assert_eq!(ended, [(known(1), false), (known(2), true), (known(3), true)]);
    }

    #[test]
    fn what_alone_is_too_large_is_kept_without_its_output() {
        let mut kept = Kept::new(1000);
        keep(&mut kept, 1, 10, 1);
        keep(&mut kept, 2, 1001, 7);
        assert_eq!(sizes(&kept), [(1, Some(10)), (2, Some(7))]);
    }

    #[test]
    fn numbers_are_bounded() {
        let mut kept = Kept::new(1 << 20);
        (0..3 * LIMIT_ANSWERS as u64).for_each(|call| keep(&mut kept, call, 1, 1));
        assert_eq!((kept.order.len(), kept.faded.len()), (LIMIT_ANSWERS, LIMIT_ANSWERS));
    }

    #[test]
    fn the_bound_is_a_share_of_the_sandboxs_memory() {
        const MIB: u64 = 1 << 20;
        let bounds = [None, Some(0), Some(8 * MIB), Some(64 * MIB), Some(256 * MIB), Some(1024 * MIB)];
        let expected = [32, 1, 1, 8, 32, 32].map(|mib| mib * MIB as usize);
        assert_eq!(bounds.map(limit), expected);
    }
}
