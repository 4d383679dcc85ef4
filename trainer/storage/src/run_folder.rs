//! The run folder: all files of a run, and the rule that one run owns it at a time.
//!
//! ```text
//! runs/<name>/manifest.yaml  metrics.jsonl  completions.jsonl  events/  wandb/  report.html
//!             checkpoints/step-000020/  export/  export/adapter/  exports/step-000020/  .lock
//! ```
//! This module has the paths and the lock; each file is written by the module that owns its content.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The run folder cannot be created, locked or used.
#[derive(Debug, thiserror::Error)]
pub enum RunFolderError {
    /// A file-system call failed.
    #[error("failed to {act} `{path}`")]
    Io {
        /// Failed operation as a verb.
        act: &'static str,
        /// File or folder on which the operation failed.
        path: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// Another process is training in the folder.
    #[error(
        "another run is writing to `{path}` ({holder}): wait for it, stop it, or choose another folder with --output"
    )]
    Busy {
        /// Path of the run folder.
        path: String,
        /// Holder of the lock, as far as the lock file says.
        holder: String,
        /// Whether this process has waited for the lock. A file server keeps the lock of a dead client until
        /// its lease ends, so the lock may be free at the next attempt.
        was_waited_for: bool,
    },
    /// The folder was created for a different manifest.
    #[error(
        "`{path}` holds a run of a different manifest (first difference: {difference}): choose another folder \
         with --output, or start afresh with --overwrite"
    )]
    OtherManifest {
        /// Path of the run folder.
        path: String,
        /// First setting that differs, with both values.
        difference: String,
    },
    /// The folder is not empty and is not a run folder.
    #[error("`{path}` is not empty and no run made it: choose another folder with --output")]
    Foreign {
        /// Path of the folder.
        path: String,
    },
}

/// A run folder that is locked by this process, or by the leader of its ranks, until the value is dropped.
#[derive(Debug)]
pub struct RunFolder {
    root: PathBuf,
    /// Open lock file; `None` if the leader holds the lock.
    _lock: Option<File>,
}

/// Names of everything that a run may write into its folder; `--overwrite` removes these and nothing else.
const CONTENT: [&str; 15] = [
    "metrics.jsonl",
    "completions.jsonl",
    "events",
    "wandb",
    "report.html",
    "checkpoints",
    "export",
    EXPORTS,
    "result.json",
    MODEL_RECORD,
    REWARD_MODELS_RECORD,
    DATA_RECORD,
    "reference-logprobs",
    WARNINGS,
    "manifest.yaml",
];

/// Name of the folder with exported checkpoints, by step, unless the user names another.
pub const EXPORTS: &str = "exports";

/// Name of the file with the commit at which the policy's model was read from the hub.
pub const MODEL_RECORD: &str = "model.json";

/// Name of the file with the commits at which reward models were read from the hub, by the names of their
/// functions.
pub const REWARD_MODELS_RECORD: &str = "reward-models.json";

/// Name of the file with the commits at which data sets were read from the hub.
pub const DATA_RECORD: &str = "data.json";

/// Name of the file with the warnings of the last attempt, as a list of sentences.
pub const WARNINGS: &str = "warnings.json";

/// Prefix of the names of temporary files, which are renamed once they are complete.
pub(crate) const UNFINISHED: &str = ".new-";

impl RunFolder {
    /// Creates or reopens the folder and locks it. With `overwrite`, files of an earlier run are removed.
    ///
    /// # Errors
    /// [`RunFolderError`]: the folder is busy, belongs to something else, or cannot be written.
    pub fn open(root: &Path, overwrite: bool) -> Result<Self, RunFolderError> {
        let folder = Self::lock(root)?;
        if !overwrite {
            return folder.ready();
        }
        folder.clear()?;
        Ok(folder)
    }

    /// Creates or reopens the folder and locks it, whatever it contains.
    ///
    /// # Errors
    /// [`RunFolderError`]: the folder is busy or cannot be written.
    pub fn lock(root: &Path) -> Result<Self, RunFolderError> {
        std::fs::create_dir_all(root).map_err(|source| io("create the run folder", root, source))?;
        let lock = take_lock(root)?;
        Ok(Self { root: root.to_path_buf(), _lock: Some(lock) })
    }

