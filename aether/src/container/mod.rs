//! What PID 1 does between its birth and its life: it turns itself from a copy of the fork server into the init of a
//! sandbox.
//!
//! Theory of operation. The fork server has cloned this process into a new pid namespace; it is root, it alone knows
//! the plan, and its only links to the rest are the channel to the edge and the pipe on which it reports once. The
//! steps run in one fixed order, each file of this module one concern of the kernel:
//!
//! 1. `cgroup`          join, so that everything from here on is charged to the sandbox
//! 2. `rootfs`          copy the held layers while still in the mount namespace in which they are held
//! 3. `namespaces`      leave the host's
//! 4. `network`, `ipc`  loopback; bounds of what outlives processes
//! 5. `user_namespace`  make the one that commands enter, owned by the keeper
//! 6. `rootfs`          overlay over idmapped copies, with what `mounts` and `limits` show inside
//! 7. `rootfs`          pivot: the host's tree is gone
//! 8. `seccomp`         the filter that everything inside inherits
//! 9. `privileges`      become the keeper, for good
//!
//! What must always hold: nothing is made outside this process's namespaces and the directories the plan names, so that
//! its death gives everything back; a step that fails says which and why, once, and the process ends; after step 9 no
//! descriptor is open but those that `init::Inherited` names.

mod bpf;
pub mod cgroup;
pub mod detached;
mod inside;
mod ipc;
pub mod limits;
mod mounts;
mod namespaces;
pub mod network;
mod privileges;
mod resolver;
pub mod rootfs;
pub mod seccomp;
pub mod steps;
mod user_namespace;

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::process::Rlimit;

use crate::fork_server::plan::Plan;
use crate::init::{self, Inherited, Meminfo};
use crate::sys::{self, CommandLine, KernelError, On};
use crate::wire;
use inside::Inside;
use steps::{During, Failure, Stage};

/// What the fork server found out once and every sandbox uses.
pub struct Node {
    pub machine: limits::Machine,
    pub filters: seccomp::Filters,
    /// The limit on descriptors that the fork server was started with.
    pub descriptors: Rlimit,
    /// Of the fork server, until a sandbox's PID 1 takes it for its own.
    pub command_line: CommandLine,
}

/// Exit status of a PID 1 that could not become one; its report says why.
const NOT_MADE: i32 = 1;
const FIRST_AFTER_STDIO: u32 = 3;

/// What the fork server holds for a sandbox to be made of.
pub struct Materials<'a> {
    pub layers: Vec<BorrowedFd<'a>>,
    /// A network namespace that `network::prepare` has been to, if one was left.
    pub network: Option<OwnedFd>,
}

/// Become the sandbox's init. `report` hears once, by a packed `Option<Failure>`, how it went.
pub fn become_init(plan: &Plan, node: &Node, materials: &Materials<'_>, channel: OwnedFd, report: OwnedFd) -> ! {
    let made = build(plan, node, materials, channel).and_then(|inherited| {
        close_all_but(&inherited, &report).during(Stage::Drop)?;
        Ok(inherited)
    });
    match made {
        Ok(inherited) => {
            tell(&report, None);
            drop(report);
            init::run(inherited)
        }
        Err(failure) => {
            tell(&report, Some(&failure));
            std::process::exit(NOT_MADE)
        }
    }
}

/// A report that cannot be sent leaves the fork server with the end of the pipe, which it takes for a failure.
fn tell(report: &OwnedFd, failure: Option<&Failure>) {
    if let Ok(packed) = wire::pack(&failure) {
        let _ = rustix::io::write(report, &packed);
    }
}

fn build(plan: &Plan, node: &Node, materials: &Materials<'_>, channel: OwnedFd) -> Result<Inherited, Failure> {
    let Materials { layers, network } = materials;
    privileges::leave_fork_server(node.command_line).during(Stage::Drop)?;
    let cgroups = cgroup::join(plan)?;
    let copies = rootfs::copy_layers(layers)?;
    namespaces::enter(plan, network.as_ref())?;
    cgroup::settle(plan, &cgroups)?;
    let proc = mounts::make_proc()?;
    network::configure(plan, &proc, network.is_some())?;
    ipc::bound(plan, &proc)?;
    let (user_namespace, holder) = user_namespace::make(plan, &proc)?;
    rootfs::map_layers(&copies, &user_namespace)?;
    let scratch = rootfs::mount_scratch(plan)?;
    let root = rootfs::mount_overlay(plan, node.machine.overlay, &scratch, copies)?;
    let inside = Inside { root: &root, scratch: &scratch, owner: plan.id_base };
    let mounted = mounts::mount_all(plan, &inside, &proc, &node.machine)?;
    rootfs::pivot(&root)?;
    privileges::set_oom_score(plan, &proc, &node.machine)?;
    drop(holder);
    node.filters.install(plan.nested_user_namespaces)?;
    privileges::drop_all(plan, node.descriptors)?;
    let meminfo = match (mounted.meminfo, cgroups.memory_usage) {
        (Some(file), Some(usage)) => Some(Meminfo { file, usage, limit_bytes: plan.memory_bytes }),
        _ => None,
    };
    Ok(Inherited {
        channel,
        user_namespace,
        devpts: mounted.devpts,
        memory_cgroup: cgroups.memory,
        pids_events: cgroups.pids_events,
        cgroup_version: plan.cgroup_version,
        oom_score_adj: plan.oom_score_adj,
        meminfo,
    })
}

/// Close the descriptors of the fork server. They are owned by its tables, copied into this process with the rest of its
/// memory, which no code reaches from here on.
fn close_all_but(inherited: &Inherited, report: &OwnedFd) -> Result<(), KernelError> {
    let mut kept: Vec<u32> = descriptors(inherited).map(|descriptor| descriptor.as_raw_fd() as u32).collect();
    kept.push(report.as_raw_fd() as u32);
    kept.sort_unstable();
    let mut first = FIRST_AFTER_STDIO;
    for descriptor in kept {
        if first < descriptor {
            sys::close_range(first, descriptor - 1).on("close", "descriptors of the fork server")?;
        }
        first = descriptor + 1;
    }
    sys::close_range(first, u32::MAX).on("close", "descriptors of the fork server")
}

fn descriptors(inherited: &Inherited) -> impl Iterator<Item = &OwnedFd> {
    let Inherited { channel, user_namespace, devpts, memory_cgroup, pids_events, meminfo, .. } = inherited;
    let meminfo = meminfo.iter().flat_map(|meminfo| [&meminfo.file, &meminfo.usage]);
    [channel, user_namespace, devpts].into_iter().chain(memory_cgroup).chain(pids_events).chain(meminfo)
}
