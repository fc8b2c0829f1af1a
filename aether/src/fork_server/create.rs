//! A create from its plan to its answer, and the end of a sandbox.
//!
//! `create` clones; `child_reported` hears how the child's own work went; `child_died` follows for every child, sooner
//! or later. A failed create is answered in the last, when nothing of it is left.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::process::Pid;
use serde::Serialize;

use super::children::{self, Making, Sandbox, Waiting, CREATE_DEADLINE, MAX_SANDBOXES};
use super::connection::Origin;
use super::methods::{invalid, made, result};
use super::note;
use super::plan::Plan;
use super::server::{unwatch, Server};
use crate::container::steps::Failure;
use crate::container::{self, Materials};
use crate::fault;
use crate::sys::{self, Forked, KernelError, On};
use crate::wire::{self, Empty, ErrorBody, Frame, Kind};

/// A report is one packed map with a message that names at most a path.
const MAX_REPORT: usize = 16 * 1024;

#[derive(Serialize)]
struct Exited<'a> {
    event: &'static str,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<i32>,
}

impl Server {
    /// Take up a create; it is answered when its child has reported or died.
    pub(super) fn create(&mut self, origin: Origin, plan: Plan) -> Result<(), ErrorBody> {
        plan.check().map_err(|reason| invalid("the plan", &reason))?;
        fault::point("fork_server.create.read");
        let id = &plan.id;
        self.check_new(id, "create")?;
        if let Some(key) = self.layers.unknown(&plan.layers) {
            let message = format!("cannot create sandbox {id:?}: layer {key:?} is not held; hold it first");
            return Err(ErrorBody::new("not_found", message).with("layer", key));
        }
        // held from now on, since layers may be dropped while it waits
        self.layers.acquire(&plan.layers);
        self.children.wait(Waiting { origin, plan });
        self.start_waiting();
        Ok(())
    }

    /// Whether another sandbox can be, and have this id.
    pub(super) fn check_new(&self, id: &str, verb: &str) -> Result<(), ErrorBody> {
        if self.children.knows(id) || self.held.knows(id) {
            return Err(ErrorBody::new("already_exists", format!("cannot {verb} sandbox {id:?}: it is running")));
        }
        if self.children.count() + self.held.count() >= MAX_SANDBOXES {
            return Err(ErrorBody::new("capacity", format!("cannot {verb} a sandbox: {MAX_SANDBOXES} are running")));
        }
        Ok(())
    }

    /// Start the creates whose turn it is.
    fn start_waiting(&mut self) {
        while let Some(Waiting { origin, plan }) = self.children.next_turn() {
            let (id, layers) = (plan.id.clone(), plan.layers.clone());
            match self.start(origin, plan) {
                Ok(sandbox) => self.watch_making(sandbox),
                Err(error) => {
                    self.layers.release(&layers);
                    let cause = failure("clone", error.errno, &error.to_string());
                    self.answer(origin, Err(create_error(&id, &cause)));
                }
            }
        }
    }

    fn watch_making(&mut self, sandbox: Sandbox) {
        let pid = sandbox.pid;
        let watched = sandbox.making.as_ref().map(|making| self.watch_report(pid, &making.report));
        self.children.insert(sandbox);
        if let Some(Err(errno)) = watched {
            self.end_making(pid, failure("report", errno, "cannot watch the new process"));
        }
    }

    /// A create that never starts is answered as one that was ended.
    pub(super) fn give_up(&mut self, create: Waiting) {
        self.layers.release(&create.plan.layers);
        let cause = failure("report", Errno::CANCELED, "it was ended before its turn came");
        self.answer(create.origin, Err(create_error(&create.plan.id, &cause)));
    }

