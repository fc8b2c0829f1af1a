//! One-shot commands: `exec`.
//!
//! A command is Running until its own process has ended (then it is Ending: what its pipes hold belongs to it and is
//! passed on, under credit if it streams) or until a timeout or CANCEL (then it is Killing: SIGKILL to all of its
//! processes, again and again until none is left or PATIENCE is over, and then Ending). Over, it is answered.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{kill_process, kill_process_group, Pid, Signal, WaitStatus};
use serde::Deserialize;

use super::child::{self, Failure, Luggage, Program, Stage};
use super::input::Input;
use super::leaf::Scope;
use super::outcome::{invalid, not_started, Ended, ExecAnswer};
use super::output::{Collector, Output, OutputLimit, Sink};
use super::pty::{self, Said, Size};
use super::world::World;
use crate::seqpacket::ChannelError;
use crate::wire::{ErrorBody, Frame, STDERR, STDOUT};

/// How long processes that were killed may take to be gone before the answer is given without them.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Between two rounds of killing.
pub const ROUND: Duration = Duration::from_millis(5);
/// Bytes that may be kept of one output stream.
const LIMIT_KEPT: u64 = 8 * 1024 * 1024;

#[derive(Debug, Deserialize)]
pub struct ExecArgs {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    pub user: String,
    pub timeout_ms: u64,
    pub stdin: bool,
    pub stream: bool,
    pub limit: OutputLimit,
    pub pty: bool,
    pub rows: u16,
    pub cols: u16,
}

enum State {
    Running,
    Killing { why: Ended, since: Instant, reaped: bool },
    Ending { ended: Ended, at: Instant, killed: bool },
}

pub struct Command {
    call: u64,
    pid: Pid,
    name: String,
    scope: Scope,
    started: Instant,
    deadline: Option<Instant>,
    report: OwnedFd,
    /// A child on a terminal has not become the program yet.
    awaits_terminal: bool,
    failure: Option<Failure>,
    terminal: Option<OwnedFd>,
    input: Option<Input>,
    outputs: Vec<Output>,
    pids_refused_before: u64,
    state: State,
    /// Bytes of memory its collected output may take.
    pub reserved: u64,
}

