//! Descriptors that must outlive the edge, kept under the edge's keys. What they are is none of our business.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const MAX_KEY: usize = 64;
const MAX_HELD: usize = 8;

/// Why a descriptor cannot be held.
#[derive(Debug, PartialEq, Eq)]
pub enum HoldError {
    BadKey,
    TooMany,
}

#[derive(Default)]
pub struct Descriptors {
    held: BTreeMap<String, OwnedFd>,
}

impl Descriptors {
    /// Keep one; what was under that key before is closed.
    pub fn hold(&mut self, key: &str, descriptor: OwnedFd) -> Result<(), HoldError> {
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(HoldError::BadKey);
        }
        if self.held.len() >= MAX_HELD && !self.held.contains_key(key) {
            return Err(HoldError::TooMany);
        }
        self.held.insert(key.into(), descriptor);
        Ok(())
    }

    pub fn get(&self, key: &str) -> Option<BorrowedFd<'_>> {
        self.held.get(key).map(AsFd::as_fd)
    }

    /// Whether there was one.
    pub fn drop(&mut self, key: &str) -> bool {
        self.held.remove(key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn what_is_held_can_be_had_until_it_is_dropped() {
        let mut descriptors = Descriptors::default();
        assert!(descriptors.get("group").is_none());
        assert_eq!(descriptors.hold("group", any()), Ok(()));
        assert!(descriptors.get("group").is_some());
        assert!(descriptors.drop("group"));
        assert!(!descriptors.drop("group"));
        assert!(descriptors.get("group").is_none());
    }

    #[test]
    fn keys_and_their_number_are_bounded() {
        let mut descriptors = Descriptors::default();
        assert_eq!(descriptors.hold("", any()), Err(HoldError::BadKey));
        assert_eq!(descriptors.hold(&"k".repeat(MAX_KEY + 1), any()), Err(HoldError::BadKey));
        for number in 0..MAX_HELD {
            assert_eq!(descriptors.hold(&number.to_string(), any()), Ok(()));
        }
        assert_eq!(descriptors.hold("another", any()), Err(HoldError::TooMany));
        assert_eq!(descriptors.hold("0", any()), Ok(()));
    }
}