    /// Locks the folder as [`Self::lock`] does. While another process holds the lock, `wait` is called with a
    /// description of the holder, and locking is retried if it returns true.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub fn lock_patiently(root: &Path, mut wait: impl FnMut(&str) -> bool) -> Result<Self, RunFolderError> {
        let mut has_waited = false;
        loop {
            match Self::lock(root) {
                Err(RunFolderError::Busy { holder, .. }) if wait(&holder) => has_waited = true,
                Err(RunFolderError::Busy { path, holder, .. }) => {
                    return Err(RunFolderError::Busy { path, holder, was_waited_for: has_waited });
                }
                other => return other,
            }
        }
    }

    /// Prepares a locked folder for a run that starts or continues in it.
    ///
    /// # Errors
    /// [`RunFolderError`]: the folder belongs to something else, or cannot be written.
    pub fn ready(self) -> Result<Self, RunFolderError> {
        self.remove_leftovers()?;
        self.refuse_foreign_content()?;
        Ok(self)
    }

    /// Returns the folder that the leader of this rank has opened. This rank writes nothing there.
    pub fn follow(root: &Path) -> Self {
        Self { root: root.to_path_buf(), _lock: None }
    }

    /// Writes the resolved manifest, unless the folder has the manifest of another run.
    ///
    /// `changed` gets both manifests, the earlier one first, and describes the first setting that differs
    /// although it must not change between a run and its continuation.
    ///
    /// # Errors
    /// [`RunFolderError::OtherManifest`], or a failed read or write.
    pub fn claim(
        &self,
        resolved_yaml: &str,
        changed: impl Fn(&str, &str) -> Option<String>,
    ) -> Result<(), RunFolderError> {
        let path = self.manifest();
        match std::fs::read_to_string(&path) {
            // An unchanged manifest is not written again, because a full disk may have no room for it.
            Ok(earlier) if earlier == resolved_yaml => return Ok(()),
            Ok(earlier) => {
                if let Some(difference) = changed(&earlier, resolved_yaml) {
                    return Err(RunFolderError::OtherManifest { path: self.display(), difference });
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(io("read", &path, source)),
        }
        write_atomically(&path, resolved_yaml.as_bytes()).map_err(|source| io("write", &path, source))
    }

    /// Path of the folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Path of the manifest with all defaults filled in.
    pub fn manifest(&self) -> PathBuf {
        self.root.join("manifest.yaml")
    }

    /// Folder of committed checkpoints, such as `step-000020`.
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// Folder of the trained model in Hugging Face's format.
    pub fn export(&self) -> PathBuf {
        self.root.join("export")
    }

    /// Path of the run's result: final step, rewards before and after, exit reason.
    pub fn result(&self) -> PathBuf {
        self.root.join("result.json")
    }

    /// Writes `value` atomically to the file `name` of the folder.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_json(&self, name: &str, value: &serde_json::Value) -> Result<(), RunFolderError> {
        let path = self.root.join(name);
        write_atomically(&path, format!("{value:#}\n").as_bytes())
            .map_err(|source| io("write", &path, source))
    }

    fn display(&self) -> String {
        self.root.display().to_string()
    }

    /// Removes the files of an earlier run, the manifest last, because it identifies the run.
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn clear(&self) -> Result<(), RunFolderError> {
        for name in CONTENT {
            let path = self.root.join(name);
            let removed =
                if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(io("remove", &path, error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes temporary files that a killed process has left.
    fn remove_leftovers(&self) -> Result<(), RunFolderError> {
        let entries =
            std::fs::read_dir(&self.root).map_err(|source| io("list the run folder", &self.root, source))?;
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                let path = entry.path();
                std::fs::remove_file(&path).map_err(|source| io("remove", &path, source))?;
            }
        }
        Ok(())
    }

    fn refuse_foreign_content(&self) -> Result<(), RunFolderError> {
        let entries =
            std::fs::read_dir(&self.root).map_err(|source| io("list the run folder", &self.root, source))?;
        let foreign = entries.flatten().any(|entry| entry.file_name() != ".lock");
        if foreign && !self.manifest().exists() {
            return Err(RunFolderError::Foreign { path: self.display() });
        }
        Ok(())
    }
}

/// Writes a file atomically: a reader sees the old or the new content, never a part, even after a power loss.
///
/// # Errors
/// When the temporary file next to `path` cannot be written, synced or renamed.
pub fn write_atomically(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = new_in(folder, UNFINISHED)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    rlt_files::sync_folder(folder)
}

/// Creates a temporary file with the mode of an ordinary new file, which the user's umask decides. By default
/// a temporary file is readable only by its owner.
pub(crate) fn new_in(folder: &Path, prefix: &str) -> std::io::Result<tempfile::NamedTempFile> {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    tempfile::Builder::new().prefix(prefix).permissions(mode).tempfile_in(folder)
}

fn take_lock(root: &Path) -> Result<File, RunFolderError> {
    let path = root.join(".lock");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|source| io("open the lock", &path, source))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            // The text is for processes that wait. Errors are ignored, so that a run gets its lock even if
            // the disk is full.
            let _ = file.set_len(0).and_then(|()| file.write_all(holder().as_bytes()));
            Ok(file)
        }
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let said = std::fs::read_to_string(&path).unwrap_or_default();
            let holder = if said.is_empty() { "its lock does not say who".to_owned() } else { said };
            Err(RunFolderError::Busy { path: root.display().to_string(), holder, was_waited_for: false })
        }
        Err(error) => Err(io("lock", &path, error.into())),
    }
}

