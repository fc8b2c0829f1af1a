//! The system calls that nothing inside a sandbox may make, each with its reason.
//!
//! One filter, put on PID 1 as the last thing it does as root and inherited by everything. What is refused answers as a
//! kernel without the feature or without the right would, so that programs fall back instead of dying. Calls that need a
//! capability over the host are listed only where the kernel's own check has often been found wanting. `setns` into a
//! user namespace stays: PID 1's children enter theirs by it, and no other can be entered.

use rustix::io::Errno;

use super::bpf::{self, Abi, Refusal, When};
use super::steps::{During, Failure, Stage};
use crate::sys::{self, BpfInstruction, KernelError, On};

/// Numbers of a call in the native ABI, and in that of 32-bit x86 programs where it exists.
struct Rule {
    native: Option<i64>,
    i386: Option<u32>,
    when: When,
    errno: i32,
    /// Sandboxes that may make user namespaces of their own need it: container engines and browsers do.
    nested_may: bool,
}

impl Rule {
    const fn never(native: i64, i386: u32) -> Self {
        Self { native: Some(native), i386: Some(i386), when: When::Always, errno: libc::EPERM, nested_may: false }
    }

    const fn unless_nested(native: i64, i386: u32) -> Self {
        Self { nested_may: true, ..Self::never(native, i386) }
    }

    const fn when(self, when: When) -> Self {
        Self { when, ..self }
    }

    const fn answering(self, errno: i32) -> Self {
        Self { errno, ..self }
    }
}

/// CLONE_NEWTIME is one of the bits that `clone` takes for the exit signal; it exists for `unshare` alone.
const NEWTIME: u32 = 0x80;
const NEW_NAMESPACE: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

const USER_NAMESPACE_ALONE: When = When::NoneOf { argument: 1, values: &[libc::CLONE_NEWUSER as u32] };

/// Families that a network namespace holds back. Others reach beyond it (vsock talks to the hypervisor) or load
/// modules on first use.
const CONFINED_FAMILIES: When = When::NoneOf {
    argument: 0,
    values: &[
        libc::AF_UNIX as u32,
        libc::AF_INET as u32,
        libc::AF_INET6 as u32,
        libc::AF_NETLINK as u32,
        libc::AF_PACKET as u32,
    ],
};

/// Protocols of the families above, none of which has another of the same number. Of netlink: the host's devices as they
/// come and go, which are told to every network namespace that belongs to the host's user namespace, as a sandbox's
/// does. Of inet: transports that hardly anybody uses, which the kernel loads by number for whoever asks.
const REFUSED_PROTOCOLS: When = When::AnyOf {
    argument: 2,
    values: &[
        libc::NETLINK_KOBJECT_UEVENT as u32,
        libc::IPPROTO_DCCP as u32,
        IPPROTO_L2TP,
        libc::IPPROTO_SCTP as u32,
        libc::IPPROTO_UDPLITE as u32,
    ],
};
const IPPROTO_L2TP: u32 = 115;

const UNCONFINED_SOCKETS: When = When::Either(&CONFINED_FAMILIES, &REFUSED_PROTOCOLS);

const SET_LINE_DISCIPLINE: When = When::AnyOf { argument: 1, values: &[libc::TIOCSETD as u32] };

const SYS_OPEN_TREE_ATTR: i64 = 467;

