//! The root of a sandbox: idmapped copies of the layers, an overlay over them, and the pivot into it.
//!
//! On the mount point that all sandboxes share, which is hidden by this mount namespace, lies first a small tmpfs, the
//! *scratch*: the overlay is mounted on its `root`, and what else is shown inside (`/dev`, masks, the limits' view) is
//! bound out of it. The pivot takes scratch and host out of the namespace together.
//!
//! Layers go to overlayfs by descriptor where the kernel takes them so: they stay out of every mount tree. Older
//! kernels get them attached in the scratch and named by path, relative to it, since a mount's options have little room.
//! The upper is never idmapped: its maker would have no id there and the overlay would turn read-only.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{mkdirat, openat, Mode, OFlags, CWD};
use rustix::io::Errno;
use rustix::mount::{
    fsconfig_set_fd, fsconfig_set_flag, fsconfig_set_string, fsopen, unmount, FsOpenFlags, MountAttrFlags, MountFlags,
    UnmountFlags,
};

use super::detached;
use super::steps::{During, Failure, Stage};
use crate::fork_server::plan::Plan;
use crate::sys::{self, KernelError, On};

/// How layers are given to overlayfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlay {
    Descriptors,
    Paths,
}

/// What the sandbox may put into its /dev.
const SCRATCH_OPTIONS: [(&str, &str); 3] = [("size", "4m"), ("nr_inodes", "4096"), ("mode", "0755")];
const SCRATCH_ROOT: &str = "root";
/// An index and an identity of its own would only write more into the upper at each mount.
const OPTIONS: [(&str, &str); 5] =
    [("redirect_dir", "off"), ("metacopy", "off"), ("xino", "on"), ("index", "off"), ("uuid", "off")];
const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Copies of the held layers; make them before leaving the mount namespace in which these were held.
pub fn copy_layers(held: &[BorrowedFd<'_>]) -> Result<Vec<OwnedFd>, Failure> {
    held.iter().map(|layer| detached::copy(layer, "")).collect::<Result<_, _>>().during(Stage::Layer)
}

/// Give the copies the ids of the sandbox.
pub fn map_layers(copies: &[OwnedFd], user_namespace: &OwnedFd) -> Result<(), Failure> {
    let restricted = sys::mount_attribute::RDONLY | sys::mount_attribute::NODEV;
    copies
        .iter()
        .try_for_each(|copy| sys::map_ids(copy, user_namespace, restricted).on("map ids of", "a layer"))
        .during(Stage::Layer)
}

/// The scratch, mounted at the plan's root.
pub fn mount_scratch(plan: &Plan) -> Result<OwnedFd, Failure> {
    let make = || {
        // device nodes of /dev work on copies of this mount, so it is not nodev
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let scratch = detached::make("tmpfs", &SCRATCH_OPTIONS, attributes)?;
        detached::attach(&scratch, CWD, &plan.root).on("mount on", &plan.root)?;
        mkdirat(&scratch, SCRATCH_ROOT, Mode::from_raw_mode(0o755)).on("make directory", SCRATCH_ROOT)?;
        Ok(scratch)
    };
    make().during(Stage::Mount)
}

/// The overlay, mounted in the scratch; the descriptor is its root.
pub fn mount_overlay(
    plan: &Plan,
    overlay: Overlay,
    scratch: &OwnedFd,
    layers: Vec<OwnedFd>,
) -> Result<OwnedFd, Failure> {
    match overlay {
        Overlay::Descriptors => by_descriptors(plan, scratch, &layers),
        Overlay::Paths => by_paths(plan, scratch, &layers),
    }
    .during(Stage::Overlay)
}

fn by_descriptors(plan: &Plan, scratch: &OwnedFd, layers: &[OwnedFd]) -> Result<OwnedFd, KernelError> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).on("open file system", "overlay")?;
    for (layer, key) in layers.iter().zip(&plan.layers).rev() {
        fsconfig_set_fd(&context, "lowerdir+", layer).on("add layer", key)?;
    }
    for (option, path) in [("upperdir", &plan.upper), ("workdir", &plan.work)] {
        let directory = openat(CWD, path, PATH_FLAGS, Mode::empty()).on("open", path)?;
        fsconfig_set_fd(&context, option, &directory).on(option, path)?;
    }
    for (option, value) in OPTIONS {
        fsconfig_set_string(&context, option, value).on("set option", option)?;
    }
    fsconfig_set_flag(&context, "volatile").on("set option", "volatile")?;
    let root = detached::create(&context, "overlay", MountAttrFlags::MOUNT_ATTR_NODEV)?;
    detached::attach(&root, scratch, SCRATCH_ROOT).on("mount", "the overlay")?;
    Ok(root)
}

fn by_paths(plan: &Plan, scratch: &OwnedFd, layers: &[OwnedFd]) -> Result<OwnedFd, KernelError> {
    let mut names = Vec::with_capacity(layers.len());
    for (number, layer) in layers.iter().enumerate() {
        let name = number.to_string();
        mkdirat(scratch, &name, Mode::from_raw_mode(0o755)).on("make directory", &name)?;
        detached::attach(layer, scratch, &name).on("mount layer", &plan.layers[number])?;
        names.push(name);
    }
    names.reverse();
    let mut data = format!("lowerdir={},volatile", names.join(":"));
    for (option, path) in [("upperdir", &plan.upper), ("workdir", &plan.work)] {
        data.push_str(&format!(",{option}={}", escaped(path)));
    }
    for (option, value) in OPTIONS {
        data.push_str(&format!(",{option}={value}"));
    }
    rustix::process::fchdir(scratch).on("change directory to", "the scratch")?;
    let options = std::ffi::CString::new(data).map_err(|_| Errno::INVAL).on("mount", &plan.upper)?;
    rustix::mount::mount("overlay", SCRATCH_ROOT, "overlay", MountFlags::NODEV, Some(options.as_c_str()))
        .on("mount", "the overlay")?;
    openat(scratch, SCRATCH_ROOT, PATH_FLAGS, Mode::empty()).on("open", "the overlay")
}

/// A path as a value in overlayfs's option string.
fn escaped(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for character in path.chars() {
        if matches!(character, ',' | '\\') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// Make `root` the root, and let go of everything that was there before.
pub fn pivot(root: &OwnedFd) -> Result<(), Failure> {
    let pivot = || {
        rustix::process::fchdir(root).on("change directory to", "the overlay")?;
        // the old root ends up mounted over the new one, where "." still reaches it
        rustix::process::pivot_root(".", ".").on("pivot to", "the overlay")?;
        unmount(".", UnmountFlags::DETACH).on("unmount", "the host's root")?;
        rustix::process::chdir("/").on("change directory to", "/")
    };
    pivot().during(Stage::Pivot)
}

/// What this kernel can, by trying it on nothing of value: copying a mount that lies in no tree, and naming a layer by
/// its descriptor.
pub fn probe() -> Result<Overlay, KernelError> {
    let mount = detached::make("tmpfs", &[("size", "4k")], MountAttrFlags::empty())?;
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).on("open file system", "overlay")?;
    let takes =
        detached::copy(&mount, "").is_ok_and(|copy| fsconfig_set_fd(&context, "lowerdir+", copy.as_fd()).is_ok());
    Ok(if takes { Overlay::Descriptors } else { Overlay::Paths })
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn a_path_cannot_end_its_option() {
        assert_eq!(escaped("/a,lowerdir=/etc"), "/a\\,lowerdir=/etc");
        assert_eq!(escaped("/a\\b"), "/a\\\\b");
    }
}
