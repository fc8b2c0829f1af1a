//! The methods of the wire between edge and fork server, each from its arguments to its answer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::children::{self, Sandbox};
use super::connection::Origin;
use super::descriptors::HoldError;
use super::held::Held;
use super::layers::LayerError;
use super::plan::check_id;
use super::server::{Server, HELD};
use crate::fault;
use crate::sys::{KernelError, On};
use crate::wire::{Detail, Empty, ErrorBody, Frame, Kind};

/// Entries of one list; the caller asks again for those after the last.
const PAGE: usize = 512;

type Answer = Result<(Frame, Vec<OwnedFd>), ErrorBody>;
/// Nothing when the answer comes later.
type Later = Result<Option<(Frame, Vec<OwnedFd>)>, ErrorBody>;

#[derive(Deserialize)]
struct Key {
    key: String,
}

#[derive(Deserialize)]
struct Id {
    id: String,
}

#[derive(Deserialize)]
struct HoldArgs {
    id: String,
    pid: i32,
    start_time: u64,
}

#[derive(Deserialize)]
struct After {
    #[serde(default)]
    after: String,
}

#[derive(Serialize)]
struct LayerEntry<'a> {
    key: &'a str,
    sandboxes: u32,
}

#[derive(Serialize)]
struct LayerList<'a> {
    layers: Vec<LayerEntry<'a>>,
    more: bool,
}

#[derive(Serialize)]
struct SandboxEntry<'a> {
    id: &'a str,
    pid: i32,
    start_time: u64,
}

impl<'a> SandboxEntry<'a> {
    fn new(id: &'a str, pid: Pid, start_time: u64) -> Self {
        Self { id, pid: pid.as_raw_nonzero().get(), start_time }
    }
}

#[derive(Serialize)]
struct SandboxList<'a> {
    sandboxes: Vec<SandboxEntry<'a>>,
    more: bool,
}

#[derive(Serialize)]
struct Made {
    pid: i32,
    start_time: u64,
}

impl Server {
    /// Carry out a call, now or later answered by exactly one RESULT or ERROR.
    pub(super) fn call(&mut self, origin: Origin, frame: &Frame, descriptors: Vec<OwnedFd>) {
        if let Some(answer) = self.dispatch(origin, frame, descriptors).transpose() {
            self.answer(origin, answer);
        }
    }

    fn dispatch(&mut self, origin: Origin, frame: &Frame, descriptors: Vec<OwnedFd>) -> Later {
        let method = frame.head().map_err(|error| invalid("a call", &error.0))?.method;
        if self.shutdown.is_some() {
            return Err(ErrorBody::new("unavailable", format!("cannot do {method}: the fork server is shutting down")));
        }
        match method.as_str() {
            "layer.hold" => self.hold_layer(origin, &args::<Key>(frame)?.key, descriptors).map(Some),
            "layer.drop" => self.drop_layer(origin, &args::<Key>(frame)?.key).map(Some),
            "layer.list" => self.list_layers(origin, &args::<After>(frame)?.after).map(Some),
            "descriptor.hold" => self.hold_descriptor(origin, &args::<Key>(frame)?.key, descriptors).map(Some),
            "descriptor.take" => self.take_descriptor(origin, &args::<Key>(frame)?.key).map(Some),
            "descriptor.drop" => self.drop_descriptor(origin, &args::<Key>(frame)?.key).map(Some),
            "sandbox.create" => self.create(origin, args(frame)?).map(|()| None),
            "sandbox.list" => self.list_sandboxes(origin, &args::<After>(frame)?.after).map(Some),
            "sandbox.adopt" => self.adopt(origin, &args::<Id>(frame)?.id).map(Some),
            "sandbox.hold" => self.hold(origin, &args(frame)?, descriptors).map(Some),
            "sandbox.kill" => self.kill(origin, &args::<Id>(frame)?.id),
            "server.shutdown" => self.shut_down(origin),
            _ => Err(ErrorBody::new("unsupported", format!("cannot do {method:?}: it is no method of a fork server"))),
        }
    }

    fn hold_layer(&mut self, origin: Origin, key: &str, descriptors: Vec<OwnedFd>) -> Answer {
        let count = descriptors.len();
        let [mount] = <[OwnedFd; 1]>::try_from(descriptors)
            .map_err(|_| invalid("layer.hold", &format!("{count} descriptors lie beside it instead of one")))?;
        self.layers.hold(key, mount).map_err(|error| layer_error("hold", error))?;
        result(origin, &Empty {}, vec![])
    }

