//! What the edge may say, frame by frame.
//!
//! A call's number is never used twice: a CALL whose number runs already is dropped, and one whose answer is still
//! kept gets that answer again, so a successor of an edge that died while it was asking may simply ask again. DATA,
//! CREDIT, EVENT, CANCEL and ACK for a call that has ended cross with its answer and are dropped.

use std::time::Instant;

use rustix::process::Signal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::commands::Command;
use super::event_loop::EventLoop;
use super::files::{FileCall, Operation};
use super::input::Input;
use super::outcome::{invalid, too_many};
use super::pty::Size;
use super::sessions::{not_found, CloseArgs, OpenArgs, RunArgs, Session};
use crate::fault;
use crate::seqpacket::ChannelError;
use crate::wire::{Empty, ErrorBody, Frame, Head, Hello, Kind, WireError, STDIN};

/// Commands at once.
const LIMIT_COMMANDS: usize = 64;
const LIMIT_SESSIONS: usize = 16;
/// File operations at once, and how many of them may be watches.
const LIMIT_FILES: usize = 48;
const LIMIT_WATCHES: usize = 16;
/// Bytes of memory that all collected output may take.
const LIMIT_COLLECTED: u64 = 128 * 1024 * 1024;
/// Bytes of a call's tag.
const LIMIT_TAG: usize = 512;

#[derive(Serialize)]
struct Pong {
    commands: u64,
    sessions: u64,
}

#[derive(Serialize)]
struct Held {
    held_ms: u64,
}

/// News of a call that waits for input, to a successor of the edge that sent it.
#[derive(Serialize)]
struct Lack {
    lacks_input: bool,
}

/// News of a running command from its caller.
#[derive(Deserialize)]
#[serde(untagged)]
enum CommandEvent {
    Resize {
        rows: u16,
        cols: u16,
    },
    Signal {
        signal: i32,
        #[serde(default)]
        tree: bool,
    },
}

impl EventLoop {
    pub fn take_frame(&mut self, frame: &Frame) -> Result<(), ChannelError> {
        if !self.world.edge.greeted() && frame.kind != Kind::Hello {
            return Err(WireError("cannot take a frame before HELLO".into()).into());
        }
        if let Some(file) = self.files.get_mut(&frame.call).filter(|_| frame.kind != Kind::Call) {
            return file.take_frame(frame, self.world.clock.now());
        }
        match frame.kind {
            Kind::Hello => self.meet(&frame.read()?),
            Kind::Call => self.take_call(frame),
            Kind::Data => self.take_data(frame),
            Kind::Credit => self.take_credit(frame),
            Kind::Event => {
                self.take_event(frame);
                Ok(())
            }
            Kind::Cancel => {
                self.cancel(frame.call);
                Ok(())
            }
            Kind::Ack => {
                self.world.passed += self.world.edge.acknowledge(frame.call) as u64;
                Ok(())
            }
            Kind::Result | Kind::Error => {
                Err(WireError("cannot take an answer: the edge is never called".into()).into())
            }
        }
    }

    fn meet(&mut self, hello: &Hello) -> Result<(), ChannelError> {
        if self.world.edge.meet(hello)? {
            self.commands.values_mut().for_each(Command::reset_windows);
            self.files.values_mut().for_each(FileCall::reset_windows);
            self.tell_lacks()?;
            fault::point("init.successor");
        }
        Ok(())
    }

    /// A successor cannot know how much its predecessor has sent: it is told where some is missing.
    fn tell_lacks(&mut self) -> Result<(), ChannelError> {
        let commands = self.commands.iter().filter(|(_, command)| command.input().is_some_and(Input::lacks_end));
        let files = self.files.iter().filter(|(_, file)| file.lacks_input());
        let lacking: Vec<u64> = commands.map(|(call, _)| *call).chain(files.map(|(call, _)| *call)).collect();
        lacking.iter().try_for_each(|call| {
            let news = Frame::message(Kind::Event, *call, &Lack { lacks_input: true })?;
            self.world.edge.send(&news)
        })
    }

    fn take_call(&mut self, frame: &Frame) -> Result<(), ChannelError> {
        let call = frame.call;
        if call == 0 {
            return Err(WireError("cannot take a CALL on call 0".into()).into());
        }
        if self.world.edge.runs(call) || self.world.edge.answer_again(call)? {
            return Ok(());
        }
        let Head { method, tag } = frame.head()?;
        let tag = tag.unwrap_or_default();
        let fits = tag.len() <= LIMIT_TAG;
        self.world.edge.begin(call, if fits { tag } else { String::new() });
        let opened = match fits {
            true => self.open(frame, &method),
            false => Err(invalid("tag", &format!("it has more than {LIMIT_TAG} bytes")).into()),
        };
        match opened {
            Ok(()) => Ok(()),
            Err(Refused::Answer(error)) => self.world.edge.error(call, &error),
            Err(Refused::Channel(error)) => Err(error),
        }
    }

