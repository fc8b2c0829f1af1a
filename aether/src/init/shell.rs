//! The shell behind a session: a process that reads its commands from a pipe.
//!
//! A command is wrapped so that nothing in it can end the line it stands in: it is one quoted word, given to `eval`
//! through `command`, which keeps a syntax error from ending the shell. It runs with /dev/null on stdin and without
//! the status descriptor; after it the shell itself writes "TOKEN STATUS" to that descriptor. All of it is the
//! sandbox's own shell, so what it says is not to be trusted; it can only lie about itself.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Pid;

use super::child::{self, Failure, Luggage, Program, Stage, EXTRA};
use super::leaf::Scope;
use super::outcome::not_started;
use super::output::{Collector, OutputInfo, OutputLimit};
use super::world::World;
use crate::wire::{ErrorBody, Frame, STDERR, STDOUT};

/// A status line is much shorter; what is longer is none.
const LIMIT_STATUS: usize = 256;
/// Between two looks at what a background job prints while no command runs.
const TICK: Duration = Duration::from_millis(50);

/// What a command has printed.
pub struct Collected {
    pub stdout: OutputInfo,
    pub stderr: OutputInfo,
    pub frames: Vec<Frame>,
}

/// One of the shell's two output pipes, which outlive each command.
pub struct Stream {
    pub number: u16,
    source: Option<OwnedFd>,
    /// Of the command that runs now.
    collector: Option<Collector>,
    rest_until: Option<Instant>,
}

pub struct Shell {
    pub pid: Pid,
    pub scope: Scope,
    report: OwnedFd,
    stdin: OwnedFd,
    queue: VecDeque<u8>,
    pub streams: [Stream; 2],
    /// None once every holder has closed it; how a command ends is then seen by a timeout alone.
    status: Option<OwnedFd>,
    status_text: Vec<u8>,
}

impl Shell {
    pub fn start(world: &mut World, program: &Program, name: &str) -> Result<Self, ErrorBody> {
        let failed = |stage, errno| not_started(name, Failure { stage, errno });
        let mut scope = world.leaves.acquire().map_err(|errno| failed(Stage::Cgroup, errno))?;
        match spawn(world, &mut scope, program) {
            Ok(parts) => Ok(parts.into_shell(scope)),
            Err(error) => {
                world.leaves.release(scope);
                Err(not_started(name, Failure::new(Stage::Fork, &error)))
            }
        }
    }

    /// Have the shell run `command` and say how it ended under `token`; its output is collected from here on.
    pub fn submit(&mut self, token: u64, command: &str, limit: OutputLimit) {
        for stream in &mut self.streams {
            stream.collector = Some(Collector::new(limit));
            stream.rest_until = None;
        }
        self.queue.extend(line(token, command).as_bytes());
        self.write();
    }

    /// What to poll for, if something waits to be written.
    pub fn wants_write(&self) -> Option<BorrowedFd<'_>> {
        (!self.queue.is_empty()).then(|| self.stdin.as_fd())
    }

    pub fn status_source(&self) -> Option<BorrowedFd<'_>> {
        self.status.as_ref().map(AsFd::as_fd)
    }

    pub fn write(&mut self) {
        while !self.queue.is_empty() {
            match rustix::io::write(&self.stdin, self.queue.as_slices().0) {
                Ok(count) => drop(self.queue.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // the shell has closed its stdin; how it goes on is seen by its end or by a timeout
                Err(_) => self.queue.clear(),
            }
        }
    }

    /// The status of the command with `token`, once the shell has said it.
    pub fn read_status(&mut self, token: u64) -> Option<i32> {
        let mut buffer = [0; LIMIT_STATUS];
        let count = match rustix::io::read(self.status.as_ref()?, &mut buffer) {
            Ok(count @ 1..) => count,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            _ => {
                self.status = None;
                0
            }
        };
        self.status_text.extend_from_slice(&buffer[..count]);
        let end = self.status_text.iter().rposition(|byte| *byte == b'\n').map_or(0, |place| place + 1);
        let complete: Vec<u8> = self.status_text.drain(..end).collect();
        self.status_text.truncate(LIMIT_STATUS);
        let text = String::from_utf8_lossy(&complete);
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        let (_, code) = lines.find(|(said, _)| said.parse() == Ok(token))?;
        code.parse().ok()
    }

    /// Take everything the pipes hold now, for the command that has just ended, and hand its output out.
    pub fn collect(&mut self, call: u64, scratch: &mut [u8]) -> Collected {
        let mut infos = [OutputInfo::default(); 2];
        let mut frames = Vec::new();
        for (stream, info) in self.streams.iter_mut().zip(&mut infos) {
            stream.drain(scratch);
            if let Some(collector) = stream.collector.take() {
                *info = collector.info();
                frames.extend(collector.frames(call, stream.number));
            }
        }
        let [stdout, stderr] = infos;
        Collected { stdout, stderr, frames }
    }

    /// Why the shell did not become the program it should be, if that is so.
    pub fn failure(&self) -> Option<Failure> {
        let mut bytes = [0; child::REPORT_SIZE];
        let count = rustix::io::read(&self.report, &mut bytes).ok()?;
        Failure::from_bytes(&bytes[..count])
    }

    /// The shell has ended. Jobs it left behind go on, and may go on printing.
    pub fn give_back(self, world: &mut World, now: Instant) {
        world.leaves.release(self.scope);
        self.streams.into_iter().filter_map(|stream| stream.source).for_each(|source| world.orphans.adopt(source, now));
    }
}