const RULES: &[Rule] = &[
    // new namespaces give capabilities over kernel code that is otherwise out of reach
    Rule::unless_nested(libc::SYS_clone, 120).when(When::AnyBit { argument: 0, bits: NEW_NAMESPACE }),
    Rule::unless_nested(libc::SYS_unshare, 310).when(When::AnyBit { argument: 0, bits: NEW_NAMESPACE | NEWTIME }),
    Rule::unless_nested(libc::SYS_setns, 346).when(USER_NAMESPACE_ALONE),
    // its flags lie in memory, where a filter cannot look; libraries fall back to clone
    Rule::unless_nested(libc::SYS_clone3, 435).answering(libc::ENOSYS),
    // mounting: the root inside owns no mount namespace, and parsers of file systems are no place for it
    Rule::unless_nested(libc::SYS_mount, 21),
    Rule::unless_nested(libc::SYS_umount2, 52),
    Rule { native: None, ..Rule::unless_nested(0, 22) }, // the old umount of 32-bit x86
    Rule::unless_nested(libc::SYS_pivot_root, 217),
    Rule::unless_nested(libc::SYS_open_tree, 428),
    Rule::unless_nested(libc::SYS_move_mount, 429),
    Rule::unless_nested(libc::SYS_fsopen, 430),
    Rule::unless_nested(libc::SYS_fsconfig, 431),
    Rule::unless_nested(libc::SYS_fsmount, 432),
    Rule::unless_nested(libc::SYS_fspick, 433),
    Rule::unless_nested(libc::SYS_mount_setattr, 442),
    Rule::unless_nested(SYS_OPEN_TREE_ATTR, 467),
    // large interfaces with a history of escapes, which need no capability to be reached
    Rule::never(libc::SYS_bpf, 357),
    Rule::never(libc::SYS_userfaultfd, 374),
    Rule::never(libc::SYS_perf_event_open, 336),
    Rule::never(libc::SYS_io_uring_setup, 425),
    Rule::never(libc::SYS_io_uring_enter, 426),
    Rule::never(libc::SYS_io_uring_register, 427),
    // keyrings are not confined by any namespace that a sandbox has
    Rule::never(libc::SYS_keyctl, 288),
    Rule::never(libc::SYS_add_key, 286),
    Rule::never(libc::SYS_request_key, 287),
    // opens any file of a file system by number, past every directory
    Rule::never(libc::SYS_open_by_handle_at, 342),
    // the kernel log tells addresses and neighbours
    Rule::never(libc::SYS_syslog, 103),
    // of the whole machine
    Rule::never(libc::SYS_kexec_load, 283),
    Rule { i386: None, ..Rule::never(libc::SYS_kexec_file_load, 0) },
    Rule::never(libc::SYS_init_module, 128),
    Rule::never(libc::SYS_finit_module, 350),
    Rule::never(libc::SYS_delete_module, 129),
    Rule::never(libc::SYS_swapon, 87),
    Rule::never(libc::SYS_swapoff, 115),
    Rule::never(libc::SYS_reboot, 88),
    Rule::never(libc::SYS_acct, 51),
    Rule::never(libc::SYS_quotactl, 131),
    Rule::never(libc::SYS_quotactl_fd, 443),
    // sockets beyond the network namespace; 32-bit programs also have a call whose arguments lie in memory
    Rule::never(libc::SYS_socket, 359).when(UNCONFINED_SOCKETS).answering(libc::EAFNOSUPPORT),
    Rule::never(libc::SYS_socketpair, 360).when(CONFINED_FAMILIES).answering(libc::EAFNOSUPPORT),
    // line disciplines: drivers of serial protocols, loaded by number, for whoever has a terminal
    Rule::never(libc::SYS_ioctl, 54).when(SET_LINE_DISCIPLINE),
    Rule { native: None, ..Rule::never(0, 102) }.answering(libc::ENOSYS),
];

const AUDIT_ARCH_I386: u32 = 0x4000_0003;
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH_NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH_NATIVE: u32 = 0xc000_00b7;
/// The bit that marks calls of the x32 ABI, which come under x86_64's name; no other machine has such numbers.
const X32_BIT: u32 = 0x4000_0000;

/// The two filters there are, assembled once.
pub struct Filters {
    plain: Vec<BpfInstruction>,
    nested: Vec<BpfInstruction>,
}

impl Filters {
    pub fn assemble() -> Result<Self, KernelError> {
        let assembled = |nested| filter(nested).ok_or(Errno::TOOBIG).on("assemble", "the seccomp filter");
        Ok(Self { plain: assembled(false)?, nested: assembled(true)? })
    }

    /// Put the filter on this process and all that it will start.
    pub fn install(&self, nested_user_namespaces: bool) -> Result<(), Failure> {
        let program = if nested_user_namespaces { &self.nested } else { &self.plain };
        sys::install_seccomp(program).on("put on", "the seccomp filter").during(Stage::Seccomp)
    }
}

fn filter(nested: bool) -> Option<Vec<BpfInstruction>> {
    let rules = || RULES.iter().filter(|rule| !(nested && rule.nested_may));
    let refusal = |rule: &Rule, number: u32| Refusal { number, when: rule.when, errno: rule.errno as u16 };
    let native = rules().filter_map(|rule| rule.native.map(|number| refusal(rule, number as u32))).collect();
    let mut abis = vec![Abi { audit_arch: AUDIT_ARCH_NATIVE, foreign_from: Some(X32_BIT), refusals: native }];
    if cfg!(target_arch = "x86_64") {
        let i386 = rules().filter_map(|rule| rule.i386.map(|number| refusal(rule, number))).collect();
        abis.push(Abi { audit_arch: AUDIT_ARCH_I386, foreign_from: None, refusals: i386 });
    }
    bpf::program(abis)
}

#[cfg(test)]
mod tests {
    use super::bpf::{evaluate, verdict};
    use super::*;

    const EPERM: u32 = verdict::ERRNO | libc::EPERM as u32;
    const ENOSYS: u32 = verdict::ERRNO | libc::ENOSYS as u32;

    fn native(nested: bool, number: i64, arguments: [u64; 6]) -> u32 {
        evaluate(&filter(nested).unwrap(), AUDIT_ARCH_NATIVE, number as u32, arguments)
    }

    fn first(argument: u64) -> [u64; 6] {
        [argument, 0, 0, 0, 0, 0]
    }

    #[test]
    fn every_rule_refuses_and_its_neighbours_pass() {
        let refused: Vec<i64> = RULES.iter().filter_map(|rule| rule.native).collect();
        for rule in RULES.iter().filter(|rule| rule.when == When::Always) {
            if let Some(number) = rule.native {
                assert_eq!(native(false, number, [0; 6]), verdict::ERRNO | rule.errno as u32, "{number}");
                assert_eq!(native(true, number, [0; 6]) == verdict::ALLOW, rule.nested_may, "{number}");
            }
        }
        for number in (0..600).filter(|number| !refused.contains(number)) {
            assert_eq!(native(false, number, [u64::MAX; 6]), verdict::ALLOW, "{number}");
        }
    }