    fn open(&mut self, frame: &Frame, method: &str) -> Result<(), Refused> {
        let now = self.world.clock.now();
        match method {
            "exec" => {
                let args = args(frame)?;
                self.check_bounds()?;
                fault::point("init.exec.read");
                let command = Command::start(&mut self.world, frame.call, args, now)?;
                fault::point("init.exec.forked");
                self.commands.insert(frame.call, command);
                Ok(())
            }
            "session.open" => {
                let args: OpenArgs = args(frame)?;
                if self.sessions.len() >= LIMIT_SESSIONS {
                    return Err(too_many("sessions", LIMIT_SESSIONS).into());
                }
                self.last_session += 1;
                let id = self.last_session;
                let session = Session::open(&mut self.world, frame.call, id, &args, now)?;
                self.sessions.insert(id, session);
                Ok(())
            }
            "session.run" => {
                let args: RunArgs = args(frame)?;
                let session = self.sessions.get_mut(&args.session).ok_or_else(|| not_found(args.session))?;
                fault::point("init.session_run.read");
                session.run(&mut self.world, frame.call, &args, now)?;
                fault::point("init.session_run.submitted");
                Ok(())
            }
            "session.close" => {
                let args: CloseArgs = args(frame)?;
                let session = self.sessions.get_mut(&args.session).ok_or_else(|| not_found(args.session))?;
                Ok(session.close(&mut self.world, frame.call)?)
            }
            "ping" => {
                let (commands, sessions) = (self.commands.len() as u64, self.sessions.len() as u64);
                let pong = Pong { commands, sessions };
                Ok(self.world.edge.result(frame.call, &pong)?)
            }
            "hold_timers" => Ok(self.hold_timers(frame.call)?),
            "release_timers" => Ok(self.release_timers(frame.call)?),
            _ => match Operation::read(method, frame)? {
                Some(operation) => Ok(self.open_file(frame, &operation, now)?),
                None => {
                    Err(ErrorBody::new("unsupported", format!("cannot do {method:?}: there is no such method")).into())
                }
            },
        }
    }

    /// What is due by now is still done; from the answer on nothing becomes due.
    fn hold_timers(&mut self, call: u64) -> Result<(), ChannelError> {
        self.world.clock.hold();
        self.finish_due(self.world.clock.now())?;
        fault::point("init.hold_timers");
        self.world.edge.result(call, &Empty {})
    }

    fn release_timers(&mut self, call: u64) -> Result<(), ChannelError> {
        let held_ms = self.world.clock.release().as_millis() as u64;
        fault::point("init.release_timers");
        self.world.edge.result(call, &Held { held_ms })
    }

    fn open_file(&mut self, frame: &Frame, operation: &Operation, now: Instant) -> Result<(), ErrorBody> {
        let place = args(frame)?;
        if self.files.len() >= LIMIT_FILES {
            return Err(too_many("file operations", LIMIT_FILES));
        }
        let file = FileCall::start(&self.world, frame.call, place, operation, now)?;
        if file.endless() && self.files.values().filter(|other| other.endless()).count() >= LIMIT_WATCHES {
            file.end();
            return Err(too_many("watches", LIMIT_WATCHES));
        }
        self.files.insert(frame.call, file);
        Ok(())
    }

    fn check_bounds(&self) -> Result<(), ErrorBody> {
        if self.commands.len() >= LIMIT_COMMANDS {
            return Err(too_many("commands", LIMIT_COMMANDS));
        }
        let reserved: u64 = self.commands.values().map(|command| command.reserved).sum();
        if reserved >= LIMIT_COLLECTED {
            return Err(too_many("bytes of collected output", LIMIT_COLLECTED as usize));
        }
        Ok(())
    }

    fn take_data(&mut self, frame: &Frame) -> Result<(), ChannelError> {
        match self.commands.get_mut(&frame.call) {
            Some(command) if frame.stream == STDIN => command.take_data(frame, &mut self.world),
            _ => Ok(()),
        }
    }

    fn take_credit(&mut self, frame: &Frame) -> Result<(), ChannelError> {
        let amount = frame.credit_amount()?;
        if let Some(command) = self.commands.get_mut(&frame.call) {
            command.grant(frame.stream, amount);
        }
        Ok(())
    }

    /// An EVENT has no answer, and its words are the client's, passed on as they are: those that mean nothing have no
    /// effect.
    fn take_event(&mut self, frame: &Frame) {
        let Some(command) = self.commands.get_mut(&frame.call) else { return };
        match frame.read() {
            Ok(CommandEvent::Resize { rows, cols }) => command.resize(Size { rows, cols }),
            Ok(CommandEvent::Signal { signal, tree }) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    command.signal(signal, tree, &self.world);
                }
            }
            Err(_) => {}
        }
    }

    fn cancel(&mut self, call: u64) {
        let now = self.world.clock.now();
        if let Some(command) = self.commands.get_mut(&call) {
            command.cancel(&self.world, now);
        }
        if let Some(session) = self.sessions.values_mut().find(|session| session.runs(call)) {
            session.cancel(now);
        }
    }
}

/// Why a call was not opened.
pub enum Refused {
    Answer(ErrorBody),
    Channel(ChannelError),
}

impl From<ErrorBody> for Refused {
    fn from(error: ErrorBody) -> Self {
        Self::Answer(error)
    }
}

impl From<ChannelError> for Refused {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

/// The args of a call; what cannot be read is the caller's mistake, not a broken channel.
pub fn args<T: DeserializeOwned>(frame: &Frame) -> Result<T, ErrorBody> {
    frame.args().map_err(|error| invalid("args", &error.0))
}
