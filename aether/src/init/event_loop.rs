//! The loop of PID 1: wait until something is ready or due, do it, answer what is over.
//!
//! What to wait for is derived from the state anew each time (a stream without credit, a full channel or a resting
//! orphan is simply not asked about), so no registration can go stale. There are at most a few hundred descriptors.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, WaitStatus};

use super::commands::Command;
use super::edge::Edge;
use super::files::FileCall;
use super::output::Output;
use super::reaper::Reaper;
use super::sessions::Session;
use super::shell::Stream;
use super::world::World;
use crate::fault;
use crate::seqpacket::{ChannelError, Received};

/// Frames taken from the edge before others get their turn.
const TURN: usize = 16;

/// Something that can become ready.
#[derive(Clone, Copy, Debug)]
enum Token {
    Edge,
    Children,
    Orphan(usize),
    Output(u64, usize),
    Input(u64),
    Terminal(u64),
    File(u64),
    ShellInput(u64),
    ShellOutput(u64, usize),
    ShellStatus(u64),
}

/// What to poll for, and what each answer means.
#[derive(Default)]
struct Wanted<'a> {
    tokens: Vec<Token>,
    polled: Vec<PollFd<'a>>,
}

impl<'a> Wanted<'a> {
    fn add(&mut self, token: Token, descriptor: BorrowedFd<'a>, flags: PollFlags) {
        self.tokens.push(token);
        self.polled.push(PollFd::from_borrowed_fd(descriptor, flags));
    }
}

impl<'a> Wanted<'a> {
    fn add_command(&mut self, call: u64, command: &'a Command, edge: &Edge) {
        for (place, output) in command.outputs().iter().enumerate() {
            if let Some(source) = output.wanted(edge) {
                self.add(Token::Output(call, place), source, PollFlags::IN);
            }
        }
        if let Some(target) = command.input().and_then(|input| input.wanted()) {
            self.add(Token::Input(call), target, PollFlags::OUT);
        }
        if let Some(report) = command.terminal_report() {
            self.add(Token::Terminal(call), report.as_fd(), PollFlags::IN);
        }
    }

    fn add_session(&mut self, id: u64, session: &'a Session, now: Instant) {
        let shell = &session.shell;
        if let Some(status) = shell.status_source() {
            self.add(Token::ShellStatus(id), status, PollFlags::IN);
        }
        for (place, stream) in shell.streams.iter().enumerate() {
            if let Some(source) = stream.wanted(now) {
                self.add(Token::ShellOutput(id, place), source, PollFlags::IN);
            }
        }
        if let Some(target) = shell.wants_write() {
            self.add(Token::ShellInput(id), target, PollFlags::OUT);
        }
    }
}

pub struct EventLoop {
    pub world: World,
    pub reaper: Reaper,
    /// By call.
    pub commands: BTreeMap<u64, Command>,
    /// By call.
    pub files: BTreeMap<u64, FileCall>,
    /// By id.
    pub sessions: BTreeMap<u64, Session>,
    /// Of the session opened last.
    pub last_session: u64,
}

impl EventLoop {
    /// Serve until the channel closes (Ok) or breaks.
    pub fn run(&mut self) -> Result<(), ChannelError> {
        self.world.edge.say_hello()?;
        fault::point("init.hello");
        loop {
            let ready = self.wait(self.world.clock.now())?;
            let mut orphans = Vec::new();
            for (token, events) in ready {
                match token {
                    Token::Edge if !self.serve_edge(events)? => return Ok(()),
                    Token::Orphan(place) => orphans.push(place),
                    Token::File(call) => self.serve_file(call, events)?,
                    other => self.serve(other)?,
                }
            }
            let now = self.world.clock.now();
            self.world.orphans.drain(&orphans, now, &mut self.world.scratch);
            self.finish_due(now)?;
        }
    }

    fn wait(&mut self, now: Instant) -> Result<Vec<(Token, PollFlags)>, Errno> {
        let timeout = self.next_wake(now).map(|wake| wake.saturating_duration_since(now));
        let timeout =
            timeout.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        let Wanted { tokens, mut polled } = self.wanted(now);
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let happened = polled.iter().map(PollFd::revents);
        Ok(tokens.into_iter().zip(happened).filter(|(_, events)| !events.is_empty()).collect())
    }

