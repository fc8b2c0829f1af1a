//! /proc/meminfo as the sandbox sees it: its own limit, and what of it is used.

use super::Meminfo;

impl Meminfo {
    /// Write the file anew. It only informs: when it cannot be written, what stood there before stays.
    pub fn refresh(&self) {
        let mut buffer = [0; 32];
        let Ok(count) = rustix::io::pread(&self.usage, &mut buffer, 0) else { return };
        let used = std::str::from_utf8(&buffer[..count]).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let text = render(self.limit_bytes, used);
        if rustix::io::pwrite(&self.file, text.as_bytes(), 0).is_ok() {
            let _shorter_only_when_written = rustix::fs::ftruncate(&self.file, text.len() as u64);
        }
    }
}

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
    values.iter().map(|(name, value)| format!("{:<16}{value:>8} kB\n", format!("{name}:"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_limit_and_what_is_left() {
        let text = render(512 << 20, 128 << 20);
        assert!(text.starts_with("MemTotal:         524288 kB\nMemFree:          393216 kB\n"), "{text}");
        assert!(render(1 << 20, 2 << 20).contains("MemFree:               0 kB"));
    }
}
