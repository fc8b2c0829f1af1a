//! The user namespace that every command enters, owned by the keeper.
//!
//! The owner of a user namespace is the effective uid of who made it, and the owner has every capability in it from
//! outside: that is how PID 1, which will have none, can put its children into it and signal what runs there. So PID 1
//! takes the keeper's effective uid for a moment, keeps its capabilities (some systems let only the capable make user
//! namespaces), and has a process that lives just long enough for its ids to be mapped.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{openat, Mode, OFlags, Uid};
use rustix::thread::{capabilities, set_capabilities, set_thread_res_uid};

use super::steps::{During, Failure, Stage};
use crate::fork_server::plan::{Plan, ID_RANGE};
use crate::sys::{KernelError, NamespaceHolder, On};

/// Make the namespace. `proc` is a procfs of the sandbox's own pid namespace. The process that was needed for it is
/// dying; whoever drops it waits for its end.
pub fn make(plan: &Plan, proc: impl AsFd) -> Result<(OwnedFd, NamespaceHolder), Failure> {
    make_mapped(plan, proc).during(Stage::UserNamespace)
}

fn make_mapped(plan: &Plan, proc: impl AsFd) -> Result<(OwnedFd, NamespaceHolder), KernelError> {
    let holder = start_as_keeper(plan.keeper)?;
    let pid = holder.pid.as_raw_nonzero();
    let map = format!("0 {} {ID_RANGE}\n", plan.id_base);
    for file in ["uid_map", "gid_map"] {
        let path = format!("{pid}/{file}");
        let descriptor = openat(&proc, &path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .on("open", format!("/proc/{path}"))?;
        rustix::io::write(&descriptor, map.as_bytes()).on("map ids in", format!("/proc/{path}"))?;
    }
    let path = format!("{pid}/ns/user");
    let namespace =
        openat(&proc, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).on("open", format!("/proc/{path}"))?;
    holder.kill().on("end", "the maker of a user namespace")?;
    Ok((namespace, holder))
}

fn start_as_keeper(keeper: u32) -> Result<NamespaceHolder, KernelError> {
    let capable = capabilities(None).on("read", "capabilities")?;
    set_effective_uid(Uid::from_raw(keeper))?;
    // changing the effective uid from root's has cleared the effective set, not the permitted one
    set_capabilities(None, capable).on("keep", "capabilities")?;
    let holder = NamespaceHolder::start().on("make", format!("a user namespace of uid {keeper}"));
    set_effective_uid(Uid::ROOT)?;
    holder
}

fn set_effective_uid(uid: Uid) -> Result<(), KernelError> {
    set_thread_res_uid(None::<Uid>, uid, None::<Uid>).on("change effective uid to", uid.as_raw())
}