    fn drop_layer(&mut self, origin: Origin, key: &str) -> Answer {
        self.layers.drop(key).map_err(|error| layer_error("drop", error))?;
        result(origin, &Empty {}, vec![])
    }

    fn list_layers(&self, origin: Origin, after: &str) -> Answer {
        let mut rest = self.layers.list().filter(|(key, _)| *key > after);
        let layers = rest.by_ref().take(PAGE).map(|(key, sandboxes)| LayerEntry { key, sandboxes }).collect();
        let list = LayerList { layers, more: rest.next().is_some() };
        result(origin, &list, vec![])
    }

    fn hold_descriptor(&mut self, origin: Origin, key: &str, descriptors: Vec<OwnedFd>) -> Answer {
        let count = descriptors.len();
        let [descriptor] = <[OwnedFd; 1]>::try_from(descriptors)
            .map_err(|_| invalid("descriptor.hold", &format!("{count} descriptors lie beside it instead of one")))?;
        self.descriptors.hold(key, descriptor).map_err(|error| match error {
            HoldError::BadKey => invalid("descriptor.hold", &format!("key {key:?} is empty or too long")),
            HoldError::TooMany => {
                ErrorBody::new("capacity", format!("cannot hold descriptor {key:?}: the limit is reached"))
            }
        })?;
        result(origin, &Empty {}, vec![])
    }

    fn take_descriptor(&self, origin: Origin, key: &str) -> Answer {
        let held = self.descriptors.get(key).ok_or_else(|| not_held(key))?;
        let copy = rustix::io::fcntl_dupfd_cloexec(held, 3)
            .on("duplicate", format!("descriptor {key:?}"))
            .map_err(|error| resources(&error))?;
        result(origin, &Empty {}, vec![copy])
    }

    fn drop_descriptor(&mut self, origin: Origin, key: &str) -> Answer {
        if !self.descriptors.drop(key) {
            return Err(not_held(key));
        }
        result(origin, &Empty {}, vec![])
    }

    fn list_sandboxes(&self, origin: Origin, after: &str) -> Answer {
        let own = self.children.made().filter(|sandbox| sandbox.id.as_str() > after);
        let own = own.map(|sandbox| SandboxEntry::new(&sandbox.id, sandbox.pid, sandbox.start_time));
        let held = self.held.above(after).map(|(id, held)| SandboxEntry::new(id, held.pid, held.start_time));
        // of each no more than could come into this page, and one that says that there is another
        let mut sandboxes: Vec<_> = own.take(PAGE + 1).chain(held.take(PAGE + 1)).collect();
        sandboxes.sort_unstable_by_key(|entry| entry.id);
        let more = sandboxes.len() > PAGE;
        sandboxes.truncate(PAGE);
        result(origin, &SandboxList { sandboxes, more }, vec![])
    }

    fn adopt(&mut self, origin: Origin, id: &str) -> Answer {
        fault::point("fork_server.adopt");
        if let Some(held) = self.held.get(id) {
            let pidfd = rustix::io::fcntl_dupfd_cloexec(&held.pidfd, 3)
                .on("duplicate", format!("the pidfd of {id}"))
                .map_err(|error| resources(&error))?;
            return handed_out(origin, SandboxEntry::new(id, held.pid, held.start_time), pidfd, held.channel.as_fd());
        }
        let sandbox = self.children.by_id(id).filter(|sandbox| sandbox.making.is_none()).ok_or_else(|| unknown(id))?;
        // not reaped, so the pid is still its own
        let pidfd = rustix::process::pidfd_open(sandbox.pid, rustix::process::PidfdFlags::empty())
            .on("open", format!("a pidfd of {id}"))
            .map_err(|error| resources(&error))?;
        made(origin, sandbox, pidfd)
    }

    /// Take over a sandbox that another fork server has left.
    fn hold(&mut self, origin: Origin, args: &HoldArgs, descriptors: Vec<OwnedFd>) -> Answer {
        let HoldArgs { id, pid, start_time } = args;
        let count = descriptors.len();
        let [pidfd, channel] = <[OwnedFd; 2]>::try_from(descriptors)
            .map_err(|_| invalid("sandbox.hold", &format!("{count} descriptors lie beside it instead of two")))?;
        check_id(id).map_err(|reason| invalid("sandbox.hold", &reason))?;
        self.check_new(id, "hold")?;
        let held = Held::checked(*pid, *start_time, pidfd, channel).map_err(|why| invalid("sandbox.hold", &why))?;
        self.held
            .insert(id, held, &self.epoll, HELD)
            .on("watch", format!("sandbox {id}"))
            .map_err(|error| resources(&error))?;
        fault::point("fork_server.hold");
        result(origin, &Empty {}, vec![])
    }

