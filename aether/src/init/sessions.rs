//! Sessions: `session.open`, `session.run`, `session.close`.
//!
//! A session is a shell (`shell.rs`) that runs one command at a time; its directory, variables and jobs stay. Opening
//! is answered when the shell has run an empty command, so what does not behave like a shell is told at once. Output
//! that comes while no command runs is nobody's and is thrown away.
//!
//! A timeout or CANCEL kills what the command has started (processes of the session that were not there before it),
//! again and again, and never the shell, which so comes back with a status. When it does not within PATIENCE, or when
//! it ends by itself (`exit`, `exec`), the session is over and the answer says so.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal, WaitStatus};
use serde::{Deserialize, Serialize};

use super::commands::{check_limit, program, PATIENCE, ROUND};
use super::outcome::{invalid, Ended, ExecAnswer};
use super::output::OutputLimit;
use super::shell::{Collected, Shell};
use super::tree;
use super::world::World;
use crate::fault;
use crate::seqpacket::ChannelError;
use crate::wire::{Empty, ErrorBody};

/// How long a shell may take to start.
const LIMIT_START: Duration = Duration::from_secs(10);

#[derive(Debug, Deserialize)]
pub struct OpenArgs {
    pub shell: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    pub user: String,
}

#[derive(Debug, Deserialize)]
pub struct RunArgs {
    pub session: u64,
    pub command: String,
    pub timeout_ms: u64,
    pub limit: OutputLimit,
}

#[derive(Debug, Deserialize)]
pub struct CloseArgs {
    pub session: u64,
}

#[derive(Serialize)]
struct SessionInfo {
    session: u64,
    pid: i32,
}

/// A call on a session that has not been answered.
struct Run {
    call: u64,
    /// Whether it is the opening.
    opening: bool,
    started: Instant,
    deadline: Option<Instant>,
    /// Processes of the session that were there before, by pid and start time.
    before: Vec<(Pid, Option<u64>)>,
    killing: Option<(Ended, Instant)>,
    pids_refused_before: u64,
    oom_kills_before: u64,
}

pub struct Session {
    id: u64,
    name: String,
    pub shell: Shell,
    token: u64,
    run: Option<Run>,
}

impl Session {
    /// Start the shell of a new session; the call is answered when it has come up.
    pub fn open(world: &mut World, call: u64, id: u64, args: &OpenArgs, now: Instant) -> Result<Self, ErrorBody> {
        let program = program(&args.shell, &args.env, &args.cwd, &args.user)?;
        let name = args.shell.first().cloned().unwrap_or_default();
        let shell = Shell::start(world, &program, &name)?;
        let mut session = Self { id, name, shell, token: 0, run: None };
        session.begin(world, call, "", OutputLimit { head: 1024, tail: 1024 }, now + LIMIT_START, now);
        session.run.iter_mut().for_each(|run| run.opening = true);
        Ok(session)
    }

    pub fn run(&mut self, world: &mut World, call: u64, args: &RunArgs, now: Instant) -> Result<(), ErrorBody> {
        check_limit(args.limit)?;
        if args.command.contains('\0') {
            return Err(invalid("command", "it holds a NUL character"));
        }
        if self.run.is_some() {
            let message = format!("cannot run a command in session {}: it is running another one", self.id);
            return Err(ErrorBody::new("conflict", message).with("session", self.id as i64));
        }
        if let Some(meminfo) = &world.meminfo {
            meminfo.refresh();
        }
        let deadline = now + Duration::from_millis(args.timeout_ms);
        self.begin(world, call, &args.command, args.limit, deadline, now);
        if args.timeout_ms == 0 {
            self.run.iter_mut().for_each(|run| run.deadline = None);
        }
        Ok(())
    }

    fn begin(&mut self, world: &World, call: u64, command: &str, limit: OutputLimit, deadline: Instant, now: Instant) {
        let members = world.leaves.members(&self.shell.scope);
        let known = |pid| (pid, tree::start_time(&world.sandbox.proc, pid));
        let before = members.into_iter().filter(|pid| *pid != self.shell.pid).map(known).collect();
        self.run = Some(Run {
            call,
            opening: false,
            started: now,
            deadline: Some(deadline),
            before,
            killing: None,
            pids_refused_before: world.pids_refused(),
            oom_kills_before: world.leaves.oom_kills(&self.shell.scope),
        });
        self.token += 1;
        self.shell.submit(self.token, command, limit);
    }

