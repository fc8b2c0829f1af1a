//! The loop of the fork server: connections, children that report, children that die, deadlines.
//!
//! Descriptors are taken out of the epoll set before they are closed: a child that was cloned meanwhile holds copies, so
//! that closing alone would not take them out.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{epoll, Timespec};
use rustix::io::Errno;
use rustix::net::{accept_with, sockopt, SocketFlags};
use rustix::process::Pid;

use super::children::Children;
use super::connection::{Connection, Origin};
use super::descriptors::Descriptors;
use super::held::HeldSandboxes;
use super::kills::{too_late, Kills};
use super::layers::Layers;
use super::networks::Networks;
use super::note;
use crate::container::Node;
use crate::seqpacket::{ChannelError, Received};
use crate::sys::{self, KernelError, On};
use crate::wire::{ErrorBody, Frame, Hello, Kind, WireError};

const ROLE: &str = "fork-server";
const MAX_EVENTS: usize = 64;
/// Peers at one time: the edge, and those that have not said who they are.
const MAX_CONNECTIONS: usize = 8;
/// Frames read from one peer before others have their turn.
const FRAMES_A_TURN: usize = 16;

/// Creates under way at one time, for each processor: a little more than can run, since each also waits.
const CREATES_A_PROCESSOR: usize = 4;

/// What an event of the epoll set is about.
const LISTENER: u64 = 0;
const CHILDREN: u64 = 1;
const FIRST_CONNECTION: u64 = 2;
const REPORTS: u64 = 1 << 32;
/// Above every report, which is known by a pid.
pub(super) const HELD: u64 = 1 << 33;

pub struct Server {
    pub(super) node: Node,
    pub(super) layers: Layers,
    pub(super) descriptors: Descriptors,
    pub(super) children: Children,
    pub(super) held: HeldSandboxes,
    pub(super) kills: Kills,
    pub(super) networks: Networks,
    /// Whom to tell when the last sandbox is gone, after which the server ends.
    pub(super) shutdown: Option<Origin>,
    pub(super) epoll: OwnedFd,
    listener: OwnedFd,
    dead_children: OwnedFd,
    connections: HashMap<u64, Connection>,
    next_connection: u64,
    /// The edge: the newest that said hello.
    edge: Option<u64>,
}

