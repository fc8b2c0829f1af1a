//! The processes of a command when no cgroup holds them: found in /proc.
//!
//! Its limits: a process that has left its session *and* whose parent has ended belongs to nobody and is missed, and
//! what is read is not one moment. That is why a sandbox has a memory cgroup wherever the machine allows it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::fs::{openat, Dir, Mode, OFlags};
use rustix::process::Pid;

struct Process {
    parent: i32,
    session: i32,
}

/// `root`, its descendants, its session and their descendants; zombies aside.
pub fn members(proc: &OwnedFd, root: Pid) -> Vec<Pid> {
    let processes = read_all(proc);
    let root = root.as_raw_nonzero().get();
    let belongs = |start: i32| {
        let mut pid = start;
        // a chain is never longer than there are processes; the bound is against one that changed while it was read
        for _ in 0..=processes.len() {
            match processes.get(&pid) {
                _ if pid == root => return true,
                Some(process) if process.session == root => return true,
                Some(process) => pid = process.parent,
                None => return false,
            }
        }
        false
    };
    processes.keys().filter(|pid| belongs(**pid)).filter_map(|pid| Pid::from_raw(*pid)).collect()
}

fn read_all(proc: &OwnedFd) -> BTreeMap<i32, Process> {
    let Ok(directory) = Dir::read_from(proc) else { return BTreeMap::new() };
    let pids = directory.flatten().filter_map(|entry| entry.file_name().to_str().ok()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, read_one(proc, pid)?))).collect()
}

fn read_one(proc: &OwnedFd, pid: i32) -> Option<Process> {
    parse(&read_stat(proc, pid)?)
}

fn read_stat(proc: &OwnedFd, pid: i32) -> Option<Vec<u8>> {
    let file = openat(proc, format!("{pid}/stat"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buffer = vec![0; 1024];
    let count = rustix::io::read(&file, &mut buffer).ok()?;
    buffer.truncate(count);
    Some(buffer)
}

/// The fields after the name, which may hold anything but ends with the last parenthesis.
fn fields(stat: &[u8]) -> Option<Vec<&str>> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    Some(std::str::from_utf8(&stat[end + 1..]).ok()?.split_ascii_whitespace().collect())
}

fn parse(stat: &[u8]) -> Option<Process> {
    let fields = fields(stat)?;
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    Some(Process { parent: fields.get(1)?.parse().ok()?, session: fields.get(3)?.parse().ok()? })
}

/// When a process started, in clock ticks since boot; with its pid it names a process for good.
pub fn start_time(proc: &OwnedFd, pid: Pid) -> Option<u64> {
    fields(&read_stat(proc, pid.as_raw_nonzero().get())?)?.get(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_processes_cannot_forge_fields() {
        let process = parse(b"7 (evil) Z 1 1) S 3 7 5 0 -1 4194560").map(|process| (process.parent, process.session));
        assert_eq!(process, Some((3, 5)));
        assert!(parse(b"7 (gone) Z 3 7 5 0").is_none());
        assert!(parse(b"7 (").is_none());
    }
}
