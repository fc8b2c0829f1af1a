//! Joining the sandbox's cgroups, handing the memory one to the keeper, and showing them inside.
//!
//! PID 1 joins before its namespaces are made, so that what they cost is charged to the sandbox. On v1 it stays in the
//! directory of the memory controller while the leaves of commands lie below it. On v2 a cgroup that gives controllers
//! to children may hold no process itself, so PID 1 moves on into the leaf `init`, after the cgroup namespace has made
//! the sandbox's own directory its root.

use std::os::fd::OwnedFd;

use rustix::fs::{openat, AtFlags, Gid, Mode, OFlags, Uid, CWD};
use rustix::io::Errno;
use rustix::mount::{fsconfig_create, fsconfig_reconfigure, fsconfig_set_flag, fsopen, fspick};
use rustix::mount::{FsOpenFlags, FsPickFlags};

use super::steps::{During, Failure, Stage};
use crate::fork_server::plan::Plan;
use crate::sys::{KernelError, On};

/// A cgroup file system of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    pub mount_point: String,
    pub version: u8,
    /// Of the file system, not of this mount of it.
    pub options: Vec<String>,
}

impl Hierarchy {
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let version = match right.next()? {
            "cgroup" => 1,
            "cgroup2" => 2,
            _ => return None,
        };
        let options = right.nth(1)?.split(',').map(String::from).collect();
        Some(Self { mount_point: left.split(' ').nth(4)?.to_string(), version, options })
    }
}

/// What PID 1 keeps of its cgroups.
pub struct Joined {
    pub memory: Option<OwnedFd>,
    pub memory_usage: Option<OwnedFd>,
    pub pids_events: Option<OwnedFd>,
}

/// Where a cgroup is shown inside.
#[derive(Debug, PartialEq, Eq)]
pub enum View<'a> {
    /// On /sys/fs/cgroup itself: the only hierarchy there is.
    Whole,
    /// In the directory of this name; controllers mounted together also go by their single names.
    Named(&'a str),
}

/// The hierarchies in a mountinfo table.
pub fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    mountinfo.lines().filter_map(Hierarchy::parse).collect()
}

/// Whether moving a process into a cgroup is cheap on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// It was when we came.
    Cheap,
    /// We made it so: `restore_moves` undoes it.
    MadeCheap,
    /// This kernel cannot (before 6.0).
    Slow,
}

const FAVOR: &str = "favordynmods";

/// Make moving a process into a cgroup cheap.
///
/// Otherwise a move waits until every processor has passed through the scheduler, 10 ms and more, unless another move
/// was made just before; and each sandbox and each command is moved at its start. The setting is the whole machine's
/// and costs every fork some nanoseconds. It is one of the second hierarchy's mount options, which are set together:
/// those there are stay.
pub fn favor_moves(hierarchies: &[Hierarchy]) -> Result<Moves, KernelError> {
    let unified = hierarchies.iter().find(|hierarchy| hierarchy.version == 2);
    if unified.is_some_and(|hierarchy| hierarchy.options.iter().any(|option| option == FAVOR)) {
        return Ok(Moves::Cheap);
    }
    Ok(if set_options(unified, true)? { Moves::MadeCheap } else { Moves::Slow })
}

/// Undo what `favor_moves` made.
pub fn restore_moves(hierarchies: &[Hierarchy]) -> Result<(), KernelError> {
    set_options(hierarchies.iter().find(|hierarchy| hierarchy.version == 2), false).map(|_| ())
}

/// Set the options of the second hierarchy: those listed, and FAVOR or not (leaving it out turns it off). False if
/// this kernel does not know FAVOR.
fn set_options(unified: Option<&Hierarchy>, favor: bool) -> Result<bool, KernelError> {
    let context = match unified {
        Some(hierarchy) => fspick(CWD, hierarchy.mount_point.as_str(), FsPickFlags::FSPICK_CLOEXEC),
        None => fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC),
    }
    .on("configure file system", "cgroup2")?;
    if favor && fsconfig_set_flag(&context, FAVOR).is_err() {
        return Ok(false);
    }
    for option in unified.iter().flat_map(|hierarchy| &hierarchy.options).filter(|option| *option != "rw") {
        fsconfig_set_flag(&context, option.as_str()).on("keep option of cgroup2", option)?;
    }
    let set = if unified.is_some() { fsconfig_reconfigure(&context) } else { fsconfig_create(&context) };
    set.on("set options of", "cgroup2")?;
    Ok(true)
}

/// Where the cgroup at `path` is shown, or nothing when it lies in no hierarchy that we know.
pub fn view<'a>(hierarchies: &'a [Hierarchy], path: &str) -> Option<View<'a>> {
    let holds = |hierarchy: &&Hierarchy| {
        path.strip_prefix(&hierarchy.mount_point).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let hierarchy = hierarchies.iter().filter(holds).max_by_key(|hierarchy| hierarchy.mount_point.len())?;
    if hierarchy.mount_point == "/sys/fs/cgroup" {
        return Some(View::Whole);
    }
    hierarchy.mount_point.rsplit('/').next().map(View::Named)
}