impl Server {
    pub fn new(listener: OwnedFd, node: Node, layers: Layers) -> Result<Self, KernelError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).on("make", "an epoll set")?;
        let dead_children = sys::sigchld_descriptor().on("watch", "children")?;
        for (descriptor, about) in [(&listener, LISTENER), (&dead_children, CHILDREN)] {
            epoll::add(&epoll, descriptor, epoll::EventData::new_u64(about), epoll::EventFlags::IN)
                .on("watch", "a descriptor")?;
        }
        Ok(Self {
            node,
            layers,
            descriptors: Descriptors::default(),
            children: Children::new(side_by_side()),
            held: HeldSandboxes::default(),
            kills: Kills::default(),
            networks: Networks::new(Instant::now())?,
            shutdown: None,
            epoll,
            listener,
            dead_children,
            connections: HashMap::new(),
            next_connection: FIRST_CONNECTION,
            edge: None,
        })
    }

    pub fn serve(mut self) -> Result<(), KernelError> {
        let mut events = Vec::with_capacity(MAX_EVENTS);
        loop {
            let timeout = self.time_left(Instant::now());
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).on("wait for", "events"),
            }
            for event in &events {
                let (about, flags) = (event.data.u64(), event.flags);
                match about {
                    LISTENER => self.accept()?,
                    CHILDREN => self.bury()?,
                    _ if about >= HELD => self.held_ended(about - HELD),
                    _ if about >= REPORTS => self.hear_report(about),
                    _ => self.attend(about, flags),
                }
            }
            let now = Instant::now();
            self.end_overdue(now)?;
            if !self.children.are_being_made() {
                self.networks.refill(now)?;
            }
            if self.is_over() {
                return Ok(());
            }
        }
    }

    /// Whether everything has ended that was asked to end, and the asker knows.
    fn is_over(&self) -> bool {
        self.shutdown.is_some() && self.is_empty() && !self.connections.values().any(Connection::has_waiting)
    }

    /// Whether no sandbox is left.
    pub(super) fn is_empty(&self) -> bool {
        self.children.is_empty() && self.held.count() == 0
    }

    fn time_left(&mut self, now: Instant) -> Option<Timespec> {
        let strangers = self.connections.values().filter(|connection| !connection.greeted);
        let hello = strangers.map(|connection| connection.hello_by).min();
        let network = if self.children.are_being_made() { None } else { self.networks.next_wake() };
        let next =
            [hello, self.children.next_deadline(), self.kills.next_deadline(), network].into_iter().flatten().min()?;
        // a little late is as good; a little early would spin
        let left = next.saturating_duration_since(now) + Duration::from_millis(1);
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
    }

    fn end_overdue(&mut self, now: Instant) -> Result<(), KernelError> {
        let silent = |connection: &Connection| !connection.greeted && connection.hello_by <= now;
        let late: Vec<u64> = self.connections.iter().filter(|(_, c)| silent(c)).map(|(number, _)| *number).collect();
        late.into_iter().for_each(|number| self.close(number, "it has not said hello in time"));
        while let Some((origin, id)) = self.kills.overdue(now) {
            self.answer(origin, Err(too_late(&id)));
        }
        self.kill_overdue(now)
    }

    fn accept(&mut self) -> Result<(), KernelError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match accept_with(&self.listener, flags) {
            Ok(socket) => socket,
            // whatever was wrong with this peer or this moment, the next may be right
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(()),
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
                note(format_args!("cannot accept a connection: {errno}"));
                std::thread::sleep(Duration::from_millis(10));
                return Ok(());
            }
            Err(errno) => return Err(errno).on("accept on", "the socket"),
        };
        match self.admit(socket) {
            Ok(()) => Ok(()),
            Err(reason) => {
                note(format_args!("cannot talk to a peer: {reason}"));
                Ok(())
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) -> Result<(), String> {
        let peer = sockopt::socket_peercred(&socket).map_err(|errno| errno.to_string())?;
        if !peer.uid.is_root() {
            return Err(format!("its uid is {}, and only root may", peer.uid.as_raw()));
        }
        if self.connections.len() >= MAX_CONNECTIONS {
            return Err(format!("there are {MAX_CONNECTIONS} already"));
        }
        let number = self.next_connection;
        self.next_connection += 1;
        let data = epoll::EventData::new_u64(number);
        let mut connection = Connection::new(socket, Instant::now()).map_err(|error| error.to_string())?;
        epoll::add(&self.epoll, connection.channel(), data, epoll::EventFlags::IN)
            .map_err(|errno| errno.to_string())?;
        self.connections.insert(number, connection);
        Ok(())
    }

    fn attend(&mut self, number: u64, flags: epoll::EventFlags) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if flags.contains(epoll::EventFlags::OUT) {
            let flushed = connection.flush();
            self.settle(number, flushed);
        }
        for _ in 0..FRAMES_A_TURN {
            let Some(connection) = self.connections.get_mut(&number) else { return };
            match connection.channel().receive() {
                Ok(Received::Frame(frame, descriptors)) => self.take(number, &frame, descriptors),
                Ok(Received::Empty) => return,
                Ok(Received::Closed) => return self.close(number, ""),
                Err(error) => return self.close(number, &error.to_string()),
            }
        }
    }

    fn take(&mut self, number: u64, frame: &Frame, descriptors: Vec<OwnedFd>) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if !connection.greeted {
            match connection.greet(frame) {
                Ok(()) => self.welcome(number),
                Err(error) => self.close(number, &error.to_string()),
            }
            return;
        }
        match frame.kind {
            Kind::Call => self.call(Origin { connection: number, call: frame.call }, frame, descriptors),
            Kind::Hello => self.close(number, "it has said hello twice"),
            // nothing here streams, can be cancelled, or is kept for an acknowledgement
            _ => {}
        }
    }

    /// A new edge: what it replaces may hang and must not speak again.
    fn welcome(&mut self, number: u64) {
        if let Some(old) = self.edge.replace(number) {
            self.close(old, "a newer edge has come");
        }
        self.send(number, Frame::message(Kind::Hello, 0, &Hello::ours(ROLE)), vec![]);
    }

    /// Answer a call; nothing happens when its connection is gone.
    pub(super) fn answer(&mut self, origin: Origin, result: Result<(Frame, Vec<OwnedFd>), ErrorBody>) {
        let (frame, descriptors) = match result {
            Ok((frame, descriptors)) => (Ok(frame), descriptors),
            Err(body) => (Frame::message(Kind::Error, origin.call, &body), vec![]),
        };
        self.send(origin.connection, frame, descriptors);
    }

    /// Tell the edge, if there is one.
    pub(super) fn tell_edge(&mut self, frame: Result<Frame, WireError>) {
        if let Some(number) = self.edge {
            self.send(number, frame, vec![]);
        }
    }

    fn send(&mut self, number: u64, frame: Result<Frame, WireError>, descriptors: Vec<OwnedFd>) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let sent = frame.map_err(ChannelError::from).and_then(|frame| connection.send(&frame, descriptors));
        self.settle(number, sent);
    }

    /// After sending: watch for room as long as something waits, and part from a peer that cannot be sent to.
    fn settle(&mut self, number: u64, sent: Result<(), ChannelError>) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, connection.has_waiting());
        let watched = epoll::modify(&self.epoll, connection.channel(), epoll::EventData::new_u64(number), flags);
        match (sent, watched) {
            (Ok(()), Ok(())) => {}
            (Err(error), _) => self.close(number, &error.to_string()),
            (_, Err(errno)) => self.close(number, &errno.to_string()),
        }
    }

    fn close(&mut self, number: u64, reason: &str) {
        let Some(mut connection) = self.connections.remove(&number) else { return };
        unwatch(&self.epoll, connection.channel());
        if self.edge == Some(number) {
            self.edge = None;
        }
        if !reason.is_empty() {
            note(format_args!("a connection is closed: {reason}"));
        }
    }

    /// Watch the report of a child.
    pub(super) fn watch_report(&self, pid: Pid, report: &OwnedFd) -> Result<(), Errno> {
        let about = REPORTS | pid.as_raw_nonzero().get() as u64;
        epoll::add(&self.epoll, report, epoll::EventData::new_u64(about), epoll::EventFlags::IN)
    }

    fn hear_report(&mut self, about: u64) {
        if let Some(pid) = Pid::from_raw((about - REPORTS) as i32) {
            self.child_reported(pid);
        }
    }

    fn bury(&mut self) -> Result<(), KernelError> {
        let mut signals = [0u8; 512];
        match rustix::io::read(&self.dead_children, &mut signals) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno).on("read", "signals of children"),
        }
        while let Some((sandbox, status)) = self.children.reap()? {
            self.child_died(sandbox, status);
        }
        Ok(())
    }
}

/// Take a descriptor out of the set, before it is closed.
pub(super) fn unwatch(epoll: &OwnedFd, descriptor: impl AsFd) {
    // only a descriptor that was never added is refused, and that is as good as removed
    let _ = epoll::delete(epoll, descriptor);
}

fn side_by_side() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from) * CREATES_A_PROCESSOR
}
