//! The plan of a sandbox as the edge sends it (`docs/wire.md`, "The plan"), and what a plan must satisfy.
//!
//! The edge decides; nothing here does. What is checked is only that the plan can be carried out as written: bounds,
//! absolute paths without `..`, ids that cannot meet. What the machine refuses shows when it is tried.

use serde::{Deserialize, Deserializer};

/// Ids of a sandbox.
pub const ID_RANGE: u32 = 65_536;
pub const MAX_LAYERS: usize = 128;
const MAX_ID: usize = 64;
const MAX_PATH: usize = 4096;
const MAX_PATHS: usize = 256;
const MAX_CGROUPS: usize = 16;
const MAX_CPUS: usize = 1024;
const MAX_HOSTNAME: usize = 64;
const PAGE: u64 = 4096;

#[derive(Clone, Debug, Deserialize)]
pub struct Plan {
    pub id: String,
    /// Keys held before, lowest first.
    pub layers: Vec<String>,
    pub upper: String,
    pub work: String,
    /// Empty directory to mount on inside the new mount namespace, shared by all sandboxes.
    pub root: String,
    pub id_base: u32,
    /// Host uid and gid of PID 1.
    pub keeper: u32,
    pub cgroups: Vec<String>,
    #[serde(deserialize_with = "present")]
    pub memory_cgroup: Option<String>,
    #[serde(deserialize_with = "present")]
    pub pids_cgroup: Option<String>,
    pub cgroup_version: u8,
    pub hostname: String,
    pub cpus: Vec<u32>,
    /// 0 for none.
    pub memory_bytes: u64,
    pub shm_bytes: u64,
    pub masked: Vec<String>,
    pub readonly: Vec<String>,
    pub nested_user_namespaces: bool,
    /// In the host's own network instead of one with loopback alone.
    pub host_network: bool,
    pub oom_score_adj: i32,
}

/// Nil is a value; a missing field is an error, which serde's own rule for `Option` would hide.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Option::deserialize(deserializer)
}

impl Plan {
    /// Whether the plan can be carried out as written; the reason names the field and its value.
    pub fn check(&self) -> Result<(), String> {
        check_id(&self.id)?;
        bounded("layers", self.layers.len(), 1, MAX_LAYERS)?;
        for (field, path) in [("upper", &self.upper), ("work", &self.work), ("root", &self.root)] {
            check_path(field, path)?;
        }
        self.check_ids()?;
        self.check_cgroups()?;
        bounded("hostname", self.hostname.len(), 1, MAX_HOSTNAME)?;
        bounded("cpus", self.cpus.len(), 0, MAX_CPUS)?;
        if let Some(cpu) = self.cpus.iter().find(|cpu| **cpu as usize >= MAX_CPUS) {
            return Err(format!("cpus: {cpu} is not below {MAX_CPUS}"));
        }
        if self.shm_bytes < PAGE {
            return Err(format!("shm_bytes: {} is less than a page", self.shm_bytes));
        }
        for (field, paths) in [("masked", &self.masked), ("readonly", &self.readonly)] {
            bounded(field, paths.len(), 0, MAX_PATHS)?;
            paths.iter().try_for_each(|path| check_path(field, path))?;
        }
        if !(-1000..=1000).contains(&self.oom_score_adj) {
            return Err(format!("oom_score_adj: {} is not within -1000 and 1000", self.oom_score_adj));
        }
        Ok(())
    }

    fn check_ids(&self) -> Result<(), String> {
        let Some(last) = self.id_base.checked_add(ID_RANGE - 1).filter(|last| *last < u32::MAX) else {
            return Err(format!("id_base: {} leaves no room for {ID_RANGE} ids", self.id_base));
        };
        if self.id_base < ID_RANGE {
            return Err(format!("id_base: {} is within the host's own ids", self.id_base));
        }
        if self.keeper == 0 || self.keeper == u32::MAX || (self.id_base..=last).contains(&self.keeper) {
            return Err(format!("keeper: {} is root or within the sandbox's own ids", self.keeper));
        }
        Ok(())
    }

    fn check_cgroups(&self) -> Result<(), String> {
        bounded("cgroups", self.cgroups.len(), 0, MAX_CGROUPS)?;
        self.cgroups.iter().try_for_each(|path| check_path("cgroups", path))?;
        for (field, named) in [("memory_cgroup", &self.memory_cgroup), ("pids_cgroup", &self.pids_cgroup)] {
            if let Some(path) = named.as_ref().filter(|path| !self.cgroups.contains(path)) {
                return Err(format!("{field}: {path} is not one of cgroups"));
            }
        }
        if self.memory_bytes > 0 && self.memory_cgroup.is_none() {
            return Err(format!("memory_bytes: {} cannot be shown without a memory_cgroup", self.memory_bytes));
        }
        if !(1..=2).contains(&self.cgroup_version) {
            return Err(format!("cgroup_version: {} is neither 1 nor 2", self.cgroup_version));
        }
        Ok(())
    }
}

fn bounded(field: &str, size: usize, least: usize, most: usize) -> Result<(), String> {
    if (least..=most).contains(&size) {
        return Ok(());
    }
    Err(format!("{field}: {size} is not within {least} and {most}"))
}

/// An id as sandboxes have it.
pub fn check_id(id: &str) -> Result<(), String> {
    bounded("id", id.len(), 1, MAX_ID)?;
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if id.bytes().all(allowed) {
        return Ok(());
    }
    Err(format!("id: {id:?} has other characters than a-z and 0-9"))
}

