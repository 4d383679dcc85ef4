//! The folder of all checkpoints of a run: commit, choice of the newest complete one, retention.
//!
//! The folder itself is the only record; a list kept in memory would be forgotten by a restart.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::copies::{self, CopyError, Uploads};
use super::identity::RunIdentity;
use super::load::{self, Checkpoint};
use super::order::{SaveOrder, folder_name, save_order, step_of};
use super::part::TensorPart;
use super::save::{self, UnsyncedShard, WrittenShard};
use super::storage::{FileSystem, Storage};
use super::{CheckpointContent, CheckpointError};

/// A folder being written.
const SAVING: &str = ".saving-";
/// A sign by which processes see that they share the folder.
const SIGN: &str = ".shared-";
/// A folder that lost its place to a newer one of the same step.
const REPLACED: &str = ".replaced-";
/// A folder being removed.
const REMOVING: &str = ".removing-";

/// The checkpoints of one run.
pub struct CheckpointStore {
    dir: PathBuf,
    keep: usize,
    storage: Box<dyn Storage>,
    resumed_from: Option<PathBuf>,
    /// The step whose checkpoint stays however old it is.
    protected: Option<u64>,
    copies: Option<Copies>,
}

/// Uploads of committed checkpoints to another address.
struct Copies {
    uri: String,
    /// The run to which they belong.
    run: RunIdentity,
    uploads: Uploads,
}

/// The result of a save.
#[derive(Debug)]
pub struct Saved {
    /// The committed folder.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub num_bytes: u64,
}

/// The newest checkpoint that is complete, and why newer ones are not it.
#[derive(Debug)]
pub struct Latest {
    /// None where no checkpoint is complete.
    pub checkpoint: Option<Checkpoint>,
    /// One error for every damaged checkpoint that was passed over, each naming the file.
    pub skipped: Vec<CheckpointError>,
}

/// A checkpoint that exists, as its manifest describes it; its bytes were not read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedCheckpoint {
    /// Number of finished steps, which names the checkpoint.
    pub step: u64,
    /// The committed folder.
    pub path: PathBuf,
    /// SHA-256 of its manifest, hexadecimal.
    pub digest: String,
    /// Files of tensors, one of each rank that has written.
    pub num_shards: u32,
    /// Time at which it was written.
    pub time: SystemTime,
}

impl CheckpointStore {
    /// Opens the folder `dir`, creating it where missing, and removes leftovers of a crash. After
    /// each save the newest `keep` checkpoints stay, at least one.
    ///
    /// # Errors
    /// The folder cannot be created, listed or cleaned.
    pub fn open(dir: &Path, keep: usize) -> Result<Self, CheckpointError> {
        Self::with_storage(dir, keep, Box::new(FileSystem))
    }

    /// The folder `dir` as a rank sees it whose leader has opened it: it writes shards there, and removes
    /// nothing.
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