impl Command {
    pub fn start(world: &mut World, call: u64, args: ExecArgs, now: Instant) -> Result<Self, ErrorBody> {
        check_limit(args.limit)?;
        let program = program(&args.argv, &args.env, &args.cwd, &args.user)?;
        let name = args.argv.first().cloned().unwrap_or_default();
        let fork_failed = |error: std::io::Error| not_started(&name, Failure::new(Stage::Fork, &error));
        if let Some(meminfo) = &world.meminfo {
            meminfo.refresh();
        }
        let mut scope =
            world.leaves.acquire().map_err(|errno| not_started(&name, Failure { stage: Stage::Cgroup, errno }))?;
        let spawned = if args.pty {
            spawn_on_terminal(world, &scope, &program, Size { rows: args.rows, cols: args.cols })
        } else {
            spawn_on_pipes(world, &scope, &program, &args)
        };
        let spawned = match spawned {
            Ok(spawned) => spawned,
            Err(error) => {
                world.leaves.release(scope);
                return Err(fork_failed(error));
            }
        };
        scope.set_root(spawned.pid);
        let collects = !args.stream && !args.pty;
        Ok(Self {
            call,
            pid: spawned.pid,
            name,
            scope,
            started: now,
            deadline: (args.timeout_ms > 0).then(|| now + Duration::from_millis(args.timeout_ms)),
            report: spawned.report,
            awaits_terminal: args.pty,
            failure: None,
            terminal: None,
            input: spawned.input,
            outputs: spawned.outputs,
            pids_refused_before: world.pids_refused(),
            state: State::Running,
            reserved: if collects { 2 * (args.limit.head + args.limit.tail) } else { 0 },
        })
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    pub fn input(&self) -> Option<&Input> {
        self.input.as_ref()
    }

    /// What to poll for until the terminal's master has come.
    pub fn terminal_report(&self) -> Option<&OwnedFd> {
        Some(&self.report).filter(|_| self.awaits_terminal)
    }

    /// The sandbox has no memory to spare for more of what is collected.
    pub fn seal_output(&mut self, place: usize) {
        self.outputs.get_mut(place).into_iter().for_each(Output::seal);
    }

    pub fn read_output(&mut self, place: usize, world: &mut World) -> Result<(), ChannelError> {
        let World { edge, scratch, .. } = world;
        self.outputs.get_mut(place).map_or(Ok(()), |output| output.read(self.call, edge, scratch))
    }

    pub fn write_input(&mut self, world: &mut World) -> Result<(), ChannelError> {
        self.input.as_mut().map_or(Ok(()), |input| input.write(self.call, &mut world.edge))
    }

    pub fn take_data(&mut self, frame: &Frame, world: &mut World) -> Result<(), ChannelError> {
        self.input.as_mut().map_or(Ok(()), |input| input.push(self.call, frame, &mut world.edge))
    }

    pub fn grant(&mut self, stream: u16, amount: u32) {
        self.outputs.iter_mut().filter(|output| output.stream == stream).for_each(|output| output.grant(amount));
    }

    pub fn reset_windows(&mut self) {
        self.outputs.iter_mut().for_each(Output::reset_window);
        self.input.iter_mut().for_each(Input::reset_window);
    }

    /// The child's report socket has something: the terminal's master, or why there is none.
    pub fn receive_terminal(&mut self) {
        while self.awaits_terminal {
            match pty::listen(&self.report) {
                Said::Master(master) => {
                    // without its master the terminal hangs up, which ends what runs on it
                    let attached = self.attach(master);
                    self.failure = attached.err().map(|error| Failure::new(Stage::Fork, &error));
                }
                Said::Failed(failure) => self.failure = Some(failure),
                Said::Gone => self.awaits_terminal = false,
                Said::Nothing => break,
            }
        }
    }

    fn attach(&mut self, master: OwnedFd) -> std::io::Result<()> {
        rustix::io::ioctl_fionbio(&master, true)?;
        let (source, target) = (master.try_clone()?, master.try_clone()?);
        self.outputs.push(Output::new(source, STDOUT, Sink::stream()));
        if let Some(input) = &mut self.input {
            input.attach(target);
        }
        self.terminal = Some(master);
        Ok(())
    }

    pub fn resize(&self, size: Size) {
        if let Some(terminal) = &self.terminal {
            // a terminal whose last user is gone needs no size
            let _gone = pty::resize(terminal, size);
        }
    }

    pub fn signal(&self, signal: Signal, tree: bool, world: &World) {
        if !matches!(self.state, State::Running) {
            return;
        }
        let reached = match tree {
            true => world.leaves.signal(&self.scope, signal),
            false => kill_process_group(self.pid, signal).is_ok(),
        };
        if !reached {
            // it has not yet become a group or joined its leaf; what is not reaped keeps its pid
            let _just_ended = kill_process(self.pid, signal);
        }
    }

    /// The caller no longer wants the command, or its reader has given up on what is left.
    pub fn cancel(&mut self, world: &World, now: Instant) {
        match self.state {
            State::Running => self.kill(Ended::Canceled, world, now),
            State::Killing { .. } => {}
            State::Ending { .. } => self.outputs.iter_mut().for_each(Output::abandon),
        }
    }

    fn kill(&mut self, why: Ended, world: &World, now: Instant) {
        self.state = State::Killing { why, since: now, reaped: false };
        world.leaves.kill_group(&self.scope, self.pid);
    }

    /// The command's own process has ended and is reaped.
    pub fn exited(&mut self, status: WaitStatus, now: Instant) {
        self.receive_terminal();
        match &mut self.state {
            State::Running => self.end(Ended::of(status), false, now),
            State::Killing { reaped, .. } => *reaped = true,
            State::Ending { .. } => {}
        }
    }

    fn end(&mut self, ended: Ended, killed: bool, now: Instant) {
        self.state = State::Ending { ended, at: now, killed };
        self.outputs.iter_mut().for_each(|output| output.finish(self.terminal.is_some()));
    }

    /// When `advance` must be called again even if nothing happens.
    pub fn next_wake(&self, now: Instant) -> Option<Instant> {
        match self.state {
            State::Running => self.deadline,
            State::Killing { .. } => Some(now + ROUND),
            State::Ending { at, killed, .. } => (killed || self.terminal.is_some()).then_some(at + PATIENCE),
        }
    }

    /// Do what is due; true when nothing is left to do but to answer.
    pub fn advance(&mut self, world: &World, now: Instant) -> bool {
        if matches!(self.state, State::Running) && self.deadline.is_some_and(|deadline| deadline <= now) {
            self.kill(Ended::TimedOut, world, now);
        }
        if let State::Killing { why, since, reaped } = self.state {
            let gone = reaped && world.leaves.is_empty(&self.scope);
            if gone || now >= since + PATIENCE {
                self.end(why, true, now);
            } else {
                world.leaves.kill(&self.scope);
            }
        }
        match self.state {
            State::Ending { at, .. } => {
                self.outputs.iter().all(Output::done) || self.next_wake(now).is_some() && now >= at + PATIENCE
            }
            _ => false,
        }
    }

    /// Answer the call and give back what the command had.
    pub fn answer(mut self, world: &mut World, now: Instant) -> Result<(), ChannelError> {
        let (ended, at) = match self.state {
            State::Ending { ended, at, .. } => (ended, at),
            _ => (Ended::Canceled, now),
        };
        let mut answer = ExecAnswer::new(ended, at - self.started);
        answer.oom_kills = world.leaves.oom_kills(&self.scope);
        answer.pids_refused = world.pids_refused().saturating_sub(self.pids_refused_before);
        let sent = match (self.failure.or_else(|| read_failure(&self.report)), ended) {
            (Some(failure), Ended::Exited(_) | Ended::Signaled(_)) => {
                world.edge.error(self.call, &not_started(&self.name, failure))
            }
            _ => {
                let frames = self.hand_out(&mut answer, world, now);
                world.edge.answer(self.call, frames, &answer, &answer.cut())
            }
        };
        // last: what this takes nobody waits for
        world.leaves.release(self.scope);
        sent
    }

    /// What was printed, told in `answer`. A pipe that a process in the background holds goes on being read.
    fn hand_out(&mut self, answer: &mut ExecAnswer, world: &mut World, now: Instant) -> Vec<Frame> {
        let mut frames = Vec::new();
        for mut output in self.outputs.drain(..) {
            if let Some(source) = output.take_source().filter(|_| self.terminal.is_none()) {
                world.orphans.adopt(source, now);
            }
            let info = if output.stream == STDERR { &mut answer.stderr } else { &mut answer.stdout };
            *info = output.info();
            world.passed += info.total;
            frames.extend(output.into_frames(self.call));
        }
        frames
    }
}

/// What a spawn has made.
struct Spawned {
    pid: Pid,
    report: OwnedFd,
    input: Option<Input>,
    outputs: Vec<Output>,
}

fn spawn_on_pipes(world: &World, scope: &Scope, program: &Program, args: &ExecArgs) -> std::io::Result<Spawned> {
    let (stdout, stdout_child) = world.standard_output_pipe()?;
    let (stderr, stderr_child) = world.standard_output_pipe()?;
    let (report, report_child) = world.report_pipe()?;
    let stdin = if args.stdin { Some(world.standard_input_pipe()?) } else { None };
    let luggage = Luggage {
        stdin: stdin.as_ref().map_or(world.sandbox.null.as_fd(), |(child, _)| child.as_fd()),
        stdout: stdout_child.as_fd(),
        stderr: stderr_child.as_fd(),
        report: report_child.as_fd(),
        extra: None,
        leaf: world.leaves.door(scope),
    };
    let pid = child::spawn(&world.sandbox, &luggage, program, &|| Ok(()))?;
    let sink = || match args.stream {
        true => Sink::stream(),
        false => Sink::Collect(Collector::new(args.limit)),
    };
    let outputs = vec![Output::new(stdout, STDOUT, sink()), Output::new(stderr, STDERR, sink())];
    Ok(Spawned { pid, report, input: stdin.map(|(_, ours)| Input::new(Some(ours), false)), outputs })
}

fn spawn_on_terminal(world: &World, scope: &Scope, program: &Program, size: Size) -> std::io::Result<Spawned> {
    let flags = SocketFlags::CLOEXEC;
    let (report, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let null = world.sandbox.null.as_fd();
    let luggage = Luggage {
        stdin: null,
        stdout: null,
        stderr: null,
        report: theirs.as_fd(),
        extra: Some(world.sandbox.devpts.as_fd()),
        leaf: world.leaves.door(scope),
    };
    let prepare = || pty::become_terminal(size).map_err(|errno| Failure { stage: Stage::Exec, errno });
    let pid = child::spawn(&world.sandbox, &luggage, program, &prepare)?;
    Ok(Spawned { pid, report, input: Some(Input::new(None, true)), outputs: Vec::new() })
}

/// What the child reported before it ended, if it did not become the program.
fn read_failure(report: &OwnedFd) -> Option<Failure> {
    let mut bytes = [0; child::REPORT_SIZE];
    let count = rustix::io::read(report, &mut bytes).ok()?;
    Failure::from_bytes(&bytes[..count])
}

/// The strings of a request as the kernel takes them.
pub fn program(argv: &[String], env: &BTreeMap<String, String>, cwd: &str, user: &str) -> Result<Program, ErrorBody> {
    let c_string =
        |field: &str, text: String| CString::new(text).map_err(|_| invalid(field, "it holds a NUL character"));
    if argv.is_empty() {
        return Err(invalid("argv", "it is empty; the first word is the program"));
    }
    if let Some(name) = env.keys().find(|name| name.is_empty() || name.contains('=')) {
        return Err(invalid("env", &format!("{name:?} is not a name of a variable")));
    }
    let entry = |(name, value)| c_string("env", format!("{name}={value}"));
    Ok(Program {
        argv: argv.iter().map(|word| c_string("argv", word.clone())).collect::<Result<_, _>>()?,
        env: env.iter().map(entry).collect::<Result<_, _>>()?,
        cwd: c_string("cwd", cwd.into())?,
        user: user.into(),
    })
}

pub fn check_limit(limit: OutputLimit) -> Result<(), ErrorBody> {
    match limit.head.checked_add(limit.tail) {
        Some(sum) if sum <= LIMIT_KEPT => Ok(()),
        _ => Err(invalid("limit", &format!("head and tail together may be at most {LIMIT_KEPT} bytes"))),
    }
}
