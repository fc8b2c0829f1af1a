//! Frames with descriptors beside them over a SOCK_SEQPACKET socket: one packet, one frame.
//!
//! Sending and receiving never block (MSG_DONTWAIT); who wants to wait polls the descriptor first. A packet that is
//! not exactly one frame, or that carries more descriptors than MAX_DESCRIPTORS, is a broken peer: the caller closes
//! the channel. Descriptors that were received are close-on-exec, and none is lost when the frame is refused.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    recvmsg, sendmsg, sockopt, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::wire::{Frame, WireError, HEADER_SIZE, MAX_PAYLOAD};

/// Descriptors that may lie beside one frame.
pub const MAX_DESCRIPTORS: usize = 4;

const MAX_PACKET: usize = HEADER_SIZE + MAX_PAYLOAD;
/// The kernel doubles it and cuts it at its own limit; the default limit is enough for one largest frame.
const SEND_BUFFER: usize = 1024 * 1024;
/// A buffer that held more than this is given back, so that an idle process stays small.
const KEEP_RESIDENT: usize = 16 * 1024;

pub struct Channel {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

pub enum Received {
    Frame(Frame, Vec<OwnedFd>),
    /// Nothing is there now.
    Empty,
    /// Every holder of the other end is gone.
    Closed,
}

#[derive(Debug)]
pub enum ChannelError {
    Wire(WireError),
    Socket(io::Error),
}

impl fmt::Display for ChannelError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wire(error) => error.fmt(formatter),
            Self::Socket(error) => write!(formatter, "cannot use the channel: {error}"),
        }
    }
}

impl std::error::Error for ChannelError {}

impl From<WireError> for ChannelError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl From<Errno> for ChannelError {
    fn from(error: Errno) -> Self {
        Self::Socket(error.into())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Channel {
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER)?;
        Ok(Self { socket, buffer: fresh_buffer() })
    }

    /// The next frame, if one is there.
    pub fn receive(&mut self) -> Result<Received, ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message = loop {
            match recvmsg(&self.socket, &mut [io::IoSliceMut::new(&mut self.buffer)], &mut control, flags) {
                // a peer that ended without reading all we sent is told once, before what it had still said
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(Errno::AGAIN) => return Ok(Received::Empty),
                other => break other?,
            }
        };
        let mut descriptors = Vec::new();
        for item in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = item {
                descriptors.extend(received);
            }
        }
        if message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(WireError(format!("cannot read a frame with more than {MAX_DESCRIPTORS} descriptors")).into());
        }
        // a packet of no bytes cannot be told from the end; our peers never send one
        if message.bytes == 0 {
            return Ok(Received::Closed);
        }
        let frame = Frame::decode(&self.buffer[..message.bytes]);
        if message.bytes > KEEP_RESIDENT {
            self.buffer = fresh_buffer();
        }
        Ok(Received::Frame(frame?, descriptors))
    }

    /// Send one frame; false says that the socket is full now and nothing was sent.
    pub fn send(&self, frame: &Frame, descriptors: &[BorrowedFd<'_>]) -> Result<bool, ChannelError> {
        self.send_packet(&frame.encode()?, descriptors)
    }

    /// As `send`, for a frame that is encoded already.
    pub fn send_packet(&self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<bool, ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(WireError(format!("cannot send more than {MAX_DESCRIPTORS} descriptors")).into());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match sendmsg(&self.socket, &[io::IoSlice::new(packet)], &mut control, flags) {
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// One byte more than the largest packet, so that a larger one is seen to be no frame. Zeroed memory of this size
/// comes from the kernel page by page, as it is used.
fn fresh_buffer() -> Vec<u8> {
    vec![0; MAX_PACKET + 1]
}
