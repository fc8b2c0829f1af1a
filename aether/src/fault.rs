//! Named points at which a process can be made to die, for tests that ask what is lost then.
//!
//! `DSEC_FAULT=aether:NAME` in the environment of the fork server kills the process that passes `point(NAME)`,
//! `aether:NAME:K` at the K-th time. (`edge:NAME` is for the server, which has points of its own.) PID 1 of a sandbox
//! is a fork of the fork server: it inherits the wish and counts for itself. Without the variable a point costs one
//! load.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

const VARIABLE: &str = "DSEC_FAULT";
const WHERE: &str = "aether:";
/// What PID 1 ends with, since a signal that it sends to itself does not reach it: as a shell says SIGKILL.
const ENDED: i32 = 128 + libc::SIGKILL;

/// Every point, and when it is passed.
const POINTS: [(&str, &str); 21] = [
    ("fork_server.create.read", "a plan was read"),
    ("fork_server.create.cloned", "its PID 1 exists"),
    ("fork_server.create.reported", "PID 1 is ready, which the edge has not been told"),
    ("fork_server.create.answered", "the edge was told"),
    ("fork_server.kill.read", "a sandbox is to be killed"),
    ("fork_server.kill.sent", "it was killed"),
    ("fork_server.kill.ended", "it is dead and reaped, which nobody has been told"),
    ("fork_server.adopt", "a sandbox is to be adopted"),
    ("fork_server.hold", "a sandbox of another fork server is held, which the edge has not been told"),
    ("init.hello", "PID 1 has said its first hello"),
    ("init.successor", "the hello of an edge's successor was read"),
    ("init.hold_timers", "timers are held, which the edge has not been told"),
    ("init.release_timers", "timers go on, which the edge has not been told"),
    ("init.exec.read", "a command was read"),
    ("init.exec.forked", "its process exists"),
    ("init.exec.ended", "it has ended"),
    ("init.session_run.read", "a command of a session was read"),
    ("init.session_run.submitted", "the shell has it"),
    ("init.session_run.ended", "it has ended"),
    ("init.answer.kept", "the answer of any call is kept, and not sent"),
    ("init.answer.sent", "it was sent"),
];

/// The place of the armed point in POINTS, counted from 1; 0 is none.
static ARMED: AtomicUsize = AtomicUsize::new(0);
/// Times it may still be passed, the last of which is deadly.
static LEFT: AtomicU32 = AtomicU32::new(0);

/// Read the environment, once, at the start.
pub fn arm() -> Result<(), String> {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    if let Some((place, count)) = read(&text)? {
        LEFT.store(count, Relaxed);
        ARMED.store(place + 1, Relaxed);
    }
    Ok(())
}

/// The place of the point that `text` names, and at which passing it is deadly.
fn read(text: &str) -> Result<Option<(usize, u32)>, String> {
    let Some(wish) = text.strip_prefix(WHERE) else { return Ok(None) };
    let (name, count) = wish.split_once(':').unwrap_or((wish, "1"));
    let place = POINTS.iter().position(|(point, _)| *point == name);
    let place = place.ok_or_else(|| format!("cannot die at {name:?} ({VARIABLE}): there is no such point"))?;
    match count.parse() {
        Ok(count @ 1..) => Ok(Some((place, count))),
        _ => Err(format!("cannot die at the passing {count:?} of {name} ({VARIABLE}): it is no number from 1 on")),
    }
}

/// Die here if a test wants it.
#[inline]
pub fn point(name: &str) {
    let armed = ARMED.load(Relaxed);
    if armed != 0 && POINTS[armed - 1].0 == name && LEFT.fetch_sub(1, Relaxed) == 1 {
        die();
    }
}

fn die() -> ! {
    // nothing is left to be done about a refusal but what follows
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // SAFETY: ends the process; nothing of it is used again.
    unsafe { libc::_exit(ENDED) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;

    /// How often each name stands in a call of `point` below `directory`.
    fn count_calls(directory: &Path, found: &mut BTreeMap<String, usize>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                count_calls(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for rest in text.split(concat!("fault::", "point(\"")).skip(1) {
                *found.entry(rest.split('"').next().unwrap().into()).or_default() += 1;
            }
        }
    }

    #[test]
    fn the_table_names_the_points_that_there_are() {
        let mut found = BTreeMap::new();
        count_calls(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        let named: BTreeMap<String, usize> = POINTS.iter().map(|(name, _)| ((*name).into(), 1)).collect();
        assert_eq!(found, named);
    }

    #[test]
    fn a_wish_names_a_point_and_a_passing() {
        assert_eq!(read(""), Ok(None));
        assert_eq!(read("edge:anything:2"), Ok(None));
        assert_eq!(read("aether:fork_server.create.cloned"), Ok(Some((1, 1))));
        assert_eq!(read("aether:fork_server.create.read:30"), Ok(Some((0, 30))));
        for text in ["aether:", "aether:unknown", "aether:init.hello:0", "aether:init.hello:x", "aether:init.hello:"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_point_that_nobody_wants_is_passed() {
        point("init.hello");
    }
}
