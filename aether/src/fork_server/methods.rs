//! The methods of the wire between edge and fork server, each from its arguments to its answer.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::children::{self, Sandbox};
use super::connection::Origin;
use super::layers::LayerError;
use super::server::Server;
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
    fn of(sandbox: &'a Sandbox) -> Self {
        Self { id: &sandbox.id, pid: sandbox.pid.as_raw_nonzero().get(), start_time: sandbox.start_time }
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
        let method = frame.method().map_err(|error| invalid("a call", &error.0))?;
        if self.shutdown.is_some() {
            return Err(ErrorBody::new("unavailable", format!("cannot do {method}: the fork server is shutting down")));
        }
        match method.as_str() {
            "layer.hold" => self.hold_layer(origin, &args::<Key>(frame)?.key, descriptors).map(Some),
            "layer.drop" => self.drop_layer(origin, &args::<Key>(frame)?.key).map(Some),
            "layer.list" => self.list_layers(origin, &args::<After>(frame)?.after).map(Some),
            "sandbox.create" => self.create(origin, args(frame)?).map(|()| None),
            "sandbox.list" => self.list_sandboxes(origin, &args::<After>(frame)?.after).map(Some),
            "sandbox.adopt" => self.adopt(origin, &args::<Id>(frame)?.id).map(Some),
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

    fn list_sandboxes(&self, origin: Origin, after: &str) -> Answer {
        let mut rest = self.children.made().filter(|sandbox| sandbox.id.as_str() > after);
        let sandboxes = rest.by_ref().take(PAGE).map(SandboxEntry::of).collect();
        let list = SandboxList { sandboxes, more: rest.next().is_some() };
        result(origin, &list, vec![])
    }

    fn adopt(&mut self, origin: Origin, id: &str) -> Answer {
        let sandbox = self.children.by_id(id).filter(|sandbox| sandbox.making.is_none()).ok_or_else(|| unknown(id))?;
        // not reaped, so the pid is still its own
        let pidfd = rustix::process::pidfd_open(sandbox.pid, rustix::process::PidfdFlags::empty())
            .on("open", format!("a pidfd of {id}"))
            .map_err(|error| resources(&error))?;
        made(origin, sandbox, pidfd)
    }

    fn kill(&mut self, origin: Origin, id: &str) -> Later {
        if let Some(create) = self.children.withdraw(id) {
            self.give_up(create);
            return result(origin, &Empty {}, vec![]).map(Some);
        }
        let sandbox = self.children.by_id(id).ok_or_else(|| unknown(id))?;
        sandbox.kill_origins.push(origin);
        children::kill(sandbox.pid).map_err(|error| ErrorBody::new("internal", error.to_string()))?;
        Ok(None)
    }

    fn shut_down(&mut self, origin: Origin) -> Later {
        let waiting = self.children.kill_all().map_err(|error| ErrorBody::new("internal", error.to_string()))?;
        waiting.into_iter().for_each(|create| self.give_up(create));
        self.shutdown = Some(origin);
        if !self.children.is_empty() {
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
    let channel = rustix::io::fcntl_dupfd_cloexec(&sandbox.channel, 3)
        .on("duplicate", format!("the channel of {}", sandbox.id))
        .map_err(|error| resources(&error))?;
    let message = Made { pid: sandbox.pid.as_raw_nonzero().get(), start_time: sandbox.start_time };
    result(origin, &message, vec![pidfd, channel])
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
