//! The sandbox's own limits, shown where programs look for the machine's.
//!
//! - /proc/meminfo is a file that PID 1 keeps open and rewrites; /proc/cpuinfo and the list of processors online are
//!   cut to those of the plan. Each is there only when the plan limits it.
//! - /sys/fs/cgroup shows the sandbox's own cgroup directories, read-only: all of it is the one directory on a machine
//!   with the unified hierarchy alone, else one directory a hierarchy.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{mkdirat, openat, symlinkat, Mode, OFlags, CWD};

use super::cgroup::{self, Hierarchy, View};
use super::inside::{seal_and_attach, Inside};
use super::{detached, rootfs};
use crate::fork_server::plan::Plan;
use crate::sys::{KernelError, On};

/// What the fork server knows of the machine, read once.
pub struct Machine {
    pub overlay: rootfs::Overlay,
    pub hierarchies: Vec<Hierarchy>,
    pub cpuinfo: String,
    /// Whether processes can be put out of the OOM killer's reach; needs CAP_SYS_RESOURCE.
    pub may_lower_oom_score: bool,
}

const CGROUPS: &str = "/sys/fs/cgroup";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Show the plan's limits; the descriptor is the file behind /proc/meminfo.
pub fn show(plan: &Plan, inside: &Inside<'_>, machine: &Machine) -> Result<Option<OwnedFd>, KernelError> {
    show_cgroups(plan, inside, &machine.hierarchies)?;
    if !plan.cpus.is_empty() {
        write_new(inside.scratch, "cpuinfo", cut_cpuinfo(&machine.cpuinfo, &plan.cpus).as_bytes())?;
        inside.show("cpuinfo", "/proc/cpuinfo")?;
        write_new(inside.scratch, "online", ranges(&plan.cpus).as_bytes())?;
        inside.show("online", ONLINE)?;
    }
    if plan.memory_bytes == 0 {
        return Ok(None);
    }
    let file = write_new(inside.scratch, "meminfo", b"")?;
    inside.show("meminfo", "/proc/meminfo")?;
    Ok(Some(file))
}

pub fn write_new(directory: impl AsFd, name: &str, bytes: &[u8]) -> Result<OwnedFd, KernelError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, Mode::from_raw_mode(0o444)).on("make file", name)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest).on("write to", name)?;
        rest = &rest[written..];
    }
    Ok(file)
}

fn show_cgroups(plan: &Plan, inside: &Inside<'_>, hierarchies: &[Hierarchy]) -> Result<(), KernelError> {
    let mut views = Vec::with_capacity(plan.cgroups.len());
    for path in &plan.cgroups {
        match cgroup::view(hierarchies, path) {
            Some(View::Whole) => return show_cgroup(inside, path, CGROUPS),
            // it bounds nothing that a program could want to know
            Some(View::Named("freezer")) | None => {}
            Some(View::Named(name)) => views.push((path, name)),
        }
    }
    mkdirat(inside.scratch, "cgroup", Mode::from_raw_mode(0o555)).on("make directory", CGROUPS)?;
    for (_, name) in &views {
        mkdirat(inside.scratch, format!("cgroup/{name}"), Mode::from_raw_mode(0o555)).on("make directory", name)?;
        for single in name.split(',').filter(|single| single != name) {
            symlinkat(*name, inside.scratch, format!("cgroup/{single}")).on("make link", single)?;
        }
    }
    inside.show("cgroup", CGROUPS)?;
    views.iter().try_for_each(|(path, name)| show_cgroup(inside, path, &format!("{CGROUPS}/{name}")))
}

fn show_cgroup(inside: &Inside<'_>, path: &str, target: &str) -> Result<(), KernelError> {
    let copy = detached::copy(CWD, path)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target_directory = openat(inside.root, &target[1..], flags, Mode::empty()).on("open", target)?;
    seal_and_attach(&copy, &target_directory, target)
}

/// The paragraphs of these processors.
fn cut_cpuinfo(cpuinfo: &str, cpus: &[u32]) -> String {
    let wanted = |paragraph: &&str| {
        if paragraph.trim().is_empty() {
            return false;
        }
        let number = paragraph.lines().next().and_then(|line| line.strip_prefix("processor"));
        let number = number.and_then(|rest| rest.trim_start_matches([' ', '\t', ':']).trim().parse().ok());
        number.map_or(true, |number| cpus.contains(&number))
    };
    cpuinfo.split("\n\n").filter(wanted).map(|paragraph| format!("{}\n\n", paragraph.trim_end())).collect()
}

/// Numbers as the kernel lists them: `0-2,5`.
fn ranges(cpus: &[u32]) -> String {
    let mut sorted = cpus.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for cpu in sorted {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => parts.push((cpu, cpu)),
        }
    }
    let named = |(first, last): (u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    parts.into_iter().map(named).collect::<Vec<_>>().join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_listed_as_the_kernel_does() {
        assert_eq!(ranges(&[5, 0, 1, 2, 2]), "0-2,5\n");
        assert_eq!(ranges(&[7]), "7\n");
    }

    #[test]
    fn cpuinfo_keeps_the_named_processors_whole() {
        let cpuinfo = "processor\t: 0\nmodel\t: a\n\nprocessor\t: 1\nmodel\t: b\n\nprocessor\t: 11\nmodel\t: c\n\n";
        assert_eq!(cut_cpuinfo(cpuinfo, &[1]), "processor\t: 1\nmodel\t: b\n\n");
        assert_eq!(cut_cpuinfo(cpuinfo, &[0, 11]).matches("processor").count(), 2);
    }
}
