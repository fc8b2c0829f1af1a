//! The one static binary of a node: `aether fork-server` makes sandboxes, and what it forks is PID 1 in each.

mod container;
mod fault;
mod fork_server;
mod init;
mod seqpacket;
mod sys;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
usage: aether fork-server --run-dir DIR [--listen-fd N] [--overlay auto|descriptors|paths]
       aether version
       aether help

fork-server  make sandboxes for the edge that speaks to DIR/fork-server.sock; one a node, as root
    --run-dir DIR    existing directory of root for the socket
    --listen-fd N    take descriptor N, a listening SOCK_SEQPACKET socket, instead of making DIR/fork-server.sock
    --overlay HOW    give layers to overlayfs by descriptor or by path (default: what this kernel can)
version      print the version
";

/// Exit status of a command line that cannot be understood (EX_USAGE).
const USAGE: u8 = 64;

enum Command {
    ForkServer(fork_server::Options),
    Version,
    Help,
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Ok(Command::ForkServer(options)) => match serve(&options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("aether: {error}");
                ExitCode::FAILURE
            }
        },
        Ok(Command::Version) => {
            println!("aether {} (wire generation {})", env!("CARGO_PKG_VERSION"), wire::GENERATION);
            ExitCode::SUCCESS
        }
        Ok(Command::Help) => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("aether: {reason}\n\n{HELP}");
            ExitCode::from(USAGE)
        }
    }
}

fn serve(options: &fork_server::Options) -> Result<(), String> {
    fault::arm()?;
    fork_server::run(options).map_err(|error| error.to_string())
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    match arguments.next().as_deref() {
        Some("fork-server") => parse_fork_server(arguments).map(Command::ForkServer),
        Some("version" | "--version" | "-V") => Ok(Command::Version),
        Some("help" | "--help" | "-h") => Ok(Command::Help),
        Some(other) => Err(format!("cannot do {other:?}: it is no command of aether")),
        None => Err("cannot guess what to do: name a command".into()),
    }
}

fn parse_fork_server(mut arguments: impl Iterator<Item = String>) -> Result<fork_server::Options, String> {
    let mut run_dir = None;
    let mut listen_fd = None;
    let mut overlay = fork_server::OverlayChoice::Auto;
    while let Some(option) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("cannot read {option}: it needs a value"))?;
        match option.as_str() {
            "--run-dir" => run_dir = Some(PathBuf::from(value)),
            "--listen-fd" => {
                let number = value.parse().ok().filter(|number: &i32| *number > 2);
                listen_fd = Some(number.ok_or_else(|| format!("cannot listen on descriptor {value:?}: not above 2"))?);
            }
            "--overlay" => overlay = value.parse()?,
            _ => return Err(format!("cannot read {option}: it is no option of fork-server")),
        }
    }
    let run_dir = run_dir.ok_or("cannot start a fork server: --run-dir is missing")?;
    Ok(fork_server::Options { run_dir, listen_fd, overlay })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn a_fork_server_needs_its_directory() {
        assert!(parsed("fork-server").is_err());
        assert!(parsed("fork-server --run-dir").is_err());
        assert!(parsed("fork-server --run-dir /x --listen-fd 1").is_err());
        assert!(parsed("fork-server --run-dir /x --overlay sideways").is_err());
        assert!(parsed("fork-server --run-dir /x --unknown 1").is_err());
        assert!(
            matches!(parsed("fork-server --run-dir /x --listen-fd 3"), Ok(Command::ForkServer(o)) if o.listen_fd == Some(3))
        );
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        assert!(parsed("frobnicate").is_err_and(|reason| reason.contains("frobnicate")));
        assert!(matches!(parsed("--help"), Ok(Command::Help)));
    }
}