    /// Leaves a sign in the folder by which other processes see that theirs is the same one; its name.
    ///
    /// # Errors
    /// The sign cannot be left.
    pub fn leave_sign(&self) -> Result<String, CheckpointError> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name = format!("{SIGN}{}-{}", std::process::id(), since.as_nanos());
        let path = self.dir.join(&name);
        self.storage.create_dir(&path).map_err(CheckpointError::folder("create folder", &path))?;
        Ok(name)
    }

    /// Whether process `writer_idx` finds the sign `name` in its folder and may write there.
    pub fn sees_sign(&self, name: &str, writer_idx: usize) -> bool {
        self.storage.create_dir(&self.dir.join(name).join(writer_idx.to_string())).is_ok()
    }

    /// Removes the sign, as far as that is possible.
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

    /// Copies later checkpoints of `run` to `uri`, beside the training, and keeps as many there.
    ///
    /// # Errors
    /// [`CopyError`] for an address that cannot work.
    pub fn copied_to(self, uri: &str, run: &RunIdentity) -> Result<Self, CopyError> {
        let uploads = Uploads::start(uri, self.keep, run)?;
        let copies = Copies { uri: uri.to_owned(), run: run.clone(), uploads };
        Ok(Self { copies: Some(copies), ..self })
    }

    /// Protects the committed checkpoint of `step` from removal, and that of an earlier call no more. Of
    /// copies, that of the earlier call is protected until `step` has its own.
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
    /// The store cannot be reached or refuses, or the copies belong to another run.
    pub fn fetch_newer(&self) -> Result<Vec<String>, CopyError> {
        let Some(Copies { uri, run, .. }) = &self.copies else { return Ok(Vec::new()) };
        let here = self.newest_first()?.into_iter().find_map(|(_, order)| order.ok());
        copies::fetch_newer(uri.as_str(), run, &self.dir, here.map(|(save_index, _)| save_index))
    }

    /// The newest step that has a copy; `None` where there is no such place, or nothing in it yet.
    pub fn copied_step(&self) -> Option<u64> {
        self.copies.as_ref().and_then(|copies| copies.uploads.copied_step())
    }

    /// Waits for the copy of the newest checkpoint for as long as it advances, and `patience` longer.
    ///
    /// # Errors
    /// [`CopyError::NotCopied`]; the checkpoint itself is as it was.
    pub fn finish_copies(&self, patience: Duration) -> Result<(), CopyError> {
        self.copies.as_ref().map_or(Ok(()), |copies| copies.uploads.finish(patience))
    }

    /// Writes a checkpoint of `step` finished steps that this process has all of, and commits it; see
    /// [`Self::commit`].
    ///
    /// # Errors
    /// As [`Self::begin`], [`Self::write`], [`UnsyncedShard::complete`] and [`Self::commit`]; nothing is left
    /// of it then.
    pub fn save(&mut self, step: u64, content: &CheckpointContent) -> Result<Saved, CheckpointError> {
        let tensors = content.tensors.iter();
        let parts: Vec<TensorPart> =
            tensors.map(|(name, tensor)| TensorPart::whole(name.clone(), tensor.shallow_clone())).collect();
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

    /// Makes room for a checkpoint of `step` finished steps: only then may processes write their shards.
    ///
    /// # Errors
    /// Leftovers of an earlier save cannot be removed, or the folder not be created.
    pub fn begin(&self, step: u64) -> Result<(), CheckpointError> {
        let (storage, temporary) = (&*self.storage, self.temporary(step));
        if temporary.exists() {
            storage
                .remove_dir_all(&temporary)
                .map_err(CheckpointError::folder("remove folder", &temporary))?;
        }
        storage.create_dir(&temporary).map_err(CheckpointError::folder("create folder", &temporary))
    }

    /// Writes the pieces of process `writer_idx` into the page cache: syncing can wait
    /// ([`UnsyncedShard::complete`]), and the tensors may change.
    ///
    /// # Errors
    /// The file cannot be written, for example because the disk is full; a tensor has no storable dtype; two
    /// tensors share a name.
    pub fn write(
        &self,
        step: u64,
        writer_idx: usize,
        parts: Vec<TensorPart>,
    ) -> Result<UnsyncedShard, CheckpointError> {
        let name = save::shard_name(writer_idx);
        UnsyncedShard::write(&*self.storage, &self.temporary(step), name, parts)
    }

    /// Commits the checkpoint of `step` that all processes have written; then removes the oldest ones beyond
    /// `keep`. A checkpoint of the same step is replaced. On an error the temporary folder is removed as far
    /// as possible, every earlier checkpoint is as it was, and the store can be used again.
    ///
    /// # Errors
    /// A file or folder cannot be written; a piece of a tensor is missing.
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
            copies.uploads.offer(step, &saved.path);
        }
        if let Err(error) = self.remove_old() {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to delete an old checkpoint");
        }
        Ok(saved)
    }

    /// Removes an uncommitted save of `step`, as far as possible.
    pub fn abandon(&self, step: u64) {
        let temporary = self.temporary(step);
        if temporary.exists() {
            // Leftovers are removed at the next open.
            let _ = self.storage.remove_dir_all(&temporary);
        }
    }

    /// The newest checkpoint whose every byte is right. From now on this store never removes it, because the
    /// run needs it until it has saved one of its own.
    ///
    /// # Errors
    /// The folder cannot be listed. Damaged checkpoints are no error here: they are in [`Latest::skipped`].
    pub fn latest_complete(&mut self) -> Result<Latest, CheckpointError> {
        let mut skipped = Vec::new();
        for (path, order) in self.newest_first()? {
            match order.and_then(|_| Checkpoint::open(&path)) {
                Ok(checkpoint) => {
                    if let Some(copies) = &self.copies {
                        // A run that ended early may have left it without one.
                        copies.uploads.offer(checkpoint.step(), &path);
                    }
                    self.resumed_from = Some(path);
                    return Ok(Latest { checkpoint: Some(checkpoint), skipped });
                }
                Err(error) => skipped.push(error),
            }
        }
        Ok(Latest { checkpoint: None, skipped })
    }

    /// Every checkpoint that exists and has a manifest that can be read, in the order in which they were
    /// saved: the last one is the one that a restart continues from.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn committed(&self) -> Result<Vec<CommittedCheckpoint>, CheckpointError> {
        let candidates = self.newest_first()?;
        let readable = candidates.into_iter().rev().filter(|(_, order)| order.is_ok());
        Ok(readable.filter_map(|(path, _)| committed_checkpoint(path).ok()).collect())
    }

    /// Opens and verifies one checkpoint by its folder, inside or outside of this store. From now on this
    /// store never removes it.
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

    /// Gives the finished folder its name.
    fn rename(&self, temporary: &Path, path: &Path) -> Result<(), CheckpointError> {
        let storage = &*self.storage;
        if !path.exists() {
            return storage
                .rename(temporary, path)
                .map_err(CheckpointError::folder("rename folder", temporary));
        }
        let swapped = match storage.exchange(temporary, path) {
            // Two renames: between them only the earlier checkpoints are visible, and `open` puts this one
            // back.
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
            // Out of sight first: a half-removed checkpoint must never look like one.
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
            } else if [SAVING, SIGN, REPLACED, REMOVING, copies::FETCHING]
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

    /// All committed folders, unreadable ones first, then by save index and step from the newest on.
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

    /// The folder in which a checkpoint is written.
    fn temporary(&self, step: u64) -> PathBuf {
        self.dir.join(format!("{SAVING}{}", folder_name(step)))
    }

    fn sibling(&self, prefix: &str, path: &Path) -> PathBuf {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.dir.join(format!("{prefix}{name}"))
    }
}

/// A committed folder and its place in the order, or why its manifest cannot be read.
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
