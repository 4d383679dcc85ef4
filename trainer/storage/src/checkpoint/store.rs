//! The folder of all checkpoints of a run: commit, choice of the newest complete one, retention.
//!
//! The folder itself is the only list of checkpoints: a list in memory would not survive a restart, and one
//! in a file could disagree with the folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::identity::RunIdentity;
use super::load::{self, Checkpoint};
use super::order::{SaveOrder, folder_name, save_order, step_of};
use super::remote::{self, CopyError, Uploads};
use super::save::{self, UnsyncedShard, WrittenShard};
use super::shard::CheckpointShard;
use super::storage::{FileSystem, Storage};
use super::{CheckpointContent, CheckpointError};

/// Prefix of a temporary folder into which a checkpoint is written.
const SAVING: &str = ".saving-";
/// Prefix of a marker folder, by which processes find out whether they share the folder of checkpoints.
const SIGN: &str = ".shared-";
/// Prefix of a folder that a newer checkpoint of the same step has replaced.
const REPLACED: &str = ".replaced-";
/// Prefix of a folder that is being removed.
const REMOVING: &str = ".removing-";

/// Folder of the checkpoints of one run.
pub struct CheckpointStore {
    dir: PathBuf,
    keep: usize,
    storage: Box<dyn Storage>,
    resumed_from: Option<PathBuf>,
    /// Step whose checkpoint is never removed.
    protected: Option<u64>,
    copies: Option<Copies>,
}

/// Uploads of committed checkpoints to another address.
struct Copies {
    uri: String,
    /// Run to which the copies belong.
    run: RunIdentity,
    uploads: Uploads,
}

/// A checkpoint that was saved by this process.
#[derive(Debug)]
pub struct Saved {
    /// Path of the committed folder.
    pub path: PathBuf,
    /// Total size of its files in bytes.
    pub num_bytes: u64,
}

/// The newest complete checkpoint, and the reasons why newer ones were skipped.
#[derive(Debug)]
pub struct Latest {
    /// Newest complete checkpoint; `None` if there is none.
    pub checkpoint: Option<Checkpoint>,
    /// Error of every damaged checkpoint that was skipped, each naming the file.
    pub skipped: Vec<CheckpointError>,
}

/// A committed checkpoint, described by its manifest. Its files were not verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedCheckpoint {
    /// Number of finished steps, which names the checkpoint.
    pub step: u64,
    /// Path of the committed folder.
    pub path: PathBuf,
    /// SHA-256 of its manifest, hexadecimal.
    pub digest: String,
    /// Number of files with tensors, one for each rank that wrote.
    pub num_shards: u32,
    /// Time at which the checkpoint was written.
    pub time: SystemTime,
}

impl CheckpointStore {
    /// Opens the folder `dir`, creates it if it does not exist, and removes leftovers of a crash. After each
    /// save the newest `keep` checkpoints are kept, at least one.
    ///
    /// # Errors
    /// When the folder cannot be created, listed or cleaned.
    pub fn open(dir: &Path, keep: usize) -> Result<Self, CheckpointError> {
        Self::with_storage(dir, keep, Box::new(FileSystem))
    }

    /// Returns a view of the folder `dir` for a rank whose leader has opened it. It writes shards there and
    /// removes nothing.
    pub fn follow(dir: &Path) -> Self {
        Self {
            dir: dir.to_path_buf(),
            keep: usize::MAX,
            storage: Box::new(FileSystem),
            resumed_from: None,
            protected: None,
            copies: None,
        }
    }

