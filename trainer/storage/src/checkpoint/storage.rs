//! File-system operations of a checkpoint, as a trait so that tests can make each of them fail.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// File system to which checkpoints are written. Reads do not go through it.
pub(super) trait Storage: Send + Sync {
    /// Creates a folder whose parent exists.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Creates a file that does not exist yet.
    fn create_file(&self, path: &Path) -> io::Result<Box<dyn StorageFile>>;
    /// Syncs a folder, so that its entries survive a power loss.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Renames a folder to a path that does not exist yet.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Exchanges two existing folders atomically; `Unsupported` if the file system cannot.
    fn exchange(&self, left: &Path, right: &Path) -> io::Result<()>;
    /// Removes a folder and everything in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
}

/// A file that is being written, by one thread at a time.
pub(super) trait StorageFile: Write + Send {
    /// Syncs the content, so that it survives a power loss.
    fn sync_all(&mut self) -> io::Result<()>;
}

/// The operating system's file system.
pub(super) struct FileSystem;

impl Storage for FileSystem {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn create_file(&self, path: &Path) -> io::Result<Box<dyn StorageFile>> {
        Ok(Box::new(File::create_new(path)?))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn exchange(&self, left: &Path, right: &Path) -> io::Result<()> {
        renameat_with(CWD, left, CWD, right, RenameFlags::EXCHANGE).map_err(|errno| match errno {
            Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP => io::ErrorKind::Unsupported.into(),
            other => other.into(),
        })
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }
}

impl StorageFile for File {
    fn sync_all(&mut self) -> io::Result<()> {
        File::sync_all(self)
    }
}
