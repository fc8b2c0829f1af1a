//! `file.watch`: changes below a path, until CANCEL.
//!
//! The first DATA is an empty array: from then on nothing is missed unless an `overflow` says so. A reader without
//! credit is waited for; what happens meanwhile stays in the kernel's queue, which overflows if it lasts. A directory
//! that appears below a recursive watch is watched too, and what it already holds is told as created.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::CWD;
use rustix::io::Errno;
use serde::Serialize;

use super::failure::{Failure, On};
use super::port::{Batch, Port};
use super::walk::{open_directory, walk, Walk, When};
use super::{FileAnswer, FileArgs};

/// Bytes of an event on the wire besides its path, at most.
const WEIGHT: usize = 40;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct FileEvent {
    kind: &'static str,
    path: String,
}

struct Watcher {
    inotify: OwnedFd,
    root: PathBuf,
    recursive: bool,
    /// Watched paths relative to the root, by watch descriptor.
    paths: HashMap<i32, PathBuf>,
    events: Vec<FileEvent>,
    total: u64,
    over: bool,
}

pub fn watch(args: &FileArgs, port: &mut Port) -> Result<FileAnswer, Failure> {
    let root = PathBuf::from(&args.path);
    let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).on(&root)?;
    let (paths, events) = (HashMap::new(), Vec::new());
    let mut watcher = Watcher { inotify, root, recursive: args.recursive, paths, events, total: 0, over: false };
    watcher.add(Path::new(""), false)?;
    port.send_message::<[FileEvent]>(&[])?;
    let ended = watcher.follow(port);
    match ended {
        // the way a watch ends
        Ok(()) | Err(Failure::Canceled) => Ok(FileAnswer { entries: watcher.total, ..FileAnswer::default() }),
        Err(failure) => Err(failure),
    }
}

impl Watcher {
    fn follow(&mut self, port: &mut Port) -> Result<(), Failure> {
        let mut buffer = vec![MaybeUninit::uninit(); 16 * 1024];
        while !self.over {
            let mut polled =
                [PollFd::new(&self.inotify, PollFlags::IN), PollFd::from_borrowed_fd(port.as_fd(), PollFlags::IN)];
            // interrupted or not, both are looked at
            let _ready = poll(&mut polled, None);
            port.take()?;
            self.read(&mut buffer)?;
            let mut batch = Batch::new();
            for event in std::mem::take(&mut self.events) {
                self.total += 1;
                let weight = WEIGHT + event.path.len();
                batch.push(event, weight, port)?;
            }
            batch.flush(port)?;
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [MaybeUninit<u8>]) -> Result<(), Failure> {
        let mut happened = Vec::new();
        let mut reader = inotify::Reader::new(self.inotify.as_fd(), buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let name =
                        event.file_name().map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())));
                    happened.push((event.wd(), event.events(), name));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(Failure::system(&self.root, errno)),
            }
            if reader.is_buffer_empty() {
                break;
            }
        }
        happened.into_iter().try_for_each(|(watch, flags, name)| self.note(watch, flags, name.as_deref()))
    }

    fn note(&mut self, watch: i32, flags: ReadFlags, name: Option<&Path>) -> Result<(), Failure> {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.push("overflow", Path::new(""));
            return Ok(());
        }
        let Some(directory) = self.paths.get(&watch).cloned() else { return Ok(()) };
        if flags.contains(ReadFlags::IGNORED) {
            self.paths.remove(&watch);
            self.over |= directory.as_os_str().is_empty();
            return Ok(());
        }
        let path = name.map_or(directory.clone(), |name| directory.join(name));
        let Some(kind) = kind(flags) else { return Ok(()) };
        // what happens to a watched directory itself is told by the one above it
        if name.is_some() || directory.as_os_str().is_empty() {
            self.push(kind, &path);
        }
        if self.recursive
            && flags.contains(ReadFlags::ISDIR)
            && matches!(kind, "created" | "moved_to")
            && name.is_some()
        {
            self.add(&path, true)?;
        }
        if kind == "moved_from" && flags.contains(ReadFlags::ISDIR) {
            self.forget(&path);
        }
        Ok(())
    }

    fn push(&mut self, kind: &'static str, path: &Path) {
        let event = FileEvent { kind, path: path.to_string_lossy().into_owned() };
        // a file that is written piece by piece is told once a batch
        if self.events.last() != Some(&event) {
            self.events.push(event);
        }
    }

    /// Watch a path and, if it is recursive, the directories below it; `appeared` tells what is in it as created.
    fn add(&mut self, path: &Path, appeared: bool) -> Result<(), Failure> {
        if !self.add_one(path, appeared)? || !self.recursive {
            return Ok(());
        }
        let directory = match open_directory(CWD, &self.full(path)) {
            Ok(directory) => directory,
            Err(Errno::NOTDIR | Errno::NOENT | Errno::LOOP) => return Ok(()),
            Err(errno) => return Err(Failure::system(path, errno)),
        };
        walk(&directory, &mut |entry, when| {
            let inner = path.join(entry.path);
            if when == When::After {
                return Ok(Walk::On);
            }
            if appeared {
                self.push("created", &inner);
            }
            if entry.is_directory() {
                self.add_one(&inner, appeared)?;
            }
            Ok(Walk::On)
        })
    }

    /// False when what has just appeared is gone again.
    fn add_one(&mut self, path: &Path, appeared: bool) -> Result<bool, Failure> {
        let mut flags =
            WatchFlags::CREATE | WatchFlags::MODIFY | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::ATTRIB;
        flags |= WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::EXCL_UNLINK;
        flags.set(WatchFlags::DONT_FOLLOW, !path.as_os_str().is_empty());
        match inotify::add_watch(&self.inotify, self.full(path), flags) {
            Ok(watch) => {
                self.paths.insert(watch, path.to_path_buf());
                Ok(true)
            }
            Err(Errno::NOENT | Errno::NOTDIR) if appeared => Ok(false),
            Err(errno) => Err(Failure::system(&self.full(path), errno)),
        }
    }

    fn full(&self, path: &Path) -> PathBuf {
        if path.as_os_str().is_empty() {
            self.root.clone()
        } else {
            self.root.join(path)
        }
    }

    /// A directory has gone elsewhere: what happens there is no longer below the root.
    fn forget(&mut self, path: &Path) {
        let gone: Vec<i32> =
            self.paths.iter().filter(|(_, known)| known.starts_with(path)).map(|(watch, _)| *watch).collect();
        for watch in gone {
            self.paths.remove(&watch);
            // it may have ended by itself already
            let _ended = inotify::remove_watch(&self.inotify, watch);
        }
    }
}

fn kind(flags: ReadFlags) -> Option<&'static str> {
    let kinds = [
        (ReadFlags::CREATE, "created"),
        (ReadFlags::MODIFY, "modified"),
        (ReadFlags::DELETE | ReadFlags::DELETE_SELF, "removed"),
        (ReadFlags::MOVED_FROM | ReadFlags::MOVE_SELF, "moved_from"),
        (ReadFlags::MOVED_TO, "moved_to"),
        (ReadFlags::ATTRIB, "attributes"),
    ];
    kinds.iter().find(|(flag, _)| flags.intersects(*flag)).map(|(_, kind)| *kind)
}
