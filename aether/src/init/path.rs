//! Finding and executing a program, in the child, as the sandbox's user.

use std::ffi::CString;

use rustix::fs::{stat, FileType};
use rustix::io::Errno;

use super::child::{Failure, Stage};
use super::kernel;

const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Execute `argv`; a name without a slash is looked up in the PATH of `env`. Returns only to say why not.
pub fn execute(argv: &[CString], env: &[CString]) -> Failure {
    let name = argv.first().map_or(&b""[..], |name| name.to_bytes());
    let mut denied = None;
    for candidate in candidates(name, env) {
        let error = kernel::execute(&candidate, argv, env);
        match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
            Errno::NOENT | Errno::NOTDIR => {}
            // a directory or a file that may not be executed does not hide a program further on
            Errno::ACCESS => denied = Some(explain(&candidate)),
            errno => return Failure { stage: Stage::Exec, errno },
        }
    }
    Failure { stage: Stage::Exec, errno: denied.unwrap_or(Errno::NOENT) }
}

/// EACCES of something that is no executable file at all is told as ENOEXEC.
fn explain(candidate: &CString) -> Errno {
    match stat(candidate.as_c_str()) {
        Ok(status) if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile => Errno::NOEXEC,
        Ok(status) if status.st_mode & 0o111 == 0 => Errno::NOEXEC,
        _ => Errno::ACCESS,
    }
}

fn candidates(name: &[u8], env: &[CString]) -> Vec<CString> {
    if name.is_empty() {
        return Vec::new();
    }
    if name.contains(&b'/') {
        return CString::new(name).into_iter().collect();
    }
    let path = env.iter().find_map(|entry| entry.to_bytes().strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH);
    let directories = path.split(|byte| *byte == b':').map(|directory| match directory {
        b"" => &b"."[..],
        other => other,
    });
    directories.filter_map(|directory| CString::new([directory, name].join(&b'/')).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, env: &[&str]) -> Vec<String> {
        let env: Vec<CString> = env.iter().filter_map(|entry| CString::new(*entry).ok()).collect();
        candidates(name.as_bytes(), &env).iter().map(|path| path.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn only_bare_names_are_searched() {
        assert_eq!(found("./x", &["PATH=/bin"]), ["./x"]);
        assert_eq!(found("x", &["HOME=/", "PATH=/bin::/opt"]), ["/bin/x", "./x", "/opt/x"]);
        assert_eq!(found("sh", &[]).last().map(String::as_str), Some("/bin/sh"));
        assert!(found("", &["PATH=/bin"]).is_empty());
    }
}
