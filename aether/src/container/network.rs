//! The sandbox's network: loopback, and what its root user expects to be allowed on it.
//!
//! The network namespace belongs to the host's user namespace, so root inside has no capability over it: ports below
//! 1024 and ping sockets are opened to everyone inside instead.

use std::os::fd::OwnedFd;

use rustix::fs::{openat, Mode, OFlags};
use rustix::net::{socket_with, AddressFamily, SocketFlags, SocketType};

use super::steps::{During, Failure, Stage};
use crate::fork_server::plan::{Plan, ID_RANGE};
use crate::sys::{self, KernelError, On};

/// What is the same for every sandbox: loopback is up, low ports are open. `proc` is a procfs on which nothing is
/// protected; what it shows of the network is the caller's own.
pub fn prepare(proc: &OwnedFd) -> Result<(), KernelError> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .on("open", "a socket for the loopback interface")?;
    sys::bring_up(&socket, "lo").on("bring up", "lo")?;
    write_setting(proc, "sys/net/ipv4/ip_unprivileged_port_start", "0")
}

/// Make the network namespace this process is in the sandbox's; `prepared` says whether `prepare` has been here. The
/// host's is left as it is.
pub fn configure(plan: &Plan, proc: &OwnedFd, prepared: bool) -> Result<(), Failure> {
    if plan.host_network {
        return Ok(());
    }
    let configure = || {
        if !prepared {
            prepare(proc)?;
        }
        let groups = format!("{} {}", plan.id_base, plan.id_base + ID_RANGE - 1);
        write_setting(proc, "sys/net/ipv4/ping_group_range", &groups)
    };
    configure().during(Stage::Network)
}

/// Write to a file of /proc.
pub fn write_setting(proc: &OwnedFd, path: &str, value: &str) -> Result<(), KernelError> {
    let target = || format!("/proc/{path}");
    let file = openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).on("open", target())?;
    rustix::io::write(&file, value.as_bytes()).on("write to", target())?;
    Ok(())
}