    /// Clone the child, which never comes back from here.
    fn start(&mut self, origin: Origin, plan: Plan) -> Result<Sandbox, KernelError> {
        let network = if plan.host_network { None } else { self.networks.take(Instant::now()) };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, inits) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).on("make", "a channel")?;
        let (report, reporter) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).on("make", "a pipe")?;
        // SAFETY: this process has one thread.
        match unsafe { sys::fork_into_pid_namespace() }.on("clone", "a process in a new pid namespace")? {
            Forked::Child => {
                let materials = Materials { layers: self.layers.mounts(&plan.layers), network };
                container::become_init(&plan, &self.node, &materials, inits, reporter)
            }
            Forked::Parent { pid, pidfd } => {
                fault::point("fork_server.create.cloned");
                // a child that has died already is still there to be read until it is reaped
                let start_time = children::start_time(pid).map_err(|error| {
                    self.discard(pid);
                    error
                })?;
                let deadline = Instant::now() + CREATE_DEADLINE;
                let making = Making { origin, report, pidfd, deadline, failure: None };
                Ok(Sandbox {
                    id: plan.id,
                    pid,
                    start_time,
                    channel: ours,
                    layers: plan.layers,
                    making: Some(Box::new(making)),
                })
            }
        }
    }

    /// The report of a child is there, or its end.
    pub(super) fn child_reported(&mut self, pid: Pid) {
        let Some(making) = self.children.by_pid(pid).and_then(|sandbox| sandbox.making.as_ref()) else { return };
        let mut buffer = vec![0; MAX_REPORT];
        let heard = match rustix::io::read(&making.report, &mut buffer) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(errno) => Err(failure("report", errno, "cannot hear the new process")),
            Ok(0) => Err(failure("report", Errno::PIPE, "the new process ended without a report")),
            Ok(size) => match wire::unpack::<Option<Failure>>(&buffer[..size]) {
                Ok(None) => Ok(()),
                Ok(Some(failure)) => Err(failure),
                Err(error) => Err(failure("report", Errno::PROTO, &error.0)),
            },
        };
        match heard {
            Ok(()) => self.finish_making(pid),
            Err(failure) => self.end_making(pid, failure),
        }
    }

    fn finish_making(&mut self, pid: Pid) {
        let Some((sandbox, making)) = self.children.finish(pid) else { return };
        let Making { origin, report, pidfd, .. } = making;
        let answer = made(origin, sandbox, pidfd);
        unwatch(&self.epoll, &report);
        if answer.is_err() {
            self.discard(pid);
        }
        fault::point("fork_server.create.reported");
        self.answer(origin, answer);
        fault::point("fork_server.create.answered");
        self.start_waiting();
    }

    /// End a child that will never be a sandbox, or one that its edge was not told of.
    fn discard(&self, pid: Pid) {
        if let Err(error) = children::kill(pid) {
            note(format_args!("{error}"));
        }
    }

    /// Remember why a create fails, and see to it that its process ends; the answer follows then.
    fn end_making(&mut self, pid: Pid, failure: Failure) {
        let Some(making) = self.children.by_pid(pid).and_then(|sandbox| sandbox.making.as_mut()) else { return };
        // the first reason is the cause of those that follow
        making.failure.get_or_insert(failure);
        unwatch(&self.epoll, &making.report);
        self.discard(pid);
    }

    pub(super) fn kill_overdue(&mut self, now: Instant) -> Result<(), KernelError> {
        while let Some(sandbox) = self.children.overdue(now) {
            let message = format!("cannot make the sandbox in {} s", CREATE_DEADLINE.as_secs());
            let pid = sandbox.pid;
            self.end_making(pid, failure("deadline", Errno::TIMEDOUT, &message));
        }
        Ok(())
    }

    /// A reaped child: answer whoever waits for it, and tell the edge of a sandbox that it knew. By the time anyone
    /// hears of it, its descriptors are closed here too.
    pub(super) fn child_died(&mut self, sandbox: Sandbox, status: i32) {
        let Sandbox { id, channel, layers, making, .. } = sandbox;
        drop(channel);
        self.layers.release(&layers);
        match making {
            Some(making) => {
                let origin = making.origin;
                let cause = self.cause_of_death(*making, status);
                self.answer(origin, Err(create_error(&id, &cause)));
            }
            None => self.tell_end(&id, Some(status)),
        }
        self.answer_end(&id);
        self.start_waiting();
    }

    /// The pidfd of a held sandbox says that its PID 1 has ended.
    pub(super) fn held_ended(&mut self, number: u64) {
        let Some((id, held)) = self.held.remove(number) else { return };
        unwatch(&self.epoll, &held.pidfd);
        drop(held);
        self.tell_end(&id, None);
        self.answer_end(&id);
    }

    fn tell_end(&mut self, id: &str, status: Option<i32>) {
        self.tell_edge(Frame::message(Kind::Event, 0, &Exited { event: "exited", id, status }));
    }

    /// Answer whoever waits for the end of this sandbox, or of all.
    fn answer_end(&mut self, id: &str) {
        for origin in self.kills.ended(id) {
            fault::point("fork_server.kill.ended");
            self.answer(origin, result(origin, &Empty {}, vec![]));
        }
        if let Some(origin) = self.shutdown.filter(|_| self.is_empty()) {
            self.answer(origin, result(origin, &Empty {}, vec![]));
        }
    }

    fn cause_of_death(&self, making: Making, status: i32) -> Failure {
        unwatch(&self.epoll, &making.report);
        let unsaid = || failure("report", Errno::PIPE, &format!("the new process ended with status {status:#x}"));
        making.failure.or_else(|| last_words(&making.report)).unwrap_or_else(unsaid)
    }
}

/// What a child that is dead had reported before, when its death was heard of first.
fn last_words(report: &OwnedFd) -> Option<Failure> {
    let mut buffer = vec![0; MAX_REPORT];
    let size = rustix::io::read(report, &mut buffer).ok()?;
    wire::unpack::<Option<Failure>>(&buffer[..size]).ok()?
}

fn failure(stage: &str, errno: Errno, message: &str) -> Failure {
    Failure { stage: stage.into(), errno: errno.raw_os_error(), message: message.into() }
}

/// Out of something is for another node to try; anything else is this sandbox's own failure.
fn create_error(id: &str, cause: &Failure) -> ErrorBody {
    let scarce = [Errno::NOMEM, Errno::NOSPC, Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::USERS, Errno::DQUOT];
    let code = match Errno::from_raw_os_error(cause.errno) {
        errno if scarce.contains(&errno) => "capacity",
        Errno::TIMEDOUT if cause.stage == "deadline" => "deadline_exceeded",
        _ => "sandbox_failed",
    };
    ErrorBody::new(code, format!("cannot create sandbox {id:?}: {cause}"))
        .with("stage", cause.stage.as_str())
        .with("errno", cause.errno)
}
