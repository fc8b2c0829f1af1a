//! Terminals of commands.
//!
//! The child opens the terminal itself once it is the sandbox's user, so that the terminal belongs to that user, and
//! sends the master back beside its report. It reaches the sandbox's own devpts through an inherited descriptor, not
//! through a path.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{openat, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::pty::{ioctl_tiocgptpeer, unlockpt, OpenptFlags};
use rustix::termios::{tcsetwinsize, Winsize};

use super::child::{Failure, EXTRA, REPORT};
use super::kernel;

#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub rows: u16,
    pub cols: u16,
}

/// In the child: make a terminal, send its master to PID 1, and make it the child's own.
pub fn become_terminal(size: Size) -> Result<(), Errno> {
    let devpts = kernel::placed(EXTRA);
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = openat(&devpts, "ptmx", flags, Mode::empty())?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    resize(&slave, size)?;
    send_master(&master)?;
    rustix::process::ioctl_tiocsctty(&slave)?;
    for number in 0..3 {
        kernel::place(slave.as_fd(), number, false)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    }
    Ok(())
}

pub fn resize(terminal: impl AsFd, size: Size) -> Result<(), Errno> {
    tcsetwinsize(terminal, Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 })
}

fn send_master(master: &OwnedFd) -> Result<(), Errno> {
    let report = kernel::placed(REPORT);
    let masters = [master.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&masters));
    let sent = sendmsg(&report, &[std::io::IoSlice::new(b"T")], &mut control, SendFlags::NOSIGNAL);
    // the report goes on being the child's until it executes
    std::mem::forget(report);
    sent.map(|_| ())
}

/// What a child with a terminal has said.
pub enum Said {
    Master(OwnedFd),
    Failed(Failure),
    Nothing,
    /// Nothing any more: it has become the program, or has ended.
    Gone,
}

/// In PID 1: the next packet on the report socket.
pub fn listen(report: &OwnedFd) -> Said {
    let mut bytes = [0; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let count = match recvmsg(report, &mut [std::io::IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Ok(message) => message.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Said::Nothing,
        Err(_) => return Said::Gone,
    };
    let descriptors = control.drain().find_map(|item| match item {
        RecvAncillaryMessage::ScmRights(mut received) => received.next(),
        _ => None,
    });
    match (descriptors, Failure::from_bytes(&bytes[..count])) {
        (Some(master), _) => Said::Master(master),
        (None, Some(failure)) => Said::Failed(failure),
        (None, None) => Said::Gone,
    }
}