impl Stream {
    fn new(number: u16, source: OwnedFd) -> Self {
        Self { number, source: Some(source), collector: None, rest_until: None }
    }

    pub fn wanted(&self, now: Instant) -> Option<BorrowedFd<'_>> {
        let awake = self.rest_until.map_or(true, |until| until <= now);
        self.source.as_ref().filter(|_| awake).map(AsFd::as_fd)
    }

    pub fn next_wake(&self, now: Instant) -> Option<Instant> {
        self.rest_until.filter(|until| *until > now)
    }

    /// Take one chunk: for the command that runs, or when none does, away.
    pub fn read(&mut self, scratch: &mut [u8], now: Instant) {
        let Some(source) = &self.source else { return };
        match rustix::io::read(source, &mut *scratch) {
            Ok(0) => self.source = None,
            Ok(count) => match &mut self.collector {
                Some(collector) => collector.push(&scratch[..count]),
                None => self.rest_until = Some(now + TICK),
            },
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.source = None,
        }
    }

    /// Bytes of PID 1's memory in what was collected.
    pub fn held(&self) -> u64 {
        self.collector.as_ref().map_or(0, Collector::held)
    }

    pub fn seal(&mut self) {
        self.collector.iter_mut().for_each(Collector::seal);
    }

    fn drain(&mut self, scratch: &mut [u8]) {
        let Some(source) = &self.source else { return };
        let mut held = rustix::io::ioctl_fionread(source).unwrap_or(0) as usize;
        while held > 0 {
            let room = held.min(scratch.len());
            let Ok(count @ 1..) = rustix::io::read(source, &mut scratch[..room]) else { break };
            held -= count;
            if let Some(collector) = &mut self.collector {
                collector.push(&scratch[..count]);
            }
        }
    }
}

struct Parts {
    pid: Pid,
    report: OwnedFd,
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    status: OwnedFd,
}

impl Parts {
    fn into_shell(self, scope: Scope) -> Shell {
        Shell {
            pid: self.pid,
            scope,
            report: self.report,
            stdin: self.stdin,
            queue: VecDeque::new(),
            streams: [Stream::new(STDOUT, self.stdout), Stream::new(STDERR, self.stderr)],
            status: Some(self.status),
            status_text: Vec::new(),
        }
    }
}

fn spawn(world: &World, scope: &mut Scope, program: &Program) -> std::io::Result<Parts> {
    let (stdout, stdout_child) = world.standard_output_pipe()?;
    let (stderr, stderr_child) = world.standard_output_pipe()?;
    let (report, report_child) = world.report_pipe()?;
    let (status, status_child) = world.output_pipe()?;
    let (stdin_child, stdin) = world.standard_input_pipe()?;
    let luggage = Luggage {
        stdin: stdin_child.as_fd(),
        stdout: stdout_child.as_fd(),
        stderr: stderr_child.as_fd(),
        report: report_child.as_fd(),
        extra: Some(status_child.as_fd()),
        leaf: world.leaves.door(scope),
    };
    let pid = child::spawn(&world.sandbox, &luggage, program, &|| Ok(()))?;
    scope.set_root(pid);
    Ok(Parts { pid, report, stdin, stdout, stderr, status })
}

fn line(token: u64, command: &str) -> String {
    let quoted = command.replace('\'', r"'\''");
    // the backslash keeps an alias of the same name from being taken instead
    format!("\\command eval '{quoted}' </dev/null {EXTRA}>&-; \\command echo \"{token} $?\" >&{EXTRA}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_one_quoted_word() {
        assert_eq!(
            line(7, "echo 'it''s' \\\n; exit"),
            "\\command eval 'echo '\\''it'\\'''\\''s'\\'' \\\n; exit' </dev/null 5>&-; \\command echo \"7 $?\" >&5\n"
        );
    }
}
