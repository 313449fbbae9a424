//! What the system says about the machine.

use std::env::consts;
use std::fs;

use rwkv_model::SystemMemory;
use serde::Serialize;

use super::limits::last_level_cache;

/// A processor and its memory. What the system does not say is missing.
#[derive(Debug, Serialize)]
pub struct Facts {
    pub system: &'static str,
    pub architecture: &'static str,
    pub processor: Option<String>,
    /// Of those that kernels are written for.
    pub features: Vec<&'static str>,
    /// Processors that this process may use.
    pub processors: usize,
    pub last_level_cache_bytes: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub available_bytes: Option<u64>,
    /// Of the tightest control group around this process.
    pub limit_bytes: Option<u64>,
}

impl Facts {
    /// Asks the system.
    pub fn read() -> Facts {
        let memory = SystemMemory::read();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Facts {
            system: consts::OS,
            architecture: consts::ARCH,
            processor: processor(&cpuinfo),
            features: features(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            last_level_cache_bytes: Some(last_level_cache()).filter(|&bytes| bytes > 0),
            memory_bytes: memory.total_bytes,
            available_bytes: memory.available_bytes,
            limit_bytes: memory.limit_bytes,
        }
    }
}

/// The name of the first processor in Linux's list.
fn processor(cpuinfo: &str) -> Option<String> {
    let value = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    };
    cpuinfo.lines().find_map(value).filter(|name| !name.is_empty())
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    macro_rules! present {
        ($($name:tt)*) => {
            [$(($name, std::arch::is_x86_feature_detected!($name))),*]
        };
    }
    let features = present!("avx2" "fma" "f16c" "avx512f" "avx512bw" "avx512dq" "avx512vl" "avx512vnni");
    features.into_iter().filter(|(_, is_present)| *is_present).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_the_first_of_the_list() {
        let text =
            "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\nmodel name\t: B\n";
        assert_eq!(processor(text).as_deref(), Some("AMD EPYC"));
        assert_eq!(processor("model name\t:\n"), None);
        assert_eq!(processor(""), None);
    }
}
