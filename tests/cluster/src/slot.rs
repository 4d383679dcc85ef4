//! A slot: the number from which a cluster's names and addresses follow, owned by one process at a time.
//!
//! ```text
//! /var/lib/rlt-cluster/3.lock   held by the owner, and by the janitor that sweeps when the owner has gone
//! /var/lib/rlt-cluster/3/       everything the cluster writes: made first, removed last
//! ```
//!
//! A folder whose lock is free has no owner any more; the next process sweeps it.

use std::fs::{File, TryLockError};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The machine's folder of clusters. Names of network namespaces hold for the machine, so this one does too.
pub const ROOT: &str = "/var/lib/rlt-cluster";
/// Addresses are of 198.18.0.0/15, which is reserved for testing: one block of 256 for each slot.
const NUM_SLOTS: u8 = 128;
const SWEEP: &str = include_str!("sweep.sh");

/// An error of reserving a slot.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// A folder or lock file could not be made.
    #[error("making {path} failed")]
    Make {
        /// Path of the folder or lock file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The shell that sweeps could not be started.
    #[error("starting the janitor of cluster {name} failed")]
    Janitor {
        /// Name of the cluster.
        name: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// All slots are taken by other clusters.
    #[error("all {NUM_SLOTS} slots in {ROOT} are taken")]
    AllTaken,
}

/// A claimed slot. Dropping it ends the cluster in it.
#[derive(Debug)]
pub(crate) struct Slot {
    index: u8,
    janitor: Child,
    _lock: File,
}

impl Slot {
    /// Sweeps what dead owners left, and takes the first free slot.
    pub(crate) fn claim() -> Result<Self, SlotError> {
        make_folder(Path::new(ROOT))?;
        let mut claimed = None;
        for index in 0..NUM_SLOTS {
            let is_wanted = claimed.is_none();
            if !is_wanted && !folder(index).exists() {
                continue;
            }
            let Some(lock) = try_lock(index)? else { continue };
            if folder(index).exists() {
                sweep_now(index)?;
            }
            if is_wanted {
                claimed = Some((index, lock));
            }
        }
        let (index, lock) = claimed.ok_or(SlotError::AllTaken)?;
        make_folder(&folder(index))?;
        let janitor = start_janitor(index, &lock)?;
        Ok(Self { index, janitor, _lock: lock })
    }

    /// Name of the network namespace, of its link on the host and of the control groups.
    pub(crate) fn name(&self) -> String {
        name(self.index)
    }

    /// The folder that holds all files of the cluster.
    pub(crate) fn folder(&self) -> PathBuf {
        folder(self.index)
    }

    /// The host's own address on the link to the cluster.
    pub(crate) fn host_address(&self) -> Ipv4Addr {
        self.address(2)
    }

    /// The address of the control plane, and of the real node.
    pub(crate) fn node_address(&self) -> Ipv4Addr {
        self.address(1)
    }

    /// Subnet of the real node's pods.
    pub(crate) fn pod_subnet(&self) -> String {
        format!("{}/25", self.address(128))
    }

    /// Subnet of services.
    pub(crate) fn service_subnet(&self) -> String {
        format!("198.19.{}.0/24", self.index)
    }

    fn address(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.index, host)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        // A janitor that cannot be waited for sweeps all the same.
        let _ = self.janitor.wait();
    }
}

/// Sweeps the clusters whose owners have gone; those of living ones stay.
///
/// # Errors
/// When a lock can not be opened or the shell not be started.
pub fn sweep() -> Result<usize, SlotError> {
    let mut num_swept = 0;
    for index in (0..NUM_SLOTS).filter(|index| folder(*index).exists()) {
        let Some(_lock) = try_lock(index)? else { continue };
        sweep_now(index)?;
        num_swept += 1;
    }
    Ok(num_swept)
}

fn name(index: u8) -> String {
    format!("rlt-{index}")
}

fn folder(index: u8) -> PathBuf {
    Path::new(ROOT).join(index.to_string())
}

fn make_folder(path: &Path) -> Result<(), SlotError> {
    std::fs::create_dir_all(path).map_err(|source| SlotError::Make { path: path.to_owned(), source })
}

/// The slot's lock, or `None` if another process holds it.
fn try_lock(index: u8) -> Result<Option<File>, SlotError> {
    let path = Path::new(ROOT).join(format!("{index}.lock"));
    let opened = File::options().create(true).truncate(false).write(true).open(&path);
    let file = opened.map_err(|source| SlotError::Make { path: path.clone(), source })?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(SlotError::Make { path, source }),
    }
}

fn sweep_command(index: u8) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", SWEEP, "sweep.sh", &name(index)]).arg(folder(index)).process_group(0);
    command
}

fn sweep_now(index: u8) -> Result<(), SlotError> {
    let swept = sweep_command(index).stdin(Stdio::null()).status();
    swept.map(drop).map_err(|source| SlotError::Janitor { name: name(index), source })
}

/// Starts the shell that waits for its standard input to end. It holds the lock as its standard error stream:
/// a lock lives as long as any process has the file open, so the slot is free only once it is swept.
fn start_janitor(index: u8, lock: &File) -> Result<Child, SlotError> {
    let failed = |source| SlotError::Janitor { name: name(index), source };
    let lock = lock.try_clone().map_err(failed)?;
    let mut command = sweep_command(index);
    command.arg("later").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(lock);
    command.spawn().map_err(failed)
}
