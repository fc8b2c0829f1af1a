//! What lies on the root besides the image: /proc, /sys, /dev, and the masks.

use std::os::fd::OwnedFd;

use rustix::fs::{makedev, mkdirat, mknodat, openat, symlinkat, FileType, Mode, OFlags};
use rustix::mount::MountAttrFlags;

use super::inside::{Inside, EMPTY_DIRECTORY, EMPTY_FILE};
use super::steps::{During, Failure, Stage};
use super::{detached, limits, resolver};
use crate::fork_server::plan::Plan;
use crate::sys::{KernelError, On};

/// Host-wide nodes without power, which every program expects.
const NODES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

const LINKS: [(&str, &str); 5] = [
    ("pts/ptmx", "ptmx"),
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
];

const DEV: &str = "dev";
/// The group that terminals belong to in every distribution of Linux that has one.
const TTY_GROUP: u32 = 5;

/// A procfs of this pid namespace, in no tree yet.
pub fn make_proc() -> Result<OwnedFd, Failure> {
    detached::make("proc", &[], detached::PLAIN).during(Stage::Mount)
}

/// What PID 1 keeps of the mounts.
pub struct Mounted {
    pub devpts: OwnedFd,
    pub meminfo: Option<OwnedFd>,
}

/// Mount everything. `proc` is attached too; its descriptor stays useful.
pub fn mount_all(
    plan: &Plan,
    inside: &Inside<'_>,
    proc: &OwnedFd,
    machine: &limits::Machine,
) -> Result<Mounted, Failure> {
    let mount = || {
        inside.mount(proc, "proc")?;
        let sysfs = detached::make("sysfs", &[], detached::PLAIN | MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        inside.mount(&sysfs, "sys")?;
        let devpts = mount_dev(plan, inside)?;
        make_empty(inside)?;
        let meminfo = limits::show(plan, inside, machine)?;
        if plan.host_network {
            resolver::show(inside)?;
        }
        plan.readonly.iter().try_for_each(|path| inside.protect(path))?;
        plan.masked.iter().try_for_each(|path| inside.mask(path))?;
        Ok(Mounted { devpts, meminfo })
    };
    mount().during(Stage::Mount)
}

fn mount_dev(plan: &Plan, inside: &Inside<'_>) -> Result<OwnedFd, KernelError> {
    mkdirat(inside.scratch, DEV, Mode::from_raw_mode(0o755)).on("make directory", "/dev")?;
    inside.own(inside.scratch, DEV)?;
    let dev = detached::copy(inside.scratch, DEV)?;
    for (name, major, minor) in NODES {
        let mode = Mode::from_raw_mode(0o666);
        mknodat(&dev, name, FileType::CharacterDevice, mode, makedev(major, minor))
            .on("make device", format!("/dev/{name}"))?;
        inside.own(&dev, name)?;
    }
    for (target, name) in LINKS {
        symlinkat(target, &dev, name).on("make link", format!("/dev/{name}"))?;
    }
    for name in ["pts", "shm"] {
        mkdirat(&dev, name, Mode::from_raw_mode(0o755)).on("make directory", format!("/dev/{name}"))?;
    }
    inside.mount(&dev, DEV)?;
    let devpts = make_devpts(plan)?;
    detached::attach(&devpts, inside.root, "dev/pts").on("mount on", "/dev/pts")?;
    let shm = make_shm(plan)?;
    detached::attach(&shm, inside.root, "dev/shm").on("mount on", "/dev/shm")?;
    Ok(devpts)
}

fn make_devpts(plan: &Plan) -> Result<OwnedFd, KernelError> {
    let group = (plan.id_base + TTY_GROUP).to_string();
    let options = [("ptmxmode", "0666"), ("mode", "0620"), ("gid", group.as_str())];
    detached::make("devpts", &options, MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC)
}

fn make_shm(plan: &Plan) -> Result<OwnedFd, KernelError> {
    let (size, owner) = (plan.shm_bytes.to_string(), plan.id_base.to_string());
    let options = [("size", size.as_str()), ("mode", "1777"), ("uid", owner.as_str()), ("gid", owner.as_str())];
    detached::make("tmpfs", &options, MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV)
}

/// What masks are made of.
fn make_empty(inside: &Inside<'_>) -> Result<(), KernelError> {
    mkdirat(inside.scratch, EMPTY_DIRECTORY, Mode::from_raw_mode(0o555)).on("make directory", EMPTY_DIRECTORY)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    openat(inside.scratch, EMPTY_FILE, flags, Mode::from_raw_mode(0o444)).on("make file", EMPTY_FILE)?;
    Ok(())
}
