//! Classic BPF programs that answer for system calls by number.
//!
//! Our own assembler rather than a crate's, for three reasons: the calls of 32-bit programs and of the x32 ABI must be
//! answered too and not fall through; the filter is put on without no_new_privs (see `privileges`); and the kernel
//! checks, translates and compiles the program each time it is put on, which is a part of every create. So the numbers
//! are searched by halves over the borders between neighbours that are answered alike, and each answer is there once.

use crate::sys::BpfInstruction;

/// When a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Always,
    /// The argument has one of these bits.
    AnyBit {
        argument: u32,
        bits: u32,
    },
    /// The argument (its low 32 bits, which is all of an `int`) is one of these values.
    AnyOf {
        argument: u32,
        values: &'static [u32],
    },
    /// The argument (its low 32 bits) is none of these values.
    NoneOf {
        argument: u32,
        values: &'static [u32],
    },
    Either(&'static When, &'static When),
}

/// A call number, and when it is refused with which errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub number: u32,
    pub when: When,
    pub errno: u16,
}

/// The calling convention of a process, as the kernel names it to filters.
pub struct Abi {
    pub audit_arch: u32,
    /// Numbers from here on belong to another ABI under the same name and are refused.
    pub foreign_from: Option<u32>,
    pub refusals: Vec<Refusal>,
}

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const JUMP_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const JUMP_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

/// What a program may return.
pub mod verdict {
    pub const ALLOW: u32 = 0x7fff_0000;
    pub const ERRNO: u32 = 0x0005_0000;
    pub const KILL: u32 = 0x8000_0000;
}

/// Offsets in the data that a program sees.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

const ENOSYS: u16 = libc::ENOSYS as u16;

const fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> BpfInstruction {
    BpfInstruction { code, jt, jf, k }
}

const fn give(verdict: u32) -> BpfInstruction {
    instruction(RETURN, verdict, 0, 0)
}

const fn refuse(errno: u16) -> BpfInstruction {
    give(verdict::ERRNO | errno as u32)
}

/// How a number is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Allow,
    Refuse(u16),
    /// Refused under a condition.
    Test(When, u16),
}

/// The program for these conventions; a process of any other is killed. Nothing when a part of it is too long for the
/// distances that a jump can have.
pub fn program(abis: Vec<Abi>) -> Option<Vec<BpfInstruction>> {
    let mut program = vec![instruction(LOAD, ARCH, 0, 0)];
    for abi in abis {
        let mut body = vec![instruction(LOAD, NUMBER, 0, 0)];
        body.extend(Search::over(&borders(&abi)).assemble()?);
        program.push(instruction(JUMP_EQUAL, abi.audit_arch, 1, 0));
        program.push(instruction(JUMP, body.len() as u32, 0, 0));
        program.extend(body);
    }
    program.push(give(verdict::KILL));
    Some(program)
}

/// All numbers in order: from each of these up to the next, one answer holds.
fn borders(abi: &Abi) -> Vec<(u32, Answer)> {
    let mut refusals = abi.refusals.clone();
    refusals.sort_by_key(|refusal| refusal.number);
    let mut borders = vec![(0, Answer::Allow)];
    let mut add = |from: u32, answer: Answer| match borders.last_mut() {
        Some(last) if last.0 == from => last.1 = answer,
        Some(last) if last.1 == answer => {}
        _ => borders.push((from, answer)),
    };
    let mut after_last = 0;
    for refusal in refusals {
        if refusal.number != after_last {
            add(after_last, Answer::Allow);
        }
        let answer = match refusal.when {
            When::Always => Answer::Refuse(refusal.errno),
            when => Answer::Test(when, refusal.errno),
        };
        add(refusal.number, answer);
        after_last = refusal.number + 1;
    }
    add(after_last, Answer::Allow);
    if let Some(first) = abi.foreign_from {
        add(first, Answer::Refuse(ENOSYS));
    }
    borders
}

/// Where a comparison goes on.
#[derive(Clone, Copy)]
enum Next {
    Comparison(usize),
    Answer(usize),
}

/// Comparisons of the accumulator, in an order in which each comes before those it leads to, and the answers after them.
struct Search {
    /// The border, then where numbers from it on go, then where lower ones go.
    comparisons: Vec<(u32, Next, Next)>,
    answers: Vec<Answer>,
}

