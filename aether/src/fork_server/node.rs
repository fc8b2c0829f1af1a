//! What is found out about the machine once, at the start, and how the process settles on it.

use std::os::fd::AsFd;

use rustix::fs::{openat, Mode, OFlags, CWD};
use rustix::mount::{mount_change, MountPropagationFlags};
use rustix::process::{getrlimit, setrlimit, umask, Resource, Rlimit};
use rustix::thread::UnshareFlags;

use super::{note, Options, OverlayChoice};
use crate::container::cgroup::{Hierarchy, Moves};
use crate::container::limits::Machine;
use crate::container::rootfs::{self, Overlay};
use crate::container::seccomp::Filters;
use crate::container::{cgroup, Node};
use crate::sys::{CommandLine, KernelError, On};

/// Standard input comes from nowhere; sandboxes take it for all three streams.
pub fn quiet_stdin() -> Result<(), KernelError> {
    let null = openat(CWD, "/dev/null", OFlags::RDWR, Mode::empty()).on("open", "/dev/null")?;
    rustix::stdio::dup2_stdin(null.as_fd()).on("replace", "standard input")
}

/// What is found out, and how cheap cgroup moves have become, which `restore` wants to know.
pub fn prepare(options: &Options) -> Result<(Node, Moves), KernelError> {
    // the modes of what sandboxes get made are those asked for
    umask(Mode::empty());
    let overlay = match options.overlay {
        OverlayChoice::Auto => rootfs::probe()?,
        OverlayChoice::Forced(overlay) => overlay,
    };
    if overlay == Overlay::Paths {
        hold_layers_in_a_tree()?;
    }
    let may_lower_oom_score = leave_to_oom_killer_last();
    if !may_lower_oom_score {
        note(format_args!("the OOM killer may choose us and PID 1 of sandboxes: lowering oom_score_adj is refused"));
    }
    let hierarchies = find_hierarchies()?;
    let moves = favor_moves(&hierarchies);
    let node = Node {
        machine: Machine {
            overlay,
            hierarchies,
            cpuinfo: std::fs::read_to_string("/proc/cpuinfo").on("read", "/proc/cpuinfo")?,
            may_lower_oom_score,
        },
        filters: Filters::assemble()?,
        descriptors: raise_descriptor_limit()?,
        command_line: CommandLine::find()?,
    };
    Ok((node, moves))
}

fn find_hierarchies() -> Result<Vec<Hierarchy>, KernelError> {
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").on("read", "/proc/self/mountinfo")?;
    let hierarchies = cgroup::hierarchies(&mountinfo);
    Ok(hierarchies)
}

fn favor_moves(hierarchies: &[Hierarchy]) -> Moves {
    match cgroup::favor_moves(hierarchies) {
        Ok(Moves::Slow) => {
            note(format_args!("creates and commands may wait 10 ms for their cgroup: this kernel has no favordynmods"));
            Moves::Slow
        }
        Ok(moves) => moves,
        Err(error) => {
            note(format_args!("creates and commands may wait 10 ms for their cgroup: {error}"));
            Moves::Slow
        }
    }
}

/// Give the machine back as it was found.
pub fn restore(hierarchies: &[Hierarchy], moves: Moves) {
    if moves == Moves::MadeCheap {
        if let Err(error) = cgroup::restore_moves(hierarchies) {
            note(format_args!("cgroup moves stay cheap for the whole machine: {error}"));
        }
    }
}

/// One descriptor a sandbox, and one a layer: take what the hard limit gives. Returns what it was before.
fn raise_descriptor_limit() -> Result<Rlimit, KernelError> {
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum })
        .on("raise the limit of", "descriptors")?;
    Ok(before)
}

/// Put this process, and the sandboxes' PID 1 after it, out of the OOM killer's reach; whether that was allowed.
///
/// The floor below which an unprivileged process cannot lower its score is inherited too and follows the new interface
/// alone: it is set to 0 there, the score itself by the old one, so that no command inside can put itself out of reach.
fn leave_to_oom_killer_last() -> bool {
    std::fs::write("/proc/self/oom_score_adj", "0").is_ok() && std::fs::write("/proc/self/oom_adj", "-17").is_ok()
}

/// A kernel that copies no mount which lies in no tree needs held layers in one: a mount namespace of our own, which
/// still sees what the host mounts later, and of which the host sees nothing.
fn hold_layers_in_a_tree() -> Result<(), KernelError> {
    // SAFETY: this process has one thread.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.on("unshare", "the mount namespace")?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).on("follow the host in", "/")
}
