//! Who a user is inside the sandbox.
//!
//! `/etc/passwd` and `/etc/group` belong to the sandbox, so they are read by a child that is root inside (not PID 1),
//! only if they are regular files, and only up to a bound; a line that cannot be read is no line. A numeric user
//! needs no entry, and neither does `root`, so that an image without these files can be used.

use rustix::fs::{open, FileType, Mode, OFlags};
use rustix::io::Errno;

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// Bytes read of either file.
const LIMIT: u64 = 4 * 1024 * 1024;
/// Supplementary groups taken of a user.
const LIMIT_GROUPS: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary.
    pub groups: Vec<u32>,
    pub home: Vec<u8>,
}

struct Entry<'a> {
    name: &'a [u8],
    uid: u32,
    gid: u32,
    home: &'a [u8],
}

/// The account of a name or a number, or of one of these with a group, by name or number, behind a colon: then with that
/// group alone. `Errno::NOENT` says that there is no such user or group.
pub fn resolve(user: &str) -> Result<Account, Errno> {
    look_up(user, &read(PASSWD)?, &read(GROUP)?).ok_or(Errno::NOENT)
}

fn look_up(user: &str, passwd: &[u8], group: &[u8]) -> Option<Account> {
    let Some((user, with)) = user.split_once(':') else { return find(user.as_bytes(), passwd, group) };
    let gid = number(with.as_bytes()).or_else(|| group_number(with.as_bytes(), group))?;
    Some(Account { gid, groups: Vec::new(), ..find(user.as_bytes(), passwd, group)? })
}

fn group_number(name: &[u8], group: &[u8]) -> Option<u32> {
    let line = group.split(|byte| *byte == b'\n').find(|line| {
        let found = line.split(|byte| *byte == b':').next();
        found == Some(name) && !name.is_empty()
    })?;
    number(line.split(|byte| *byte == b':').nth(2)?)
}

fn find(user: &[u8], passwd: &[u8], group: &[u8]) -> Option<Account> {
    let wanted = number(user);
    let entry = match wanted {
        // of a number, the entry only adds the groups and the home
        Some(uid) => entries(passwd).find(|entry| entry.uid == uid),
        None => entries(passwd).find(|entry| entry.name == user),
    };
    if let Some(entry) = entry {
        let groups = memberships(entry.name, group);
        return Some(Account { uid: entry.uid, gid: entry.gid, groups, home: entry.home.to_vec() });
    }
    match wanted {
        Some(uid) => Some(Account { uid, gid: 0, groups: Vec::new(), home: b"/".to_vec() }),
        None if user == b"root" => Some(Account { uid: 0, gid: 0, groups: Vec::new(), home: b"/root".to_vec() }),
        None => None,
    }
}

fn entries(passwd: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    passwd.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let uid = number(fields.nth(1)?)?;
        let gid = number(fields.next()?)?;
        let home = fields.nth(1).filter(|home| home.starts_with(b"/")).unwrap_or(b"/");
        Some(Entry { name, uid, gid, home })
    })
}

fn memberships(name: &[u8], group: &[u8]) -> Vec<u32> {
    let of_line = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b':');
        let gid = number(fields.nth(2)?)?;
        fields.next()?.split(|byte| *byte == b',').any(|member| member == name).then_some(gid)
    };
    group.split(|byte| *byte == b'\n').filter_map(of_line).take(LIMIT_GROUPS).collect()
}

/// An id. The largest number is none: to the system calls that change ids it says "leave it as it is", which is root.
fn number(text: &[u8]) -> Option<u32> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok().filter(|id| *id != u32::MAX)
}

/// A missing file is an empty one; so is one that is not a regular file, and one that the sandbox has made unreadable
/// (behind a link into /proc, under a lease): otherwise it could lock out who needs no entry.
fn read(path: &str) -> Result<Vec<u8>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match open(path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(error @ (Errno::NOMEM | Errno::MFILE | Errno::NFILE)) => return Err(error),
        Err(_) => return Ok(Vec::new()),
    };
    let status = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Ok(Vec::new());
    }
    // no more than it held: what grows while it is read is as good as it was
    let mut content = Vec::with_capacity((status.st_size as u64).min(LIMIT) as usize);
    while content.len() < content.capacity() {
        match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut content)) {
            Ok(0) => break,
            Ok(_) => {}
            Err(_) => return Ok(Vec::new()),
        }
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] =
        b"root:x:0:0:root:/root:/bin/sh\n:::\nbroken\nme:x:1000:1001:Me,,,:/home/me:/bin/sh\nodd:x:7:8::relative:\n";
    const GROUPS: &[u8] = b"root:x:0:\nsudo:x:27:you,me\nvideo:x:44:me\nmine:x:1001:\nbad:x:nan:me\n";

    fn account(user: &str) -> Option<Account> {
        find(user.as_bytes(), SAMPLE, GROUPS)
    }

    #[test]
    fn names_and_numbers_find_their_entry() {
        let expected = Account { uid: 1000, gid: 1001, groups: vec![27, 44], home: b"/home/me".to_vec() };
        assert_eq!(account("me"), Some(expected.clone()));
        assert_eq!(account("1000"), Some(expected));
        assert_eq!(account("nobody"), None);
        assert_eq!(account("odd").map(|found| found.home), Some(b"/".to_vec()));
    }

    #[test]
    fn a_group_behind_a_colon_is_the_only_one() {
        let of = |user| look_up(user, SAMPLE, GROUPS);
        let mine = |gid| Some(Account { uid: 1000, gid, groups: vec![], home: b"/home/me".to_vec() });
        assert_eq!(of("me:sudo"), mine(27));
        assert_eq!(of("1000:video"), mine(44));
        assert_eq!(of("me:5"), mine(5));
        assert_eq!(of("9:8"), Some(Account { uid: 9, gid: 8, groups: vec![], home: b"/".to_vec() }));
        assert_eq!(look_up("root:root", b"", GROUPS).map(|root| (root.uid, root.gid)), Some((0, 0)));
        for nobody in ["me:", ":5", ":", "me:none", "none:5", "me:bad", "me:5:6", "me:4294967295", "you:sudo"] {
            assert_eq!(of(nobody), None, "{nobody}");
        }
    }

    #[test]
    fn numbers_and_root_need_no_entry() {
        let found = find(b"4242", b"", b"");
        assert_eq!(found, Some(Account { uid: 4242, gid: 0, groups: vec![], home: b"/".to_vec() }));
        assert_eq!(find(b"root", b"", b"").map(|root| (root.uid, root.gid)), Some((0, 0)));
        assert_eq!(find(b"", SAMPLE, GROUPS), None);
        assert_eq!(find(b"99999999999", SAMPLE, GROUPS), None);
        assert_eq!(find(b"4294967295", SAMPLE, GROUPS), None);
        assert_eq!(find(b"it", b"it:x:4294967295:0::/:", b""), None);
    }
}