    fn wanted(&self, now: Instant) -> Wanted<'_> {
        let mut wanted = Wanted::default();
        let edge = &self.world.edge;
        let mut edge_flags = PollFlags::empty();
        edge_flags.set(PollFlags::IN, edge.has_room());
        edge_flags.set(PollFlags::OUT, edge.wants_write());
        wanted.add(Token::Edge, edge.as_fd(), edge_flags);
        wanted.add(Token::Children, self.reaper.as_fd(), PollFlags::IN);
        for (place, source) in self.world.orphans.wanted(now) {
            wanted.add(Token::Orphan(place), source, PollFlags::IN);
        }
        self.commands.iter().for_each(|(call, command)| wanted.add_command(*call, command, edge));
        for (call, file) in &self.files {
            if let Some((channel, flags)) = file.wanted(edge.has_room()) {
                wanted.add(Token::File(*call), channel, flags);
            }
        }
        self.sessions.iter().for_each(|(id, session)| wanted.add_session(*id, session, now));
        wanted
    }

    /// When something becomes due, if time passes.
    fn next_wake(&self, now: Instant) -> Option<Instant> {
        if self.world.clock.held() {
            return None;
        }
        let commands = self.commands.values().filter_map(|command| command.next_wake(now));
        let sessions = self.sessions.values().filter_map(|session| session.next_wake(now));
        let has_room = self.world.edge.has_room();
        let files = self.files.values().filter_map(|file| file.next_wake(has_room));
        commands.chain(sessions).chain(files).chain(self.world.orphans.next_wake(now)).min()
    }

    /// False when every holder of the other end is gone.
    fn serve_edge(&mut self, events: PollFlags) -> Result<bool, ChannelError> {
        if events.contains(PollFlags::OUT) {
            self.world.edge.flush()?;
        }
        if !events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return Ok(true);
        }
        for _ in 0..TURN {
            match self.world.edge.receive()? {
                // descriptors have no meaning here; they are closed
                Received::Frame(frame, _) => self.take_frame(&frame)?,
                Received::Empty => break,
                Received::Closed => return Ok(false),
            }
        }
        Ok(true)
    }

    fn serve(&mut self, token: Token) -> Result<(), ChannelError> {
        match token {
            Token::Children => self.reap()?,
            Token::Output(call, place) => {
                if self.held() >= self.world.may_hold() {
                    self.commands.entry(call).and_modify(|command| command.seal_output(place));
                }
                self.commands.get_mut(&call).map_or(Ok(()), |command| command.read_output(place, &mut self.world))?;
            }
            Token::Input(call) => {
                self.commands.get_mut(&call).map_or(Ok(()), |command| command.write_input(&mut self.world))?;
            }
            Token::Terminal(call) => {
                self.commands.entry(call).and_modify(Command::receive_terminal);
            }
            Token::ShellInput(id) | Token::ShellOutput(id, _) | Token::ShellStatus(id) => {
                self.serve_shell(token, id)?
            }
            Token::Edge | Token::Orphan(_) | Token::File(_) => {}
        }
        Ok(())
    }

    fn serve_file(&mut self, call: u64, events: PollFlags) -> Result<(), ChannelError> {
        let Some(file) = self.files.get_mut(&call) else { return Ok(()) };
        if events.contains(PollFlags::OUT) {
            file.write();
        }
        // an end without an answer shows as HUP alone
        if events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            let now = self.world.clock.now();
            file.read(&mut self.world, now)?;
        }
        Ok(())
    }

    /// Bytes of memory that all collected output takes now.
    fn held(&self) -> u64 {
        let commands = self.commands.values().flat_map(Command::outputs).map(Output::held);
        let sessions = self.sessions.values().flat_map(|session| &session.shell.streams).map(Stream::held);
        commands.chain(sessions).sum()
    }

    fn serve_shell(&mut self, token: Token, id: u64) -> Result<(), ChannelError> {
        let full = self.held() >= self.world.may_hold();
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        if full {
            session.shell.streams.iter_mut().for_each(Stream::seal);
        }
        let now = self.world.clock.now();
        match token {
            Token::ShellOutput(_, place) => session.shell.streams[place].read(&mut self.world.scratch, now),
            Token::ShellStatus(_) => session.read_status(&mut self.world, now)?,
            _ => session.shell.write(),
        }
        Ok(())
    }

    fn reap(&mut self) -> Result<(), ChannelError> {
        let now = self.world.clock.now();
        self.reaper.reap().into_iter().try_for_each(|(pid, status)| self.ended(pid, status, now))
    }

    fn ended(&mut self, pid: Pid, status: WaitStatus, now: Instant) -> Result<(), ChannelError> {
        if let Some(command) = self.commands.values_mut().find(|command| command.pid() == pid) {
            command.exited(status, now);
            return Ok(());
        }
        if let Some(file) = self.files.values_mut().find(|file| file.pid() == Some(pid)) {
            file.reaped();
            return Ok(());
        }
        let session = self.sessions.iter().find(|(_, session)| session.shell.pid == pid).map(|(id, _)| *id);
        match session.and_then(|id| self.sessions.remove(&id)) {
            Some(session) => session.exited(status, &mut self.world, now),
            // an orphan of the sandbox's
            None => Ok(()),
        }
    }

    /// Let time pass for every call, and answer those that are over.
    pub fn finish_due(&mut self, now: Instant) -> Result<(), ChannelError> {
        self.finish_files(now)?;
        let world = &self.world;
        self.sessions.values_mut().for_each(|session| session.advance(world, now));
        let over = self.commands.iter_mut().filter_map(|(call, command)| command.advance(world, now).then_some(*call));
        let over: Vec<u64> = over.collect();
        for call in over {
            if let Some(command) = self.commands.remove(&call) {
                fault::point("init.exec.ended");
                command.answer(&mut self.world, now)?;
            }
        }
        if self.commands.is_empty() && self.files.is_empty() && !self.world.edge.wants_write() {
            self.world.rest();
        }
        Ok(())
    }

    fn finish_files(&mut self, now: Instant) -> Result<(), ChannelError> {
        let mut over = Vec::new();
        for (call, file) in &mut self.files {
            if file.advance(&mut self.world, now)? {
                over.push(*call);
            }
        }
        over.iter().filter_map(|call| self.files.remove(call)).for_each(FileCall::end);
        Ok(())
    }
}