    fn kill(&mut self, origin: Origin, id: &str) -> Later {
        fault::point("fork_server.kill.read");
        if let Some(create) = self.children.withdraw(id) {
            self.give_up(create);
            return result(origin, &Empty {}, vec![]).map(Some);
        }
        let killed = match (self.children.by_id(id), self.held.get(id)) {
            (Some(sandbox), _) => children::kill(sandbox.pid),
            (None, Some(held)) => held.kill(),
            (None, None) => return Err(unknown(id)),
        };
        killed.map_err(|error| ErrorBody::new("internal", error.to_string()))?;
        fault::point("fork_server.kill.sent");
        self.kills.wait(id, origin, Instant::now());
        Ok(None)
    }

    fn shut_down(&mut self, origin: Origin) -> Later {
        let killed = self.held.kill_all().and_then(|()| self.children.kill_all());
        let waiting = killed.map_err(|error| ErrorBody::new("internal", error.to_string()))?;
        waiting.into_iter().for_each(|create| self.give_up(create));
        self.shutdown = Some(origin);
        if !self.is_empty() {
            return Ok(None);
        }
        result(origin, &Empty {}, vec![]).map(Some)
    }
}

fn args<T: for<'de> Deserialize<'de>>(frame: &Frame) -> Result<T, ErrorBody> {
    frame.args().map_err(|error| invalid("the arguments of a call", &error.0))
}

/// A RESULT frame, and the descriptors beside it.
pub(super) fn result<T: Serialize>(origin: Origin, message: &T, descriptors: Vec<OwnedFd>) -> Answer {
    let frame = Frame::message(Kind::Result, origin.call, message);
    frame.map(|frame| (frame, descriptors)).map_err(|error| ErrorBody::new("internal", error.0))
}

/// The answer of `sandbox.create` and `sandbox.adopt`.
pub(super) fn made(origin: Origin, sandbox: &Sandbox, pidfd: OwnedFd) -> Answer {
    let entry = SandboxEntry::new(&sandbox.id, sandbox.pid, sandbox.start_time);
    handed_out(origin, entry, pidfd, sandbox.channel.as_fd())
}

fn handed_out(origin: Origin, entry: SandboxEntry<'_>, pidfd: OwnedFd, channel: BorrowedFd<'_>) -> Answer {
    let channel = rustix::io::fcntl_dupfd_cloexec(channel, 3)
        .on("duplicate", format!("the channel of {}", entry.id))
        .map_err(|error| resources(&error))?;
    result(origin, &Made { pid: entry.pid, start_time: entry.start_time }, vec![pidfd, channel])
}

pub(super) fn invalid(what: &str, reason: &str) -> ErrorBody {
    ErrorBody::new("invalid_argument", format!("cannot use {what}: {reason}"))
}

/// This machine has no more of something at the moment.
pub(super) fn resources(error: &KernelError) -> ErrorBody {
    ErrorBody::new("capacity", error.to_string()).with("errno", error.errno.raw_os_error())
}

fn unknown(id: &str) -> ErrorBody {
    ErrorBody::new("sandbox_not_found", format!("cannot find sandbox {id:?}: it is not running here"))
}

fn not_held(key: &str) -> ErrorBody {
    ErrorBody::new("not_found", format!("cannot find descriptor {key:?}: it is not held"))
}

fn layer_error(verb: &str, error: LayerError) -> ErrorBody {
    match error {
        LayerError::BadKey(key) => invalid("layer.hold", &format!("key {key:?} is empty or too long")),
        LayerError::NotADirectory(key) => invalid("layer.hold", &format!("layer {key} is no directory")),
        LayerError::TooMany => ErrorBody::new("capacity", format!("cannot {verb} another layer: the limit is reached")),
        LayerError::Unknown(key) => ErrorBody::new("not_found", format!("cannot {verb} layer {key:?}: it is not held")),
        LayerError::InUse { key, sandboxes } => {
            let message = format!("cannot {verb} layer {key:?}: {sandboxes} sandboxes stand on it; stop them first");
            ErrorBody::new("conflict", message).with("sandboxes", Detail::Int(sandboxes.into()))
        }
        LayerError::Kernel(error) => resources(&error),
    }
}