impl Search {
    fn over(borders: &[(u32, Answer)]) -> Self {
        let mut search = Self { comparisons: vec![], answers: vec![] };
        search.add(borders);
        search
    }

    fn add(&mut self, borders: &[(u32, Answer)]) -> Next {
        if let [(_, answer)] = borders {
            let known = self.answers.iter().position(|other| other == answer);
            return Next::Answer(known.unwrap_or_else(|| {
                self.answers.push(*answer);
                self.answers.len() - 1
            }));
        }
        let (low, high) = borders.split_at(borders.len() / 2);
        let place = self.comparisons.len();
        self.comparisons.push((high[0].0, Next::Comparison(0), Next::Comparison(0)));
        let below = self.add(low);
        let from = self.add(high);
        self.comparisons[place] = (high[0].0, from, below);
        Next::Comparison(place)
    }

    fn assemble(&self) -> Option<Vec<BpfInstruction>> {
        let mut answers = Vec::new();
        let mut starts = Vec::with_capacity(self.answers.len());
        for answer in &self.answers {
            starts.push(self.comparisons.len() + answers.len());
            answers.extend(answer.assemble());
        }
        let mut code = Vec::with_capacity(self.comparisons.len() + answers.len());
        for (place, (border, from, below)) in self.comparisons.iter().enumerate() {
            let distance = |next: Next| {
                let target = match next {
                    Next::Comparison(target) => target,
                    Next::Answer(answer) => starts[answer],
                };
                u8::try_from(target - place - 1).ok()
            };
            code.push(instruction(JUMP_AT_LEAST, *border, distance(*from)?, distance(*below)?));
        }
        code.extend(answers);
        Some(code)
    }
}

impl Answer {
    fn assemble(self) -> Vec<BpfInstruction> {
        let (when, errno) = match self {
            Self::Allow => return vec![give(verdict::ALLOW)],
            Self::Refuse(errno) => return vec![refuse(errno)],
            Self::Test(when, errno) => (when, errno),
        };
        let mut code = when.assemble(errno);
        code.extend([refuse(errno), give(verdict::ALLOW)]);
        code
    }
}

impl When {
    /// Goes on with the instruction after it when the condition holds, else with the one after that.
    fn assemble(self, errno: u16) -> Vec<BpfInstruction> {
        match self {
            Self::Always => vec![],
            Self::AnyBit { argument, bits } => vec![load_argument(argument), instruction(JUMP_ANY_BIT, bits, 0, 1)],
            Self::AnyOf { argument, values } => {
                let left = |index: usize| (values.len() - 1 - index) as u8;
                let test = |(index, value): (usize, &u32)| {
                    instruction(JUMP_EQUAL, *value, left(index), u8::from(left(index) == 0))
                };
                std::iter::once(load_argument(argument)).chain(values.iter().enumerate().map(test)).collect()
            }
            Self::NoneOf { argument, values } => {
                let over_the_rest = |index: usize| (values.len() - index) as u8;
                let test = |(index, value): (usize, &u32)| instruction(JUMP_EQUAL, *value, over_the_rest(index), 0);
                std::iter::once(load_argument(argument)).chain(values.iter().enumerate().map(test)).collect()
            }
            Self::Either(one, other) => {
                let mut code = one.assemble(errno);
                code.push(refuse(errno));
                code.extend(other.assemble(errno));
                code
            }
        }
    }
}

const fn load_argument(argument: u32) -> BpfInstruction {
    instruction(LOAD, ARGUMENTS + 8 * argument, 0, 0)
}

