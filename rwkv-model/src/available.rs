//! How much memory there is, and how much can be had without pushing anything out.
//!
//! The system's page cache counts as free, because it gives way: `MemAvailable` says so for the machine. Within a control
//! group the cache of files counts as used, and is taken off here.

use std::fs;
use std::path::Path;

/// Bytes that this process can still take: what the machine has, or the tightest of the control groups (v1 or v2) around the
/// process if that is less. `None` where the system does not say.
pub fn available_memory() -> Option<u64> {
    SystemMemory::read().available_bytes
}

/// The memory of the machine, as far as the system says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SystemMemory {
    /// What the machine has.
    pub total_bytes: Option<u64>,
    /// The tightest limit of the control groups around the process, if that is less.
    pub limit_bytes: Option<u64>,
    /// What this process can still take: see [`available_memory`].
    pub available_bytes: Option<u64>,
}

impl SystemMemory {
    /// Asks the system.
    pub fn read() -> SystemMemory {
        SystemMemory::under(Path::new("/"))
    }

    /// The same for a file system whose `proc` and `sys` lie in `root`.
    fn under(root: &Path) -> SystemMemory {
        let read = |path: &str| fs::read_to_string(root.join(path)).ok();
        let meminfo = read("proc/meminfo").unwrap_or_default();
        let total_bytes = meminfo_entry(&meminfo, "MemTotal:");
        let machine = meminfo_entry(&meminfo, "MemAvailable:");
        let groups = read("proc/self/cgroup").unwrap_or_default();
        let groups = memory_groups(&groups).into_iter().flat_map(|(layout, path)| layout.around(root, path));
        let (limits, headrooms): (Vec<u64>, Vec<u64>) = groups.unzip();
        SystemMemory {
            total_bytes,
            // As good as none, where it is that of version 1: the largest number of pages.
            limit_bytes: limits.into_iter().min().filter(|&limit| total_bytes.is_none_or(|all| limit < all)),
            available_bytes: machine.into_iter().chain(headrooms).min(),
        }
    }
}

fn meminfo_entry(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The names that a version of control groups has for the same things.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    mount: &'static str,
    limits: &'static [&'static str],
    usage: &'static str,
    /// Entries of `memory.stat`: file pages that the kernel takes back when memory is short.
    reclaimable: [&'static str; 2],
}

const V1: Layout = Layout {
    mount: "sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};

const V2: Layout = Layout {
    mount: "sys/fs/cgroup",
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
};

/// The groups of `/proc/self/cgroup` that may limit memory, and their paths within the hierarchy.
fn memory_groups(text: &str) -> Vec<(Layout, &str)> {
    let group = |line| {
        let mut fields = str::splitn(line, 3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if controllers.split(',').any(|controller| controller == "memory") {
            Some((V1, path))
        } else {
            (id == "0" && controllers.is_empty()).then_some((V2, path))
        }
    };
    text.lines().filter_map(group).collect()
}

impl Layout {
    /// The limit of a group and what it has left of that, and the same for every group that it is in. Within a container the
    /// path may be that of the host, of which only the mount itself is there.
    fn around(&self, root: &Path, path: &str) -> Vec<(u64, u64)> {
        let mount = root.join(self.mount);
        let group = mount.join(path.trim_start_matches('/'));
        let within = |dir: &&Path| dir.starts_with(&mount);
        group.ancestors().take_while(within).filter_map(|dir| self.limit(dir)).collect()
    }

    fn limit(&self, dir: &Path) -> Option<(u64, u64)> {
        let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
        // "max" is no number: no limit.
        let limits = self.limits.iter().filter_map(|name| read(name)?.trim().parse::<u64>().ok());
        let limit = limits.min()?;
        let usage: u64 = read(self.usage)?.trim().parse().ok()?;
        let reclaimable = read("memory.stat").map_or(0, |stat| self.reclaimable(&stat));
        Some((limit, limit.saturating_sub(usage.saturating_sub(reclaimable))))
    }

    fn reclaimable(&self, stat: &str) -> u64 {
        let value = |line: &str| {
            let (key, value) = line.split_once(' ')?;
            if self.reclaimable.contains(&key) { value.trim().parse().ok() } else { None }
        };
        stat.lines().filter_map(value).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn available(files: &[(&str, &str)]) -> Option<u64> {
        memory(files).available_bytes
    }

    /// Writes files into an empty folder, and says what memory is there.
    fn memory(files: &[(&str, &str)]) -> SystemMemory {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        SystemMemory::under(root.path())
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:       4194304 kB\nMemFree:          10240 kB\nMemAvailable:    1048576 kB\nBuffers:  1 kB\n",
    );

    #[test]
    fn page_cache_is_not_in_use() {
        assert_eq!(available(&[MEMINFO]), Some(1024 * MIB));
        assert_eq!(available(&[]), None);
        for broken in ["MemTotal: 5 kB\n", "MemAvailable: x kB\n", "MemAvailable: 99999999999999999999 kB\n"]
        {
            assert_eq!(available(&[("proc/meminfo", broken)]), None, "{broken:?}");
        }
    }

    #[test]
    fn limits_of_version_2() {
        let group = "sys/fs/cgroup/work.slice/job";
        let file = |name: &str| format!("{group}/{name}");
        let (max, high) = (file("memory.max"), file("memory.high"));
        let (current, stat) = (file("memory.current"), file("memory.stat"));
        let cgroup = ("proc/self/cgroup", "0::/work.slice/job\n");
        let used = (&*current, "524288000\n"); // 500 MiB
        let cache =
            (&*stat, "anon 104857600\ninactive_file 209715200\nactive_file 209715200\nfile 419430400\n");
        let all = [MEMINFO, cgroup, (&*max, "629145600\n"), used, cache];
        assert_eq!(available(&all), Some(500 * MIB), "600 MiB, of which 100 MiB are not cache");
        assert_eq!(available(&all[..4]), Some(100 * MIB), "without statistics nothing counts as cache");
        assert_eq!(available(&[MEMINFO, cgroup, (&*max, "max\n"), used, cache]), Some(1024 * MIB));
        assert_eq!(
            available(&[MEMINFO, cgroup, (&*max, "max\n"), (&*high, "314572800"), used, cache]),
            Some(200 * MIB)
        );
        let outer = [
            ("sys/fs/cgroup/work.slice/memory.max", "209715200"),
            ("sys/fs/cgroup/work.slice/memory.current", "104857600"),
        ];
        assert_eq!(
            available(&[&all[..], &outer].concat()),
            Some(100 * MIB),
            "the group around it is tighter"
        );
        assert_eq!(
            available(&[MEMINFO, cgroup, (&*max, "104857600"), used]),
            Some(0),
            "more than the limit is used"
        );
    }

    #[test]
    fn limits_of_version_1() {
        let cgroup = ("proc/self/cgroup", "5:cpu:/a\n4:memory:/docker/0123\n0::/\n");
        // Seen from within the container: only the mount is there.
        let files = |limit| {
            [
                MEMINFO,
                cgroup,
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", limit),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "314572800"),
                ("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 104857600\n"),
            ]
        };
        assert_eq!(available(&files("419430400")), Some(200 * MIB));
        let facts = |limit| {
            let SystemMemory { total_bytes, limit_bytes, .. } = memory(&files(limit));
            (total_bytes, limit_bytes)
        };
        assert_eq!(facts("419430400"), (Some(4096 * MIB), Some(400 * MIB)));
        assert_eq!(facts("9223372036854771712"), (Some(4096 * MIB), None));
        assert_eq!(available(&files("9223372036854771712")), Some(1024 * MIB), "as good as no limit");
    }
}
