//! Memory limit of the rollout's weights and cache: a fraction of the device's memory, or of this process's
//! share of the machine's.

use std::fs;
use std::path::Path;

use tch::Device;

/// A fraction of the memory that is available to a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryShare {
    /// Fraction, above 0 and at most 1.
    pub fraction: f64,
    /// Memory that is available to the worker, in bytes.
    pub total_bytes: usize,
}

impl MemoryShare {
    /// The given fraction of the memory that one of `local_ranks` workers of this machine has on `device`.
    ///
    /// # Errors
    /// If the device's memory or /proc cannot be read.
    pub fn of(device: Device, fraction: f64, local_ranks: usize) -> Result<Self, rlt_torch::Error> {
        let total_bytes = match rlt_torch::device_memory(device)? {
            Some(memory) => memory.total_bytes,
            None => allowed_bytes(rlt_torch::machine_memory_bytes()?) / local_ranks.max(1) as u64,
        };
        Ok(Self { fraction, total_bytes: total_bytes as usize })
    }

    /// The limit in bytes.
    pub fn bytes(&self) -> usize {
        (self.total_bytes as f64 * self.fraction) as usize
    }

    /// The smallest fraction of four significant digits whose limit is at least `bytes`; above 1 if none is.
    pub(super) fn fraction_of(&self, bytes: usize) -> f64 {
        let exact = bytes as f64 / self.total_bytes.max(1) as f64;
        let scale = 10f64.powi(3 - exact.log10().floor() as i32);
        let rounded_up = (exact * scale).ceil();
        let fraction = rounded_up / scale;
        // A decimal fraction may be represented by a slightly smaller number.
        let is_enough = Self { fraction, ..*self }.bytes() >= bytes;
        if is_enough { fraction } else { (rounded_up + 1.0) / scale }
    }
}

/// The smallest of the machine's memory and the limits of the process's control groups.
fn allowed_bytes(machine: u64) -> u64 {
    let limits = control_group_folders().into_iter().flat_map(|folder| {
        ["memory.max", "memory.limit_in_bytes"].map(|file| limit(&Path::new(&folder).join(file)))
    });
    limits.flatten().fold(machine, u64::min)
}

fn limit(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Folders with this process's limits: those of its control group and all groups around it. In a container
/// this is only the root.
fn control_group_folders() -> Vec<String> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut folders = vec!["/sys/fs/cgroup".to_owned(), "/sys/fs/cgroup/memory".to_owned()];
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let root = match controllers {
            "" => "/sys/fs/cgroup",
            named if named.split(',').any(|name| name == "memory") => "/sys/fs/cgroup/memory",
            _ => continue,
        };
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        folders.extend((1..=parts.len()).map(|len| format!("{root}/{}", parts[..len].join("/"))));
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_fraction_that_suffices_is_named_and_suffices() {
        for (bytes, total_bytes) in [(1, 3), (123_456_789, 16 << 30), (1 << 30, 8 << 30), (17, 64 << 30)] {
            let share = MemoryShare { fraction: 0.5, total_bytes };
            let fraction = share.fraction_of(bytes);
            let enough = MemoryShare { fraction, total_bytes };
            assert!(enough.bytes() >= bytes, "{fraction} of {total_bytes} is below {bytes}");
            assert!(fraction * total_bytes as f64 <= 1.0011 * bytes as f64 + 1.0, "{fraction}");
        }
    }

    #[test]
    fn a_worker_has_its_share_of_the_machines_memory() {
        let share = |ranks| MemoryShare::of(Device::Cpu, 0.5, ranks).unwrap().total_bytes;
        assert!(share(1) as u64 <= rlt_torch::machine_memory_bytes().unwrap());
        assert!(share(1) > 64 << 20, "a machine that runs this has some memory");
        assert_eq!(share(4), share(1) / 4);
    }
}