/// What a program answers, worked out as the kernel does.
#[cfg(test)]
pub fn evaluate(program: &[BpfInstruction], arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let mut data = [number, arch, 0, 0].map(u32::to_le_bytes).concat();
    data.extend(arguments.map(u64::to_le_bytes).concat());
    let (mut at, mut accumulator) = (0usize, 0u32);
    loop {
        let BpfInstruction { code, jt, jf, k } = program[at];
        let taken = match code {
            LOAD => {
                accumulator = u32::from_le_bytes(data[k as usize..k as usize + 4].try_into().unwrap());
                at += 1;
                continue;
            }
            JUMP => {
                at += 1 + k as usize;
                continue;
            }
            RETURN => return k,
            JUMP_EQUAL => accumulator == k,
            JUMP_AT_LEAST => accumulator >= k,
            JUMP_ANY_BIT => accumulator & k != 0,
            _ => panic!("unknown instruction {code:#x}"),
        };
        at += 1 + usize::from(if taken { jt } else { jf });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(number: u32, errno: u16) -> Refusal {
        Refusal { number, when: When::Always, errno }
    }

    #[test]
    fn every_number_is_answered_whatever_the_size_of_the_table() {
        for size in [0u32, 1, 2, 3, 17, 100] {
            let refusals = (0..size).map(|index| refused(index * 3, 1)).collect();
            let program = program(vec![Abi { audit_arch: 7, foreign_from: Some(1 << 30), refusals }]).unwrap();
            for number in 0..size * 3 + 3 {
                let expected = if number % 3 == 0 && number < size * 3 { verdict::ERRNO | 1 } else { verdict::ALLOW };
                assert_eq!(evaluate(&program, 7, number, [0; 6]), expected, "{number} of {size}");
            }
            assert_eq!(evaluate(&program, 7, 1 << 30, [0; 6]), verdict::ERRNO | u32::from(ENOSYS));
            assert_eq!(evaluate(&program, 8, 0, [0; 6]), verdict::KILL);
        }
    }

    #[test]
    fn neighbours_share_an_answer_and_a_table_too_long_is_no_program() {
        let table = |step: u32| {
            let refusals = (0..400).map(|index| refused(index * step, 1)).collect();
            program(vec![Abi { audit_arch: 7, foreign_from: None, refusals }])
        };
        assert!(table(1).is_some_and(|program| program.len() < 10));
        assert_eq!(table(2), None);
    }

    #[test]
    fn arguments_decide() {
        let bits = When::AnyBit { argument: 0, bits: 0x30 };
        let values = When::NoneOf { argument: 1, values: &[4, 5] };
        let refusals = [Refusal { number: 1, when: bits, errno: 1 }, Refusal { number: 2, when: values, errno: 2 }];
        const EQUAL: When = When::AnyOf { argument: 2, values: &[7] };
        const FEW: When = When::NoneOf { argument: 1, values: &[4, 5] };
        let any = When::AnyOf { argument: 0, values: &[7, 8, 9] };
        let more = [(4, EQUAL), (5, When::Either(&FEW, &EQUAL)), (6, any)];
        let more = more.map(|(number, when)| Refusal { number, when, errno: 3 });
        let refusals = [&refusals[..], &more].concat();
        let program = program(vec![Abi { audit_arch: 7, foreign_from: None, refusals }]).unwrap();
        let answer = |number, arguments| evaluate(&program, 7, number, arguments);
        assert_eq!(answer(1, [0x20, 0, 0, 0, 0, 0]), verdict::ERRNO | 1);
        assert_eq!(answer(1, [0x0f, 0, 0, 0, 0, 0]), verdict::ALLOW);
        assert_eq!(answer(2, [0, 4, 0, 0, 0, 0]), verdict::ALLOW);
        assert_eq!(answer(2, [0, 5, 0, 0, 0, 0]), verdict::ALLOW);
        assert_eq!(answer(2, [0, 6, 0, 0, 0, 0]), verdict::ERRNO | 2);
        assert_eq!(answer(3, [0x20, 6, 0, 0, 0, 0]), verdict::ALLOW);
        assert_eq!(answer(4, [0, 0, 7, 0, 0, 0]), verdict::ERRNO | 3);
        assert_eq!(answer(4, [7, 7, 8, 7, 7, 7]), verdict::ALLOW);
        assert_eq!(answer(5, [0, 4, 7, 0, 0, 0]), verdict::ERRNO | 3);
        assert_eq!(answer(5, [0, 6, 0, 0, 0, 0]), verdict::ERRNO | 3);
        assert_eq!(answer(5, [0, 5, 0, 0, 0, 0]), verdict::ALLOW);
        for value in 0..20 {
            let expected = if (7..=9).contains(&value) { verdict::ERRNO | 3 } else { verdict::ALLOW };
            assert_eq!(answer(6, [value, 0, 0, 0, 0, 0]), expected, "{value}");
        }
    }
}
