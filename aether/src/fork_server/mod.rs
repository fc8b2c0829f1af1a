//! The fork server: one a node, as root, the only process that makes sandboxes.
//!
//! Theory of operation. One thread, one epoll loop. The edge speaks to it over a SOCK_SEQPACKET socket (`docs/wire.md`,
//! "edge and fork server"): it hands over mounted layers, sends plans, and gets back for each sandbox a pidfd and its
//! end of the channel to that sandbox's init. For a plan the loop does next to nothing: a socket pair, a pipe, a clone
//! into a new pid namespace. The child does all the work on itself (`crate::container`), so that creates run side by
//! side on all processors, reports once on the pipe, and goes on as init without an exec, sharing this process's memory.
//!
//! - `plan`        what the edge decided, and whether it can be carried out as written
//! - `layers`      mounts held under their keys, and how many sandboxes stand on each
//! - `children`    every PID 1 from its clone to its reaping
//! - `held`        those that another fork server has cloned
//! - `descriptors` what else must outlive the edge
//! - `kills`       who waits for the end of which
//! - `connection`  one peer: frames in, frames with descriptors out
//! - `methods`     the methods of the wire, each from arguments to an answer
//! - `create`      the longest of them, and the end of what it made
//! - `networks`    network namespaces made ahead, when nothing else is to be done
//! - `server`      the loop that ties them together
//! - `node`        what is found out about the machine at the start
//!
//! What must always hold:
//! - It holds no policy and outlives the edge: everything a new edge must know is listed by it.
//! - Its death takes no sandbox with it. It keeps a duplicate of the edge's end of each channel, so that a sandbox
//!   outlives the edge; when that and the edge's own end are gone, init ends itself, since nothing can reach it.
//! - A create that fails, for whatever reason and at whatever step, is answered once its process is reaped: until then
//!   something of it may be left, from then on nothing is. One that takes longer than its deadline is killed.
//! - A peer that breaks the wire loses its connection and nothing else; only root may speak.

mod children;
mod connection;
mod create;
mod descriptors;
mod held;
mod kills;
mod layers;
mod methods;
mod networks;
mod node;
pub mod plan;
mod server;

use std::io::Write;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{flock, openat, FlockOperation, Mode, OFlags, CWD};
use rustix::io::Errno;
use rustix::net::{bind, listen, socket_with, sockopt, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::container::rootfs::Overlay;
use crate::sys::{KernelError, On};

const SOCKET: &str = "fork-server.sock";
const LOCK: &str = "fork-server.lock";
const BACKLOG: i32 = 16;

pub struct Options {
    pub run_dir: PathBuf,
    pub listen_fd: Option<i32>,
    pub overlay: OverlayChoice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlayChoice {
    Auto,
    Forced(Overlay),
}

impl FromStr for OverlayChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "descriptors" => Ok(Self::Forced(Overlay::Descriptors)),
            "paths" => Ok(Self::Forced(Overlay::Paths)),
            _ => Err(format!("cannot give layers by {text:?}: auto, descriptors or paths")),
        }
    }
}

/// Serve until told to shut down.
pub fn run(options: &Options) -> Result<(), KernelError> {
    node::quiet_stdin()?;
    // held by its open descriptor as long as this process lives; sandboxes close it
    let _lock = lock(&options.run_dir)?;
    let listener = match options.listen_fd {
        Some(number) => adopt_listener(number)?,
        None => make_listener(&options.run_dir.join(SOCKET))?,
    };
    let (node, moves) = node::prepare(options)?;
    let hierarchies = node.machine.hierarchies.clone();
    let layers = layers::Layers::new(node.machine.overlay, &options.run_dir)?;
    let served = server::Server::new(listener, node, layers).and_then(server::Server::serve);
    node::restore(&hierarchies, moves);
    served
}

/// A line in the log. One that cannot be written (a full disk, a reader that is gone) is no reason to end.
fn note(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "aether: {line}");
}

/// Two fork servers on one run directory would each know half of the sandboxes.
fn lock(run_dir: &Path) -> Result<OwnedFd, KernelError> {
    let path = run_dir.join(LOCK);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = openat(CWD, &path, flags, Mode::from_raw_mode(0o600)).on("open", path.display())?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .on("lock (is another fork server running?)", path.display())?;
    Ok(file)
}

fn make_listener(path: &Path) -> Result<OwnedFd, KernelError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).on("open", "a socket")?;
    let address = SocketAddrUnix::new(path).on("name a socket", path.display())?;
    // left by a fork server that was killed: the lock says that it is gone
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno).on("remove", path.display()),
    }
    rustix::process::umask(Mode::from_raw_mode(0o177));
    bind(&socket, &address).on("bind", path.display())?;
    listen(&socket, BACKLOG).on("listen on", path.display())?;
    Ok(socket)
}

fn adopt_listener(number: i32) -> Result<OwnedFd, KernelError> {
    // SAFETY: the command line says that this descriptor was made for us; nothing else in this process knows it.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    let target = format!("descriptor {number}");
    let kind = sockopt::socket_type(socket.as_fd()).on("listen on", &target)?;
    if kind != SocketType::SEQPACKET || !sockopt::socket_acceptconn(socket.as_fd()).on("listen on", &target)? {
        return Err(Errno::INVAL).on("listen on (not a listening SOCK_SEQPACKET socket)", &target);
    }
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).on("close on exec", &target)?;
    rustix::io::ioctl_fionbio(&socket, true).on("make non-blocking", &target)?;
    Ok(socket)
}