fn check_path(field: &str, path: &str) -> Result<(), String> {
    if !path.starts_with('/') || path.len() > MAX_PATH || path.contains('\0') {
        return Err(format!("{field}: {path:?} is no absolute path of at most {MAX_PATH} bytes"));
    }
    if path.split('/').any(|component| component == "..") {
        return Err(format!("{field}: {path:?} has a component \"..\""));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;
    use serde::Serialize;

    #[derive(Serialize, Clone)]
    struct Sent {
        id: String,
        layers: Vec<String>,
        upper: String,
        work: String,
        root: String,
        id_base: u32,
        keeper: u32,
        cgroups: Vec<String>,
        memory_cgroup: Option<String>,
        pids_cgroup: Option<String>,
        cgroup_version: u8,
        hostname: String,
        cpus: Vec<u32>,
        memory_bytes: u64,
        shm_bytes: u64,
        masked: Vec<String>,
        readonly: Vec<String>,
        nested_user_namespaces: bool,
        host_network: bool,
        oom_score_adj: i32,
        of_a_newer_peer: bool,
    }

    fn sent() -> Sent {
        Sent {
            id: "abc123".into(),
            layers: vec!["base".into()],
            upper: "/u/upper".into(),
            work: "/u/work".into(),
            root: "/run/root".into(),
            id_base: 1_000_000,
            keeper: 900_000,
            cgroups: vec!["/sys/fs/cgroup/memory/x".into()],
            memory_cgroup: Some("/sys/fs/cgroup/memory/x".into()),
            pids_cgroup: None,
            cgroup_version: 1,
            hostname: "box".into(),
            cpus: vec![],
            memory_bytes: 0,
            shm_bytes: 1 << 20,
            masked: vec!["/proc/kcore".into()],
            readonly: vec![],
            nested_user_namespaces: false,
            host_network: false,
            oom_score_adj: 0,
            of_a_newer_peer: true,
        }
    }

    impl Plan {
        pub fn sample() -> Self {
            read(&sent())
        }
    }

    fn read(sent: &Sent) -> Plan {
        wire::unpack(&wire::pack(sent).unwrap()).unwrap()
    }

    #[test]
    fn a_plan_is_read_and_fields_of_a_newer_peer_are_ignored() {
        let plan = read(&sent());
        assert_eq!(plan.id, "abc123");
        assert_eq!(plan.pids_cgroup, None);
        assert_eq!(plan.check(), Ok(()));
    }

    #[test]
    fn a_missing_field_is_refused_even_when_nil_would_be_a_value() {
        #[derive(Serialize)]
        struct Short {
            id: String,
        }
        let error = wire::unpack::<Plan>(&wire::pack(&Short { id: "a".into() }).unwrap()).unwrap_err();
        assert!(error.0.contains("missing field"), "{error}");
        assert!(serde_missing("memory_cgroup").contains("memory_cgroup"));
    }

    fn serde_missing(field: &str) -> String {
        let packed = wire::pack(&sent()).unwrap();
        let mut name = vec![0xa0 | field.len() as u8];
        name.extend_from_slice(field.as_bytes());
        let at = packed.windows(name.len()).position(|window| window == name).unwrap();
        let mut renamed = packed.clone();
        renamed[at + 1] = b'X';
        wire::unpack::<Plan>(&renamed).unwrap_err().0
    }

    #[test]
    fn what_cannot_be_carried_out_is_refused_by_field() {
        type Spoil = fn(&mut Plan);
        let cases: &[(&str, Spoil)] = &[
            ("id", |plan| plan.id = "../x".into()),
            ("id", |plan| plan.id = String::new()),
            ("layers", |plan| plan.layers.clear()),
            ("layers", |plan| plan.layers = vec!["l".into(); MAX_LAYERS + 1]),
            ("upper", |plan| plan.upper = "relative".into()),
            ("work", |plan| plan.work = "/a/../b".into()),
            ("root", |plan| plan.root = "/a\0b".into()),
            ("id_base", |plan| plan.id_base = 0),
            ("id_base", |plan| plan.id_base = u32::MAX - 10),
            ("keeper", |plan| plan.keeper = 0),
            ("keeper", |plan| plan.keeper = plan.id_base + 5),
            ("cgroups", |plan| plan.cgroups = vec!["/c".into(); 17]),
            ("memory_cgroup", |plan| plan.memory_cgroup = Some("/other".into())),
            ("memory_bytes", |plan| (plan.memory_bytes, plan.memory_cgroup) = (1 << 20, None)),
            ("pids_cgroup", |plan| plan.pids_cgroup = Some("/other".into())),
            ("cgroup_version", |plan| plan.cgroup_version = 3),
            ("hostname", |plan| plan.hostname = "h".repeat(65)),
            ("cpus", |plan| plan.cpus = vec![1024]),
            ("shm_bytes", |plan| plan.shm_bytes = 0),
            ("masked", |plan| plan.masked = vec!["proc".into()]),
            ("readonly", |plan| plan.readonly = vec!["/x".into(); 257]),
            ("oom_score_adj", |plan| plan.oom_score_adj = 1001),
        ];
        for (field, spoil) in cases {
            let mut plan = read(&sent());
            spoil(&mut plan);
            let reason = plan.check().unwrap_err();
            assert!(reason.starts_with(&format!("{field}:")), "{field}: {reason}");
        }
    }
}