/// Describes this process to others that find the folder locked: attempt, process id and host.
fn holder() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let attempt = std::env::var(rlt_channel::environment::ATTEMPT).unwrap_or_else(|_| "1".to_owned());
    format!("attempt {attempt}, process {} on host {}", std::process::id(), host.trim())
}

fn io(act: &'static str, path: &Path, source: std::io::Error) -> RunFolderError {
    RunFolderError::Io { act, path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(earlier: &str, now: &str) -> Option<String> {
        (earlier != now).then(|| format!("{} there, {} here", earlier.trim(), now.trim()))
    }

    #[test]
    fn a_second_run_in_the_same_folder_is_refused_while_the_first_lives() {
        let temporary = tempfile::tempdir().unwrap();
        let first = RunFolder::open(temporary.path(), false).unwrap();
        let second = RunFolder::open(temporary.path(), false);
        assert!(matches!(second, Err(RunFolderError::Busy { .. })));
        drop(first);
        RunFolder::open(temporary.path(), false).unwrap();
    }

    #[test]
    fn a_lock_that_is_held_is_waited_for_and_its_holder_is_named() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path();
        let mut first = Some(RunFolder::open(root, false).unwrap());
        let mut num_tries = 0;
        let refused = RunFolder::lock_patiently(root, |holder| {
            assert!(holder.contains(&format!("process {}", std::process::id())), "{holder}");
            num_tries += 1;
            num_tries < 5
        });
        let error = refused.unwrap_err();
        assert!(matches!(&error, RunFolderError::Busy { was_waited_for: true, .. }), "{error}");
        assert!(error.to_string().contains("attempt 1, process"), "{error}");
        let impatient = RunFolder::lock_patiently(root, |_| false).unwrap_err();
        assert!(matches!(impatient, RunFolderError::Busy { was_waited_for: false, .. }));
        // The holder's lease ends.
        let second = RunFolder::lock_patiently(root, |_| {
            drop(first.take());
            true
        });
        second.unwrap().ready().unwrap();
    }

    #[test]
    fn a_different_manifest_is_refused_and_the_difference_is_named() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(temporary.path(), false).unwrap();
        folder.claim("seed: 1\n", changed).unwrap();
        folder.claim("seed: 1\n", changed).unwrap();
        let error = folder.claim("seed: 2\n", changed).unwrap_err();
        assert!(error.to_string().contains("(first difference: seed: 1 there, seed: 2 here)"), "{error}");
        assert_eq!(std::fs::read_to_string(folder.manifest()).unwrap(), "seed: 1\n");
        folder.claim("seed: 3\n", |_, _| None).unwrap();
        assert_eq!(std::fs::read_to_string(folder.manifest()).unwrap(), "seed: 3\n");
    }

    #[test]
    fn overwrite_removes_only_the_files_of_a_run() {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::write(temporary.path().join("metrics.jsonl"), "{}").unwrap();
        std::fs::create_dir(temporary.path().join("checkpoints")).unwrap();
        std::fs::write(temporary.path().join("notes.txt"), "mine").unwrap();
        RunFolder::open(temporary.path(), true).unwrap();
        assert!(!temporary.path().join("metrics.jsonl").exists());
        assert!(!temporary.path().join("checkpoints").exists());
        assert!(temporary.path().join("notes.txt").exists());
    }

    #[test]
    fn leftovers_of_a_killed_run_are_removed_and_do_not_count_as_foreign_files() {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::write(temporary.path().join(".new-Xy12"), "steps: 1\nse").unwrap();
        let folder = RunFolder::open(temporary.path(), false).unwrap();
        folder.claim("steps: 1\nseed: 1\n", changed).unwrap();
        assert!(!temporary.path().join(".new-Xy12").exists());
    }

    #[test]
    fn a_folder_that_no_run_made_is_left_alone() {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::write(temporary.path().join("thesis.tex"), "").unwrap();
        let refused = RunFolder::open(temporary.path(), false);
        assert!(matches!(refused, Err(RunFolderError::Foreign { .. })));
    }
}
