//! Giving up root: PID 1 goes on as the keeper, with no group, no capability, and out of every other process's sight.
//!
//! no_new_privs is deliberately not set. It would be inherited by every command, and a set-user-ID program inside
//! (sudo, su, ping) could then not change ids: root inside must work as root does. It protects nothing here either:
//! PID 1 executes no program, and what its children can become by executing one lies within the sandbox's own user
//! namespace. The bounding set stays for the same reason: entering that namespace fills it again.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use rustix::fs::{openat, Gid, Mode, OFlags, Uid};
use rustix::process::{set_dumpable_behavior, setrlimit, umask, DumpableBehavior, Resource, Rlimit};
use rustix::thread::{set_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::limits::Machine;
use super::steps::{During, Failure, Stage};
use crate::fork_server::plan::Plan;
use crate::sys::{CommandLine, KernelError, On};

/// As lists of processes show PID 1.
const NAME: &str = "aether-init";
const COMMAND_LINE: &str = "aether init";

/// Undo what the fork server has set up for itself alone: its name, its signals, its way to the terminal or log. Its
/// command line tells paths of the host, and everybody inside can read that of PID 1.
pub fn leave_fork_server(command_line: CommandLine) -> Result<(), KernelError> {
    command_line.show(COMMAND_LINE);
    rustix::thread::set_name(&CString::new(NAME).unwrap_or_default()).on("name", "the process")?;
    crate::sys::unblock_signals().on("unblock", "signals")?;
    for stream in [rustix::stdio::dup2_stdout, rustix::stdio::dup2_stderr] {
        stream(rustix::stdio::stdin()).on("replace", "standard output and error")?;
    }
    Ok(())
}

/// `descriptors` is the limit that the fork server was started with, before it raised its own.
pub fn drop_all(plan: &Plan, descriptors: Rlimit) -> Result<(), Failure> {
    give_up(plan, descriptors).during(Stage::Drop)
}

fn give_up(plan: &Plan, descriptors: Rlimit) -> Result<(), KernelError> {
    setrlimit(Resource::Nofile, descriptors).on("limit", "descriptors")?;
    umask(Mode::from_raw_mode(0o022));
    let (uid, gid) = (Uid::from_raw(plan.keeper), Gid::from_raw(plan.keeper));
    set_thread_groups(&[]).on("drop", "groups")?;
    set_thread_res_gid(gid, gid, gid).on("change group to", plan.keeper)?;
    set_thread_res_uid(uid, uid, uid).on("change user to", plan.keeper)?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .on("drop", "capabilities")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).on("make undumpable", &plan.id)
}

/// What the OOM killer thinks of the sandbox's commands, when it is not what the fork server has set up for all.
///
/// PID 1 itself must never be chosen. Lowering the score by the old interface leaves the floor below which the
/// commands cannot lower theirs again where the new interface has put it. Where the machine does not let the fork server
/// lower scores at all, commands that are to be killed sooner raise theirs themselves.
pub fn set_oom_score(plan: &Plan, proc: &OwnedFd, machine: &Machine) -> Result<(), Failure> {
    if plan.oom_score_adj == 0 || (plan.oom_score_adj > 0 && !machine.may_lower_oom_score) {
        return Ok(());
    }
    let write = |path: &str, value: &str| {
        let file = openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).on("open", path)?;
        rustix::io::write(&file, value.as_bytes()).on("write to", path)?;
        Ok(())
    };
    write("self/oom_score_adj", &plan.oom_score_adj.to_string()).during(Stage::Drop)?;
    write("self/oom_adj", "-17").during(Stage::Drop)
}