    pub fn runs(&self, call: u64) -> bool {
        self.run.as_ref().is_some_and(|run| run.call == call)
    }

    /// The shell has said something on the status descriptor.
    pub fn read_status(&mut self, world: &mut World, now: Instant) -> Result<(), ChannelError> {
        let Some(status) = self.shell.read_status(self.token) else { return Ok(()) };
        let Some(run) = self.run.take() else { return Ok(()) };
        let ended = run.killing.map_or(Ended::Exited(status), |(why, _)| why);
        self.answer(run, ended, false, world, now)
    }

    /// The shell has ended and is reaped; with it the session.
    pub fn exited(mut self, status: WaitStatus, world: &mut World, now: Instant) -> Result<(), ChannelError> {
        if let Some(run) = self.run.take() {
            let ended = run.killing.map_or(Ended::of(status), |(why, _)| why);
            self.answer(run, ended, true, world, now)?;
        }
        self.shell.give_back(world, now);
        Ok(())
    }

    fn answer(
        &mut self,
        run: Run,
        ended: Ended,
        over: bool,
        world: &mut World,
        now: Instant,
    ) -> Result<(), ChannelError> {
        let Collected { stdout, stderr, frames } = self.shell.collect(run.call, &mut world.scratch);
        if run.opening {
            return match over {
                true => world.edge.error(run.call, &self.no_shell()),
                false => {
                    let pid = self.shell.pid.as_raw_nonzero().get();
                    world.edge.result(run.call, &SessionInfo { session: self.id, pid })
                }
            };
        }
        fault::point("init.session_run.ended");
        let mut answer = ExecAnswer::new(ended, now - run.started);
        (answer.stdout, answer.stderr) = (stdout, stderr);
        world.passed += stdout.total + stderr.total;
        answer.oom_kills = world.leaves.oom_kills(&self.shell.scope).saturating_sub(run.oom_kills_before);
        answer.pids_refused = world.pids_refused().saturating_sub(run.pids_refused_before);
        answer.untrusted = true;
        answer.session_ended = over;
        world.edge.answer(run.call, frames, &answer, &answer.cut())
    }

    fn no_shell(&self) -> ErrorBody {
        if let Some(failure) = self.shell.failure() {
            return super::outcome::not_started(&self.name, failure);
        }
        let message = format!("cannot open a session: {:?} ran but did not take a command as a shell does", self.name);
        ErrorBody::new("command_not_started", message).with("kind", "other").with("errno", 0).with("stage", "exec")
    }

    pub fn cancel(&mut self, now: Instant) {
        self.run.iter_mut().for_each(|run| run.kill(Ended::Canceled, now));
    }

    pub fn next_wake(&self, now: Instant) -> Option<Instant> {
        let run = self.run.as_ref().and_then(|run| run.killing.map_or(run.deadline, |_| Some(now + ROUND)));
        self.shell.streams.iter().filter_map(|stream| stream.next_wake(now)).chain(run).min()
    }

    /// Do what is due.
    pub fn advance(&mut self, world: &World, now: Instant) {
        let Some(run) = &mut self.run else { return };
        if run.deadline.is_some_and(|deadline| deadline <= now) {
            run.kill(Ended::TimedOut, now);
        }
        let Some((_, since)) = run.killing else { return };
        // an opening has nothing worth keeping, and a shell that does not come back is lost
        if run.opening || now >= since + PATIENCE {
            world.leaves.kill(&self.shell.scope);
            return;
        }
        for pid in world.leaves.members(&self.shell.scope) {
            let was_there = run.before.contains(&(pid, tree::start_time(&world.sandbox.proc, pid)));
            if pid != self.shell.pid && !was_there {
                // ESRCH: it has just ended
                let _gone = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Kill everything of the session. Its end is seen when the shell is reaped.
    pub fn close(&mut self, world: &mut World, call: u64) -> Result<(), ChannelError> {
        self.cancel(world.clock.now());
        // nobody asks again once the shell is reaped, so at once for whatever may be forking
        world.leaves.kill_group(&self.shell.scope, self.shell.pid);
        world.edge.result(call, &Empty {})
    }
}

impl Run {
    fn kill(&mut self, why: Ended, now: Instant) {
        self.deadline = None;
        self.killing.get_or_insert((why, now));
    }
}

pub fn not_found(id: u64) -> ErrorBody {
    let message = format!("cannot find session {id}: it was closed or its shell has ended");
    ErrorBody::new("session_not_found", message).with("session", id as i64)
}
