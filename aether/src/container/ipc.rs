//! Bounds on what System V IPC leaves behind.
//!
//! Its segments, queues and semaphores belong to the IPC namespace and not to a process: memory in them is not given back
//! when the OOM killer ends who has filled it, and with the whole limit in them nothing could run in the sandbox any
//! more, PID 1 included. So each kind has a share of the limit; together with /dev/shm, which the plan sizes, these leave
//! room to work. Root inside has no power over the namespace and cannot change them back.

use std::os::fd::OwnedFd;

use super::network::write_setting;
use super::steps::{During, Failure, Stage};
use crate::fork_server::plan::Plan;

const PAGE: u64 = 4096;
/// A queue holds as many messages as it may hold bytes, 16,384, and the kernel takes 64 bytes for each.
const QUEUE: u64 = 1 << 20;
/// What the kernel takes for a semaphore, and for a set of them.
const SEMAPHORE: u64 = 64;
const SEMAPHORE_SET: u64 = 512;
/// The most of each that a kernel has unless told otherwise.
const MOST_NAMES: u64 = 32_000;

/// `proc` is a procfs on which nothing is protected yet.
pub fn bound(plan: &Plan, proc: &OwnedFd) -> Result<(), Failure> {
    settings(plan.memory_bytes)
        .iter()
        .try_for_each(|(name, value)| write_setting(proc, &format!("sys/kernel/{name}"), value))
        .during(Stage::Namespaces)
}

/// Shared memory gets a quarter of the limit; queues, semaphores and sets of them a sixteenth or less each.
fn settings(memory: u64) -> Vec<(&'static str, String)> {
    if memory == 0 {
        return Vec::new();
    }
    let names = |size: u64| (memory / 16 / size).clamp(1, MOST_NAMES);
    let semaphores = memory / 32 / SEMAPHORE;
    vec![
        ("shmall", (memory / 4 / PAGE).to_string()),
        ("msgmni", names(QUEUE).to_string()),
        ("sem", format!("{MOST_NAMES} {semaphores} 500 {}", names(2 * SEMAPHORE_SET))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_gets_a_share_of_the_limit() {
        let expected = [("shmall", "8192"), ("msgmni", "8"), ("sem", "32000 65536 500 8192")];
        assert_eq!(settings(128 << 20), expected.map(|(name, value)| (name, value.to_owned())));
        assert_eq!(settings(16 << 20)[1].1, "1");
        assert!(settings(0).is_empty());
    }
}
