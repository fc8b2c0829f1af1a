//! /proc/meminfo as the sandbox sees it: its own limit, and what of it is used.

use super::Meminfo;

impl Meminfo {
    /// Write the file anew. It only informs: when it cannot be written, what stood there before stays.
    pub fn refresh(&self) {
        let mut buffer = [0; 32];
        let Ok(count) = rustix::io::pread(&self.usage, &mut buffer, 0) else { return };
        let used = std::str::from_utf8(&buffer[..count]).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let _stale = rustix::io::pwrite(&self.file, render(self.limit_bytes, used).as_bytes(), 0);
    }
}

/// Of one length whatever is used, so that what is written anew covers what stood there.
fn render(limit: u64, used: u64) -> String {
    let (total, free) = (limit / 1024, limit.saturating_sub(used) / 1024);
    let values = [
        ("MemTotal", total),
        ("MemFree", free),
        ("MemAvailable", free),
        ("Buffers", 0),
        ("Cached", 0),
        ("SwapCached", 0),
        ("Active", total - free),
        ("Inactive", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Shmem", 0),
        ("Slab", 0),
    ];
    let width = total.to_string().len().max(8);
    values.iter().map(|(name, value)| format!("{:<16}{value:>width$} kB\n", format!("{name}:"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_limit_and_what_is_left() {
        let text = render(512 << 20, 128 << 20);
        assert!(text.starts_with("MemTotal:         524288 kB\nMemFree:          393216 kB\n"), "{text}");
        assert_eq!(render(1 << 40, 0).len(), render(1 << 40, 1 << 40).len());
        assert!(render(1 << 20, 2 << 20).contains("MemFree:               0 kB"));
    }
}
