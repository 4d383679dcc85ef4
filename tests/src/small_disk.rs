//! A file system in memory of a chosen size, for tests of full disks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Maximum number of attempts to shrink the file system to its used size while other processes write.
const MAX_CUTS: usize = 1000;

/// A separate file system in memory, which takes only the memory that is written. It is unmounted on drop.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a file system of a size such as `64m`; `None` where this process may not mount.
    pub fn mount(at: &Path, size: &str) -> Option<Self> {
        fs::create_dir_all(at).ok()?;
        let options = format!("size={size}");
        run_mount(&["-t", "tmpfs", "-o", &options, "tmpfs"], at).then(|| Self(at.to_owned()))
    }

    /// Changes the size; `false` if more than that is in use.
    pub fn resize(&self, size: &str) -> bool {
        run_mount(&["-o", &format!("remount,size={size}")], &self.0)
    }

    /// Shrinks the file system to its used size, so that no block is free. `false` if other processes never
    /// stop writing.
    pub fn fill(&self) -> bool {
        (0..MAX_CUTS).any(|_| self.used_bytes().is_some_and(|used| self.resize(&used)))
    }

    fn used_bytes(&self) -> Option<String> {
        let mut df = Command::new("df");
        let output = df.args(["--output=used", "--block-size=1"]).arg(&self.0).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        Some(text.lines().nth(1)?.trim().to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // If it cannot be unmounted now, removing the folder reports that.
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

fn run_mount(arguments: &[&str], at: &Path) -> bool {
    Command::new("mount").args(arguments).arg(at).output().is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_disk_takes_no_byte_more_until_it_is_resized() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("disk");
        let Some(disk) = SmallDisk::mount(&at, "64m") else {
            rlt_skipped::skip("a full disk needs a process that may mount");
            return;
        };
        fs::write(at.join("before"), [1_u8; 10_000]).unwrap();
        assert!(disk.fill());
        let error = fs::write(at.join("after"), [1_u8; 10_000]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        assert!(disk.resize("64m") && !disk.resize("4k"), "a size below what is used is refused");
        fs::write(at.join("after"), [1_u8; 10_000]).unwrap();
        assert_eq!(fs::read(at.join("before")).unwrap(), [1_u8; 10_000]);
    }
}
