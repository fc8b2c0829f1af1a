//! The namespaces of a sandbox but for the pid namespace, which PID 1 was born into, and its user namespace.
//!
//! All are owned by the host's user namespace: inside, root has power over none of them.

use std::os::fd::{AsFd, OwnedFd};

use rustix::mount::{mount_change, MountPropagationFlags};
use rustix::thread::{move_into_link_name_space, CpuSet, LinkNameSpaceType, UnshareFlags};

use super::steps::{During, Failure, Stage};
use crate::fork_server::plan::Plan;
use crate::sys::{KernelError, On};

/// Leave the host's namespaces, but for that of its network where the plan says so, into `network` if there is one that
/// was made ahead. The cgroups must have been joined before.
pub fn enter(plan: &Plan, network: Option<&OwnedFd>) -> Result<(), Failure> {
    leave_host(plan, network).during(Stage::Namespaces)
}

fn leave_host(plan: &Plan, network: Option<&OwnedFd>) -> Result<(), KernelError> {
    let mut flags = UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS | UnshareFlags::NEWCGROUP;
    match network {
        Some(network) => move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
            .on("enter", "the network namespace")?,
        None if plan.host_network => {}
        None => flags |= UnshareFlags::NEWNET,
    }
    // SAFETY: none of these flags takes apart what this process shares with another thread; it has no other.
    unsafe { rustix::thread::unshare_unsafe(flags) }.on("unshare", "its namespaces")?;
    // nothing mounted on the host from here on may show up inside, and nothing of ours outside
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).on("make private", "/")?;
    rustix::system::sethostname(plan.hostname.as_bytes()).on("set the host name to", &plan.hostname)?;
    // its own session: a signal to the fork server's terminal is not one to the sandboxes
    rustix::process::setsid().on("start a session for", &plan.id)?;
    if plan.cpus.is_empty() {
        return Ok(());
    }
    let mut cpus = CpuSet::new();
    plan.cpus.iter().for_each(|cpu| cpus.set(*cpu as usize));
    rustix::thread::sched_setaffinity(None, &cpus).on("run on processors", format!("{:?}", plan.cpus))
}