/// Join every cgroup of the plan and open what PID 1 will need of them.
pub fn join(plan: &Plan) -> Result<Joined, Failure> {
    join_all(plan).during(Stage::Cgroup)
}

fn join_all(plan: &Plan) -> Result<Joined, KernelError> {
    for path in &plan.cgroups {
        write_file(&format!("{path}/cgroup.procs"), b"0")?;
    }
    let memory = plan.memory_cgroup.as_deref().map(|path| delegate(path, plan)).transpose()?;
    let usage = if plan.cgroup_version == 2 { "memory.current" } else { "memory.usage_in_bytes" };
    Ok(Joined {
        memory,
        memory_usage: plan.memory_cgroup.as_deref().map_or(Ok(None), |path| open_if_there(path, usage))?,
        pids_events: plan.pids_cgroup.as_deref().map_or(Ok(None), |path| open_if_there(path, "pids.events"))?,
    })
}

/// Let the keeper make leaves in the memory cgroup, and use those that an earlier sandbox's keeper has left (v1). On v2
/// it must also be able to move its children between them, which needs `cgroup.procs` of the directory above.
fn delegate(path: &str, plan: &Plan) -> Result<OwnedFd, KernelError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, path, flags, Mode::empty()).on("open", path)?;
    let keeper = (Some(Uid::from_raw(plan.keeper)), Some(Gid::from_raw(plan.keeper)));
    rustix::fs::fchown(&directory, keeper.0, keeper.1).on("change the owner of", path)?;
    if plan.cgroup_version == 1 {
        for leaf in 0.. {
            let door = format!("c{leaf}/cgroup.procs");
            match rustix::fs::chownat(&directory, &door, keeper.0, keeper.1, AtFlags::empty()) {
                Ok(()) => {}
                Err(Errno::NOENT) => break,
                Err(errno) => return Err(errno).on("change the owner of", format!("{path}/{door}")),
            }
        }
    } else {
        for file in ["cgroup.procs", "cgroup.subtree_control"] {
            rustix::fs::chownat(&directory, file, keeper.0, keeper.1, AtFlags::empty())
                .on("change the owner of", format!("{path}/{file}"))?;
        }
    }
    Ok(directory)
}

/// On v2: leave the sandbox's own directory for the leaf `init`, and give the leaves their memory controller.
/// Call it inside the cgroup namespace.
pub fn settle(plan: &Plan, joined: &Joined) -> Result<(), Failure> {
    let (Some(directory), Some(path), 2) = (&joined.memory, &plan.memory_cgroup, plan.cgroup_version) else {
        return Ok(());
    };
    settle_in(directory, path).during(Stage::Cgroup)
}

fn settle_in(directory: &OwnedFd, path: &str) -> Result<(), KernelError> {
    match rustix::fs::mkdirat(directory, "init", Mode::from_raw_mode(0o755)) {
        // a cgroup that served a sandbox before has it already
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno).on("make directory", format!("{path}/init")),
    }
    write_file(&format!("{path}/init/cgroup.procs"), b"0")?;
    let controllers = std::fs::read_to_string(format!("{path}/cgroup.controllers"))
        .on("read", format!("{path}/cgroup.controllers"))?;
    if controllers.split_whitespace().any(|name| name == "memory") {
        write_file(&format!("{path}/cgroup.subtree_control"), b"+memory")?;
    }
    Ok(())
}

fn write_file(path: &str, bytes: &[u8]) -> Result<(), KernelError> {
    let file = openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).on("open", path)?;
    rustix::io::write(&file, bytes).on("write to", path)?;
    Ok(())
}

/// A file of a cgroup, or nothing where this kernel has no such file.
fn open_if_there(directory: &str, file: &str) -> Result<Option<OwnedFd>, KernelError> {
    let path = format!("{directory}/{file}");
    match openat(CWD, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(descriptor) => Ok(Some(descriptor)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno).on("open", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
25 20 0:21 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
26 25 0:22 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:5 - cgroup cgroup rw,cpu,cpuacct
27 25 0:23 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
28 25 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";

    #[test]
    fn hybrid_hierarchies_are_shown_by_name() {
        let found = hierarchies(HYBRID);
        assert_eq!(found.iter().map(|hierarchy| hierarchy.version).collect::<Vec<_>>(), [1, 1, 2]);
        assert_eq!(view(&found, "/sys/fs/cgroup/memory/a/b"), Some(View::Named("memory")));
        assert_eq!(view(&found, "/sys/fs/cgroup/cpu,cpuacct/a"), Some(View::Named("cpu,cpuacct")));
        assert_eq!(view(&found, "/sys/fs/cgroup/memoryless/a"), None);
    }

    #[test]
    fn a_single_hierarchy_is_shown_whole() {
        let found = hierarchies("30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
        assert_eq!(view(&found, "/sys/fs/cgroup/dsec/x"), Some(View::Whole));
    }
}
