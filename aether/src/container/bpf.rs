//! Classic BPF programs that answer for system calls by number.
//!
//! Our own assembler rather than a crate's, for three reasons: the calls of 32-bit programs and of the x32 ABI must be
//! answered too and not fall through; the filter is put on without no_new_privs (see `privileges`); and the kernel runs
//! the program for every call number when it is put on, so a search tree instead of a list saves time in each create.

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
    /// The argument (its low 32 bits, which is all of an `int`) is none of these values.
    NoneOf {
        argument: u32,
        values: &'static [u32],
    },
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

/// The program for these conventions; a process of any other is killed.
pub fn program(abis: Vec<Abi>) -> Vec<BpfInstruction> {
    let mut program = vec![instruction(LOAD, ARCH, 0, 0)];
    for mut abi in abis {
        abi.refusals.sort_by_key(|refusal| refusal.number);
        let mut body = vec![instruction(LOAD, NUMBER, 0, 0)];
        if let Some(first) = abi.foreign_from {
            body.extend([instruction(JUMP_AT_LEAST, first, 0, 1), refuse(ENOSYS)]);
        }
        body.extend(search(&abi.refusals));
        program.push(instruction(JUMP_EQUAL, abi.audit_arch, 1, 0));
        program.push(instruction(JUMP, body.len() as u32, 0, 0));
        program.extend(body);
    }
    program.push(give(verdict::KILL));
    program
}

/// Code that ends the program for the number in the accumulator; the refusals are sorted by number.
fn search(refusals: &[Refusal]) -> Vec<BpfInstruction> {
    match refusals {
        [] => vec![give(verdict::ALLOW)],
        [only] => answer(only),
        _ => {
            let (low, high) = refusals.split_at(refusals.len() / 2);
            let left = search(low);
            let mut code = match u8::try_from(left.len()) {
                Ok(distance) => vec![instruction(JUMP_AT_LEAST, high[0].number, distance, 0)],
                Err(_) => {
                    vec![instruction(JUMP_AT_LEAST, high[0].number, 0, 1), instruction(JUMP, left.len() as u32, 0, 0)]
                }
            };
            code.extend(left);
            code.extend(search(high));
            code
        }
    }
}

fn answer(refusal: &Refusal) -> Vec<BpfInstruction> {
    let test = match refusal.when {
        When::Always => vec![],
        When::AnyBit { argument, bits } => {
            vec![instruction(LOAD, ARGUMENTS + 8 * argument, 0, 0), instruction(JUMP_ANY_BIT, bits, 0, 1)]
        }
        When::NoneOf { argument, values } => {
            let mut test = vec![instruction(LOAD, ARGUMENTS + 8 * argument, 0, 0)];
            // over the values that follow and over the refusal
            let allow = |index: usize| (values.len() - index) as u8;
            test.extend(
                values.iter().enumerate().map(|(index, value)| instruction(JUMP_EQUAL, *value, allow(index), 0)),
            );
            test
        }
    };
    let mut code = vec![instruction(JUMP_EQUAL, refusal.number, 0, test.len() as u8 + 1)];
    code.extend(test);
    code.extend([refuse(refusal.errno), give(verdict::ALLOW)]);
    code
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
        for size in [0u32, 1, 2, 3, 17, 200] {
            let refusals = (0..size).map(|index| refused(index * 3, 1)).collect();
            let program = program(vec![Abi { audit_arch: 7, foreign_from: Some(1 << 30), refusals }]);
            for number in 0..size * 3 + 3 {
                let expected = if number % 3 == 0 && number < size * 3 { verdict::ERRNO | 1 } else { verdict::ALLOW };
                assert_eq!(evaluate(&program, 7, number, [0; 6]), expected, "{number} of {size}");
            }
            assert_eq!(evaluate(&program, 7, 1 << 30, [0; 6]), verdict::ERRNO | u32::from(ENOSYS));
            assert_eq!(evaluate(&program, 8, 0, [0; 6]), verdict::KILL);
        }
    }

    #[test]
    fn arguments_decide() {
        let bits = When::AnyBit { argument: 0, bits: 0x30 };
        let values = When::NoneOf { argument: 1, values: &[4, 5] };
        let refusals = vec![Refusal { number: 1, when: bits, errno: 1 }, Refusal { number: 2, when: values, errno: 2 }];
        let program = program(vec![Abi { audit_arch: 7, foreign_from: None, refusals }]);
        let answer = |number, arguments| evaluate(&program, 7, number, arguments);
        assert_eq!(answer(1, [0x20, 0, 0, 0, 0, 0]), verdict::ERRNO | 1);
        assert_eq!(answer(1, [0x0f, 0, 0, 0, 0, 0]), verdict::ALLOW);
        assert_eq!(answer(2, [0, 4, 0, 0, 0, 0]), verdict::ALLOW);
        assert_eq!(answer(2, [0, 5, 0, 0, 0, 0]), verdict::ALLOW);
        assert_eq!(answer(2, [0, 6, 0, 0, 0, 0]), verdict::ERRNO | 2);
        assert_eq!(answer(3, [0x20, 6, 0, 0, 0, 0]), verdict::ALLOW);
    }
}
