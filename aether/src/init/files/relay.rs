//! PID 1's side of a file operation: a child, and the frames between it and the edge.
//!
//! The child is our own code in the sandbox's hands only as far as signals go (it can be stopped or killed there, not
//! traced), but it has read bytes of the sandbox's choosing; so nothing is taken from it that it may not say, and its
//! frames are counted against the same credit that the edge gave.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{kill_process, Pid, Signal};

use super::super::child::{self, Luggage, Sandbox, Stage, REPORT};
use super::super::commands::PATIENCE;
use super::super::kernel::{self, Forked};
use super::super::outcome::not_started;
use super::super::world::World;
use super::failure::{Failure, On};
use super::port::{Port, GRANT};
use super::{Flow, Operation, Place};
use crate::seqpacket::{Channel, ChannelError, Received};
use crate::wire::{ErrorBody, Frame, Kind, WireError, STDIN, STDOUT, WINDOW};

/// How long a child that waits for nobody may be silent.
const LIMIT_SILENCE: Duration = Duration::from_secs(60);
/// Frames taken from one child before others get their turn.
const TURN: usize = 8;

pub struct FileCall {
    call: u64,
    pid: Option<Pid>,
    path: String,
    flow: Flow,
    channel: Channel,
    /// To the child; bounded by what the edge may send.
    queue: VecDeque<Frame>,
    /// Bytes of stream 1 that the edge may still send.
    allowed: usize,
    input_ended: bool,
    /// Bytes of stream 2 that the child may still send.
    credit: u64,
    /// When either side last said something.
    heard: Instant,
    canceled: Option<Instant>,
    answered: bool,
}