    /// Creates a marker folder, by which other processes see that they share the folder of checkpoints.
    /// Returns its name.
    ///
    /// # Errors
    /// When the marker folder cannot be created.
    pub fn leave_sign(&self) -> Result<String, CheckpointError> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name = format!("{SIGN}{}-{}", std::process::id(), since.as_nanos());
        let path = self.dir.join(&name);
        self.storage.create_dir(&path).map_err(CheckpointError::folder("create folder", &path))?;
        Ok(name)
    }

    /// Whether process `writer_idx` finds the marker folder `name` and may write there. It tries by creating
    /// a folder inside.
    pub fn sees_sign(&self, name: &str, writer_idx: usize) -> bool {
        self.storage.create_dir(&self.dir.join(name).join(writer_idx.to_string())).is_ok()
    }

    /// Removes the marker folder; errors are ignored.
    pub fn remove_sign(&self, name: &str) {
        // Leftovers are removed at the next open.
        let _ = self.storage.remove_dir_all(&self.dir.join(name));
    }

    pub(super) fn with_storage(
        dir: &Path,
        keep: usize,
        storage: Box<dyn Storage>,
    ) -> Result<Self, CheckpointError> {
        fs::create_dir_all(dir).map_err(CheckpointError::folder("create folder", dir))?;
        let store = Self {
            dir: dir.to_path_buf(),
            keep: keep.max(1),
            storage,
            resumed_from: None,
            protected: None,
            copies: None,
        };
        store.remove_leftovers()?;
        Ok(store)
    }

    /// Copies later checkpoints of `run` to `uri` on a separate thread, and keeps the same number of copies.
    ///
    /// # Errors
    /// [`CopyError`] for an invalid address.
    pub fn copied_to(self, uri: &str, run: &RunIdentity) -> Result<Self, CopyError> {
        let uploads = Uploads::start(uri, self.keep, run)?;
        let copies = Copies { uri: uri.to_owned(), run: run.clone(), uploads };
        Ok(Self { copies: Some(copies), ..self })
    }

    /// Protects the committed checkpoint of `step` from removal, instead of that of an earlier call. The copy
    /// of the earlier checkpoint stays protected until `step` has a copy.
    pub fn protect(&mut self, step: Option<u64>) {
        self.protected = step;
        if let (Some(copies), Some(step)) = (&self.copies, step) {
            copies.uploads.protect(step, &self.dir.join(folder_name(step)));
        }
    }

    /// Downloads the newest complete copy if it is newer than all local checkpoints; returns messages for the
    /// user.
    ///
    /// # Errors
    /// When the object store cannot be reached or rejects the credentials, or the copies belong to another
    /// run.
    pub fn fetch_newer(&self) -> Result<Vec<String>, CopyError> {
        let Some(Copies { uri, run, .. }) = &self.copies else { return Ok(Vec::new()) };
        let here = self.newest_first()?.into_iter().find_map(|(_, order)| order.ok());
        remote::fetch_newer(uri.as_str(), run, &self.dir, here.map(|(save_index, _)| save_index))
    }

    /// Newest step that has a complete copy; `None` without copies.
    pub fn copied_step(&self) -> Option<u64> {
        self.copies.as_ref().and_then(|copies| copies.uploads.copied_step())
    }

    /// Waits for the copy of the newest checkpoint. Gives up `timeout` after the object store has last
    /// received bytes.
    ///
    /// # Errors
    /// [`CopyError::NotCopied`]; the checkpoint itself is unchanged.
    pub fn finish_copies(&self, timeout: Duration) -> Result<(), CopyError> {
        self.copies.as_ref().map_or(Ok(()), |copies| copies.uploads.finish(timeout))
    }

    /// Writes and commits a checkpoint of `step` finished steps whose tensors this process has in full; see
    /// [`Self::commit`].
    ///
    /// # Errors
    /// As [`Self::begin`], [`Self::write`], [`UnsyncedShard::complete`] and [`Self::commit`]; the incomplete
    /// checkpoint is then removed.
    pub fn save(&mut self, step: u64, content: &CheckpointContent) -> Result<Saved, CheckpointError> {
        let tensors = content.tensors.iter();
        let parts: Vec<CheckpointShard> = tensors
            .map(|(name, tensor)| CheckpointShard::full(name.clone(), tensor.shallow_clone()))
            .collect();
        self.begin(step)?;
        let written = self.write(step, 0, parts).and_then(UnsyncedShard::complete);
        match written {
            Ok(shard) => self.commit(step, vec![shard], &content.state),
            Err(error) => {
                self.abandon(step);
                Err(error)
            }
        }
    }

    /// Creates the temporary folder of a checkpoint of `step` finished steps, into which processes then write
    /// their shards.
    ///
    /// # Errors
    /// When leftovers of an earlier save cannot be removed, or the folder cannot be created.
    pub fn begin(&self, step: u64) -> Result<(), CheckpointError> {
        let (storage, temporary) = (&*self.storage, self.temporary(step));
        if temporary.exists() {
            storage
                .remove_dir_all(&temporary)
                .map_err(CheckpointError::folder("remove folder", &temporary))?;
        }
        storage.create_dir(&temporary).map_err(CheckpointError::folder("create folder", &temporary))
    }

    /// Writes the pieces of process `writer_idx` into the page cache. The tensors may change afterwards; the
    /// file is synced later by [`UnsyncedShard::complete`].
    ///
    /// # Errors
    /// When the file cannot be written, for example because the disk is full, when a tensor's dtype cannot be
    /// stored, or when two tensors share a name.
    pub fn write(
        &self,
        step: u64,
        writer_idx: usize,
        parts: Vec<CheckpointShard>,
    ) -> Result<UnsyncedShard, CheckpointError> {
        let name = save::shard_name(writer_idx);
        UnsyncedShard::write(&*self.storage, &self.temporary(step), name, parts)
    }

    /// Commits the checkpoint of `step` that all processes have written, then removes the oldest checkpoints
    /// beyond `keep`. A checkpoint of the same step is replaced. After an error the temporary folder is
    /// removed if possible, all earlier checkpoints are unchanged, and the store can be used again.
    ///
    /// # Errors
    /// When a file or folder cannot be written, or a piece of a tensor is missing.
    pub fn commit(
        &mut self,
        step: u64,
        shards: Vec<WrittenShard>,
        state: &serde_json::Value,
    ) -> Result<Saved, CheckpointError> {
        let (temporary, path) = (self.temporary(step), self.dir.join(folder_name(step)));
        let written = self.complete_and_rename(step, shards, state, &temporary, &path);
        if written.is_err() {
            self.abandon(step);
        }
        let saved = Saved { num_bytes: written?, path };
        if let Some(copies) = &self.copies {
            copies.uploads.request(step, &saved.path);
        }
        if let Err(error) = self.remove_old() {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to delete an old checkpoint");
        }
        Ok(saved)
    }

    /// Removes an uncommitted save of `step`; errors are ignored.
    pub fn abandon(&self, step: u64) {
        let temporary = self.temporary(step);
        if temporary.exists() {
            // Leftovers are removed at the next open.
            let _ = self.storage.remove_dir_all(&temporary);
        }
    }

    /// Returns the newest checkpoint whose files are all verified. This store never removes it from now on,
    /// because the run needs it until it has saved a checkpoint of its own.
    ///
    /// # Errors
    /// When the folder cannot be listed. Damaged checkpoints are reported in [`Latest::skipped`] instead.
    pub fn latest_complete(&mut self) -> Result<Latest, CheckpointError> {
        let mut skipped = Vec::new();
        for (path, order) in self.newest_first()? {
            match order.and_then(|_| Checkpoint::open(&path)) {
                Ok(checkpoint) => {
                    if let Some(copies) = &self.copies {
                        // The run that saved the checkpoint may have ended before its copy was complete.
                        copies.uploads.request(checkpoint.step(), &path);
                    }
                    self.resumed_from = Some(path);
                    return Ok(Latest { checkpoint: Some(checkpoint), skipped });
                }
                Err(error) => skipped.push(error),
            }
        }
        Ok(Latest { checkpoint: None, skipped })
    }

    /// Returns every committed checkpoint with a readable manifest, in the order in which they were saved. A
    /// restart continues from the last one.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn committed(&self) -> Result<Vec<CommittedCheckpoint>, CheckpointError> {
        let candidates = self.newest_first()?;
        let readable = candidates.into_iter().rev().filter(|(_, order)| order.is_ok());
        Ok(readable.filter_map(|(path, _)| committed_checkpoint(path).ok()).collect())
    }

    /// Opens and verifies the checkpoint in the folder `path`, inside or outside of this store, which never
    /// removes it from now on.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn checkpoint_at(&mut self, path: &Path) -> Result<Checkpoint, CheckpointError> {
        let checkpoint = Checkpoint::open(path)?;
        self.resumed_from = Some(path.to_path_buf());
        Ok(checkpoint)
    }

    fn complete_and_rename(
        &self,
        step: u64,
        shards: Vec<WrittenShard>,
        state: &serde_json::Value,
        temporary: &Path,
        path: &Path,
    ) -> Result<u64, CheckpointError> {
        let (storage, save_index) = (&*self.storage, self.next_save_index()?);
        let num_bytes = save::write_manifest(storage, temporary, step, save_index, shards, state)?;
        self.rename(temporary, path)?;
        storage.sync_dir(&self.dir).map_err(CheckpointError::folder("sync folder", &self.dir))?;
        Ok(num_bytes)
    }

    /// Renames the finished folder to its final name.
    fn rename(&self, temporary: &Path, path: &Path) -> Result<(), CheckpointError> {
        let storage = &*self.storage;
        if !path.exists() {
            return storage
                .rename(temporary, path)
                .map_err(CheckpointError::folder("rename folder", temporary));
        }
        let swapped = match storage.exchange(temporary, path) {
            // Two renames replace the folder. Between them only the checkpoints of other steps are visible;
            // after a crash there, `open` restores the replaced one.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                let replaced = self.sibling(REPLACED, path);
                storage
                    .rename(path, &replaced)
                    .and_then(|()| storage.rename(temporary, path))
                    .and_then(|()| storage.remove_dir_all(&replaced))
            }
            Ok(()) => storage.remove_dir_all(temporary),
            failed => failed,
        };
        swapped.map_err(CheckpointError::folder("replace folder", path))
    }

    fn remove_old(&self) -> Result<(), CheckpointError> {
        let complete = self.newest_first()?.into_iter().filter(|(_, order)| order.is_ok());
        for (path, order) in complete.skip(self.keep) {
            let is_copied = |copies: &Copies| !copies.uploads.needs(&path);
            if self.resumed_from.as_deref() == Some(&*path) || !self.copies.as_ref().is_none_or(is_copied) {
                continue;
            }
            if order.is_ok_and(|(_, step)| self.protected == Some(step)) {
                continue;
            }
            // The folder is renamed first, so that a partly removed checkpoint never looks like a complete
            // one.
            let removing = self.sibling(REMOVING, &path);
            let removed = self.storage.rename(&path, &removing);
            removed
                .and_then(|()| self.storage.remove_dir_all(&removing))
                .map_err(CheckpointError::folder("remove folder", &path))?;
        }
        Ok(())
    }

    fn remove_leftovers(&self) -> Result<(), CheckpointError> {
        for (path, name) in self.entries()? {
            if let Some(original) = name.strip_prefix(REPLACED).map(|original| self.dir.join(original))
                && !original.exists()
            {
                let restored = self.storage.rename(&path, &original);
                restored.map_err(CheckpointError::folder("rename folder", &path))?;
            } else if [SAVING, SIGN, REPLACED, REMOVING, remote::FETCHING]
                .iter()
                .any(|prefix| name.starts_with(prefix))
            {
                let removed = self.storage.remove_dir_all(&path);
                removed.map_err(CheckpointError::folder("remove folder", &path))?;
            }
        }
        Ok(())
    }

    fn next_save_index(&self) -> Result<u64, CheckpointError> {
        let newest = self.newest_first()?.into_iter().find_map(|(_, order)| order.ok());
        Ok(newest.map_or(0, |(save_index, _)| save_index) + 1)
    }

    /// Returns all committed folders: unreadable ones first, then by save index and step, newest first.
    fn newest_first(&self) -> Result<Vec<Candidate>, CheckpointError> {
        let folders = self.entries()?.into_iter().filter_map(|(path, name)| Some((path, step_of(&name)?)));
        let mut ordered: Vec<_> = folders.map(|(path, step)| (save_order(&path, step), path)).collect();
        ordered.sort_by_key(|(order, _)| {
            std::cmp::Reverse(order.as_ref().map_or((u64::MAX, 0), |&order| order))
        });
        Ok(ordered.into_iter().map(|(order, path)| (path, order)).collect())
    }

    fn entries(&self) -> Result<Vec<(PathBuf, String)>, CheckpointError> {
        let list = || -> io::Result<Vec<_>> {
            fs::read_dir(&self.dir)?
                .map(|entry| entry.map(|entry| (entry.path(), entry.file_name())))
                .collect()
        };
        let entries = list().map_err(CheckpointError::folder("list folder", &self.dir))?;
        Ok(entries.into_iter().filter_map(|(path, name)| Some((path, name.into_string().ok()?))).collect())
    }

    /// Temporary folder into which a checkpoint is written.
    fn temporary(&self, step: u64) -> PathBuf {
        self.dir.join(format!("{SAVING}{}", folder_name(step)))
    }

    fn sibling(&self, prefix: &str, path: &Path) -> PathBuf {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.dir.join(format!("{prefix}{name}"))
    }
}

/// A committed folder with its sort key, or the error of reading its manifest.
type Candidate = (PathBuf, Result<SaveOrder, CheckpointError>);

fn committed_checkpoint(path: PathBuf) -> Result<CommittedCheckpoint, CheckpointError> {
    let manifest_path = path.join(super::manifest::FILE_NAME);
    let metadata = fs::metadata(&manifest_path).and_then(|metadata| metadata.modified());
    let time = metadata.map_err(CheckpointError::read(&manifest_path))?;
    let manifest = load::read_manifest(&path)?;
    let shards = manifest.files.keys().filter(|name| *name != super::manifest::STATE_FILE_NAME);
    let num_shards = u32::try_from(shards.count()).unwrap_or(u32::MAX);
    Ok(CommittedCheckpoint { step: manifest.step, path, digest: manifest.sha256, num_shards, time })
}
