//! The layers that sandboxes are made from: one descriptor of a mount each, under the edge's key.
//!
//! A layer in use is never let go: what the edge calls dropped would still be pinned by the overlays over it, and it
//! would count its disk space as free. The mounts are detached where this kernel copies such; else each is attached in
//! this process's own mount namespace, in a tmpfs that goes with it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{fstat, mkdirat, unlinkat, AtFlags, FileType, Mode, CWD};
use rustix::io::Errno;
use rustix::mount::{unmount, MountAttrFlags, UnmountFlags};

use crate::container::detached;
use crate::container::rootfs::Overlay;
use crate::sys::{KernelError, On};

/// Directory in the run directory, always empty as the host sees it.
const TREE: &str = "layers";
const MAX_KEY: usize = 256;
pub const MAX_HELD: usize = 8192;

struct Layer {
    mount: OwnedFd,
    sandboxes: u32,
    /// Its directory in the tree, where it has to be in one.
    place: Option<u64>,
}

pub struct Layers {
    held: BTreeMap<String, Layer>,
    tree: Option<Tree>,
}

/// Why a layer cannot be held or dropped.
#[derive(Debug)]
pub enum LayerError {
    BadKey(String),
    NotADirectory(String),
    TooMany,
    Unknown(String),
    InUse { key: String, sandboxes: u32 },
    Kernel(KernelError),
}

impl From<KernelError> for LayerError {
    fn from(error: KernelError) -> Self {
        Self::Kernel(error)
    }
}

impl Layers {
    pub fn new(overlay: Overlay, run_dir: &Path) -> Result<Self, KernelError> {
        let tree = if overlay == Overlay::Paths { Some(Tree::make(run_dir.join(TREE))?) } else { None };
        Ok(Self { held: BTreeMap::new(), tree })
    }

    /// Keep a mount; one under a key that is known already is let go of again.
    pub fn hold(&mut self, key: &str, mount: OwnedFd) -> Result<(), LayerError> {
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(LayerError::BadKey(key.into()));
        }
        let status = fstat(&mount).on("look at the mount of layer", key)?;
        if !FileType::from_raw_mode(status.st_mode).is_dir() {
            return Err(LayerError::NotADirectory(key.into()));
        }
        if self.held.contains_key(key) {
            return Ok(());
        }
        if self.held.len() >= MAX_HELD {
            return Err(LayerError::TooMany);
        }
        let place = self.tree.as_mut().map(|tree| tree.attach(&mount, key)).transpose()?;
        self.held.insert(key.into(), Layer { mount, sandboxes: 0, place });
        Ok(())
    }

    pub fn drop(&mut self, key: &str) -> Result<(), LayerError> {
        let layer = self.held.get(key).ok_or_else(|| LayerError::Unknown(key.into()))?;
        if layer.sandboxes > 0 {
            return Err(LayerError::InUse { key: key.into(), sandboxes: layer.sandboxes });
        }
        if let (Some(tree), Some(place)) = (&self.tree, layer.place) {
            tree.detach(place)?;
        }
        self.held.remove(key);
        Ok(())
    }

    pub fn list(&self) -> impl Iterator<Item = (&str, u32)> {
        self.held.iter().map(|(key, layer)| (key.as_str(), layer.sandboxes))
    }

    /// The first of these keys that is not held.
    pub fn unknown<'a>(&self, keys: &'a [String]) -> Option<&'a str> {
        keys.iter().find(|key| !self.held.contains_key(*key)).map(String::as_str)
    }

    /// The mounts of these keys, all of which are held.
    pub fn mounts(&self, keys: &[String]) -> Vec<BorrowedFd<'_>> {
        keys.iter().filter_map(|key| self.held.get(key)).map(|layer| layer.mount.as_fd()).collect()
    }

    /// A sandbox stands on these layers.
    pub fn acquire(&mut self, keys: &[String]) {
        for key in keys {
            if let Some(layer) = self.held.get_mut(key) {
                layer.sandboxes += 1;
            }
        }
    }

    /// That sandbox is gone.
    pub fn release(&mut self, keys: &[String]) {
        for key in keys {
            if let Some(layer) = self.held.get_mut(key) {
                layer.sandboxes -= 1;
            }
        }
    }
}

/// Where layers are attached on kernels that need them so; never seen by the host.
struct Tree {
    root: OwnedFd,
    path: PathBuf,
    next: u64,
}

impl Tree {
    fn make(path: PathBuf) -> Result<Self, KernelError> {
        match mkdirat(CWD, &path, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno).on("make directory", path.display()),
        }
        let root = detached::make("tmpfs", &[("size", "1m"), ("mode", "0700")], MountAttrFlags::empty())?;
        detached::attach(&root, CWD, &path).on("mount on", path.display())?;
        Ok(Self { root, path, next: 0 })
    }

    fn attach(&mut self, mount: &OwnedFd, key: &str) -> Result<u64, KernelError> {
        let place = self.next;
        self.next += 1;
        let name = place.to_string();
        mkdirat(&self.root, &name, Mode::from_raw_mode(0o700)).on("make directory for layer", key)?;
        detached::attach(mount, &self.root, &name).on("attach layer", key)?;
        Ok(place)
    }

    fn detach(&self, place: u64) -> Result<(), KernelError> {
        let path = self.path.join(place.to_string());
        match unmount(&path, UnmountFlags::DETACH) {
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno).on("unmount", path.display()),
        }
        unlinkat(&self.root, place.to_string(), AtFlags::REMOVEDIR).on("remove", path.display())
    }
}