impl FileCall {
    pub fn start(
        world: &World,
        call: u64,
        place: Place,
        operation: &Operation,
        now: Instant,
    ) -> Result<Self, ErrorBody> {
        let failed = |error: std::io::Error| not_started(&place.path, child::Failure::new(Stage::Fork, &error));
        let flags = SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, theirs) = pair.map_err(|errno| failed(errno.into()))?;
        // before the fork, so that nothing that fails leaves a child behind
        let channel = Channel::new(ours).map_err(failed)?;
        let null = world.sandbox.null.as_fd();
        let luggage =
            Luggage { stdin: null, stdout: null, stderr: null, report: theirs.as_fd(), extra: None, leaf: None };
        let pid = match kernel::fork().map_err(failed)? {
            Forked::Parent(pid) => pid,
            Forked::Child => work(&world.sandbox, &luggage, call, &place, operation),
        };
        Ok(Self {
            call,
            pid: Some(pid),
            flow: operation.flow(),
            channel,
            path: place.path,
            queue: VecDeque::new(),
            allowed: WINDOW,
            input_ended: false,
            credit: WINDOW as u64,
            heard: now,
            canceled: None,
            answered: false,
        })
    }

    /// Whether input is to come yet.
    pub fn lacks_input(&self) -> bool {
        self.flow == Flow::Input && !self.input_ended
    }

    pub fn endless(&self) -> bool {
        self.flow == Flow::Endless
    }

    /// What to poll for, if anything: an end would be told even to who asks for nothing, again and again.
    pub fn wanted(&self, has_room: bool) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, has_room);
        flags.set(PollFlags::OUT, !self.queue.is_empty());
        (!flags.is_empty()).then(|| (self.channel.as_fd(), flags))
    }

    /// A frame of this call from the edge.
    pub fn take_frame(&mut self, frame: &Frame, now: Instant) -> Result<(), ChannelError> {
        match frame.kind {
            Kind::Data if frame.stream == STDIN => {
                let Some(left) = self.allowed.checked_sub(frame.payload.len()) else {
                    return Err(WireError("cannot take DATA over the granted credit".into()).into());
                };
                self.allowed = left;
                self.input_ended |= frame.end;
            }
            Kind::Credit if frame.stream == STDOUT => self.credit += u64::from(frame.credit_amount()?),
            Kind::Cancel => {
                self.canceled.get_or_insert(now);
            }
            _ => return Ok(()),
        }
        self.heard = now;
        self.queue.push_back(frame.clone());
        self.write();
        Ok(())
    }

    /// A new edge speaks from here on: both windows are fresh.
    pub fn reset_windows(&mut self) {
        self.allowed = WINDOW;
        if let Some(missing) = (WINDOW as u64).checked_sub(self.credit).filter(|missing| *missing > 0) {
            self.credit += missing;
            self.queue.push_back(Frame::credit(self.call, STDOUT, missing as u32));
        }
    }

    pub fn write(&mut self) {
        while let Some(frame) = self.queue.front() {
            match self.channel.send(frame, &[]) {
                Ok(true) => drop(self.queue.pop_front()),
                Ok(false) => break,
                // the child is gone, which is seen when its side is read
                Err(_) => self.queue.clear(),
            }
        }
    }

    /// Pass on what the child says.
    pub fn read(&mut self, world: &mut World, now: Instant) -> Result<(), ChannelError> {
        for _ in 0..TURN {
            if self.answered || !world.edge.has_room() {
                break;
            }
            match self.channel.receive() {
                Ok(Received::Frame(frame, _)) => self.pass(&frame, world, now)?,
                Ok(Received::Empty) => break,
                Ok(Received::Closed) => self.fail(world, "file_operation", "the process that did it was killed")?,
                Err(_) => self.fail(world, "internal", "the process that did it broke its protocol")?,
            }
        }
        Ok(())
    }

    fn pass(&mut self, frame: &Frame, world: &mut World, now: Instant) -> Result<(), ChannelError> {
        self.heard = now;
        let size = frame.payload.len();
        let allowed = match frame.kind {
            Kind::Data => frame.stream == STDOUT && size as u64 <= self.credit,
            Kind::Credit => frame.stream == STDIN && frame.credit_amount().is_ok(),
            Kind::Result | Kind::Error => true,
            _ => false,
        };
        if !allowed || frame.call != self.call {
            return self.fail(world, "internal", "the process that did it broke its protocol");
        }
        match frame.kind {
            Kind::Data => {
                self.credit -= size as u64;
                world.passed += size as u64;
                world.edge.send(frame)
            }
            Kind::Credit => {
                // what a predecessor of the edge has sent is no credit of its successor's
                let amount = (frame.credit_amount()? as usize).min(WINDOW - self.allowed);
                self.allowed += amount;
                match amount {
                    0 => Ok(()),
                    _ => world.edge.send(&Frame::credit(self.call, STDIN, amount as u32)),
                }
            }
            _ => {
                self.answered = true;
                world.edge.pass(frame)
            }
        }
    }

    fn fail(&mut self, world: &mut World, code: &str, why: &str) -> Result<(), ChannelError> {
        self.answered = true;
        let body = ErrorBody::new(code, format!("cannot finish the operation on {:?}: {why}", self.path));
        world.edge.error(self.call, &body.with("path", self.path.as_str()).with("errno", libc::EIO))
    }

    /// Whether the child could go on by itself.
    fn waits_for_child(&self, has_room: bool) -> bool {
        match self.flow {
            Flow::None => true,
            // what a child that keeps up has not granted back is less than one grant
            Flow::Input => self.input_ended || WINDOW - self.allowed >= GRANT,
            Flow::Output => has_room && self.credit > 0,
            Flow::Endless => false,
        }
    }

    pub fn next_wake(&self, has_room: bool) -> Option<Instant> {
        let silence = self.waits_for_child(has_room).then(|| self.heard + LIMIT_SILENCE);
        silence.into_iter().chain(self.canceled.map(|since| since + PATIENCE)).min()
    }

    /// Do what is due; true when the call is over.
    pub fn advance(&mut self, world: &mut World, now: Instant) -> Result<bool, ChannelError> {
        if !self.answered && self.canceled.is_some_and(|since| now >= since + PATIENCE) {
            self.fail(world, "deadline_exceeded", "it was canceled")?;
        }
        let silent = now >= self.heard + LIMIT_SILENCE && self.waits_for_child(world.edge.has_room());
        if !self.answered && silent {
            let seconds = LIMIT_SILENCE.as_secs();
            self.fail(world, "deadline_exceeded", &format!("it made no progress for {seconds} s"))?;
        }
        Ok(self.answered)
    }

    /// The call is over. A child that the sandbox has stopped would stay, so it is killed.
    pub fn end(self) {
        if let Some(pid) = self.pid {
            let _gone = kill_process(pid, Signal::KILL);
        }
    }

    /// None once it is reaped.
    pub fn pid(&self) -> Option<Pid> {
        self.pid
    }

    pub fn reaped(&mut self) {
        self.pid = None;
    }
}

/// The child's whole life.
fn work(sandbox: &Sandbox, luggage: &Luggage<'_>, call: u64, place: &Place, operation: &Operation) -> ! {
    let entered = child::enter(sandbox, luggage, &place.user);
    let Ok(channel) = Channel::new(kernel::placed(REPORT)) else { kernel::exit_now(1) };
    let mut port = Port::new(channel, call);
    let result = match entered {
        Ok(_) => go(place, operation).and_then(|()| operation.perform(&mut port)),
        Err(failure) => Err(Failure::Refused(not_started(&place.path, failure))),
    };
    let told = port.answer(result);
    kernel::exit_now(i32::from(told.is_err()))
}

fn go(place: &Place, operation: &Operation) -> Result<(), Failure> {
    // an absolute path needs no directory to begin in, and must work when that directory is gone
    if operation.paths().iter().all(|path| path.starts_with('/')) {
        return Ok(());
    }
    rustix::process::chdir(place.cwd.as_str()).on(std::path::Path::new(&place.cwd))
}