    #[test]
    fn processes_and_threads_start_but_not_in_new_namespaces() {
        let thread = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_SETTLS;
        assert_eq!(native(false, libc::SYS_clone, first(thread as u64)), verdict::ALLOW);
        assert_eq!(native(false, libc::SYS_clone, first(libc::SIGCHLD as u64)), verdict::ALLOW);
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWPID] {
            assert_eq!(native(false, libc::SYS_clone, first(flag as u64)), EPERM);
            assert_eq!(native(false, libc::SYS_unshare, first(flag as u64)), EPERM);
            assert_eq!(native(true, libc::SYS_unshare, first(flag as u64)), verdict::ALLOW);
        }
        assert_eq!(native(false, libc::SYS_unshare, first(NEWTIME.into())), EPERM);
        assert_eq!(native(false, libc::SYS_unshare, first(libc::CLONE_FS as u64)), verdict::ALLOW);
        assert_eq!(native(false, libc::SYS_clone3, [0; 6]), ENOSYS);
    }

    #[test]
    fn children_enter_their_user_namespace_and_no_other() {
        let setns = |kind: i32| native(false, libc::SYS_setns, [3, kind as u64, 0, 0, 0, 0]);
        assert_eq!(setns(libc::CLONE_NEWUSER), verdict::ALLOW);
        assert_eq!(setns(0), EPERM);
        assert_eq!(setns(libc::CLONE_NEWNS), EPERM);
    }

    #[test]
    fn sockets_stay_within_the_network_namespace() {
        let socket = |family: i32| native(false, libc::SYS_socket, first(family as u64));
        for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK] {
            assert_eq!(socket(family), verdict::ALLOW);
        }
        for family in [libc::AF_VSOCK, libc::AF_ALG, libc::AF_BLUETOOTH] {
            assert_eq!(socket(family), verdict::ERRNO | libc::EAFNOSUPPORT as u32);
        }
        let netlink =
            |protocol: i32| native(false, libc::SYS_socket, [libc::AF_NETLINK as u64, 3, protocol as u64, 0, 0, 0]);
        assert_eq!(netlink(libc::NETLINK_ROUTE), verdict::ALLOW);
        assert_eq!(netlink(libc::NETLINK_KOBJECT_UEVENT), verdict::ERRNO | libc::EAFNOSUPPORT as u32);
        let inet = |protocol: i32| {
            native(false, libc::SYS_socket, [libc::AF_INET as u64, libc::SOCK_STREAM as u64, protocol as u64, 0, 0, 0])
        };
        for protocol in [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_ICMP, libc::IPPROTO_ICMPV6, 262] {
            assert_eq!(inet(protocol), verdict::ALLOW);
        }
        for protocol in [libc::IPPROTO_SCTP, libc::IPPROTO_DCCP, IPPROTO_L2TP as i32, libc::IPPROTO_UDPLITE] {
            assert_eq!(inet(protocol), verdict::ERRNO | libc::EAFNOSUPPORT as u32);
        }
        let pair = |family: i32| native(false, libc::SYS_socketpair, first(family as u64));
        assert_eq!(pair(libc::AF_UNIX), verdict::ALLOW);
        assert_eq!(pair(libc::AF_TIPC), verdict::ERRNO | libc::EAFNOSUPPORT as u32);
    }

    #[test]
    fn terminals_keep_their_line_discipline() {
        let ioctl = |request: u64| native(false, libc::SYS_ioctl, [0, request, 0, 0, 0, 0]);
        assert_eq!(ioctl(libc::TIOCSETD), EPERM);
        // the kernel looks at the low half only, and so do we
        assert_eq!(ioctl(1 << 32 | libc::TIOCSETD), EPERM);
        assert_eq!(ioctl(libc::TIOCGETD), verdict::ALLOW);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn other_calling_conventions_are_no_way_around() {
        assert_eq!(native(false, i64::from(X32_BIT) | libc::SYS_mount, [0; 6]), ENOSYS);
        let i386 = |number, arguments| evaluate(&filter(false).unwrap(), AUDIT_ARCH_I386, number, arguments);
        assert_eq!(i386(21, [0; 6]), EPERM); // mount
        assert_eq!(i386(22, [0; 6]), EPERM); // umount
        assert_eq!(i386(357, [0; 6]), EPERM); // bpf
        assert_eq!(i386(102, [0; 6]), ENOSYS); // socketcall
        assert_eq!(i386(310, first(libc::CLONE_NEWUSER as u64)), EPERM); // unshare
        assert_eq!(i386(4, [0; 6]), verdict::ALLOW); // write
        assert_eq!(evaluate(&filter(false).unwrap(), 0x1234, 0, [0; 6]), verdict::KILL);
    }
}
