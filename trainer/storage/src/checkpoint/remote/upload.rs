//! Uploads the newest checkpoint to the store, on a separate thread, with retries.
//!
//! If the object store is slower than the training, it gets fewer checkpoints, always the newest. Failed
//! uploads are retried. The only cost for the training is a local checkpoint folder that is kept until its
//! copy is complete.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use super::super::order::{order_of, step_of};
use super::super::{RunIdentity, load, manifest};
use super::CopyError;
use super::error::with_causes;
use super::fetch::runtime;
use super::store::RemoteStore;

/// Pause before the first retry; it doubles with every further failure.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Longest pause between two retries.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// Interval of polls for the progress of the last copy.
const POLL: Duration = Duration::from_millis(20);

/// Save index of a folder without a manifest; real save indices begin at 1.
const CUT_OFF: u64 = 0;

/// The uploading thread and its progress.
pub(in super::super) struct Uploads {
    shared: Arc<Shared>,
    sent: Arc<AtomicU64>,
    uri: String,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Default)]
struct State {
    /// Newest checkpoint without a copy; `None` if there is none.
    wanted: Option<UploadRequest>,
    /// Checkpoint that is being copied.
    current: Option<UploadRequest>,
    /// Newest step that has a complete copy.
    copied: Option<u64>,
    /// Last failure since the last complete copy.
    failure: Option<String>,
    /// Description of how the run that now owns the prefix differs from this one.
    other_run: Option<String>,
    /// Whether the run is ending and waits for the last copy, so that pauses no longer grow.
    is_ending: bool,
    /// Step whose copy is never removed.
    protected: Option<u64>,
    /// Checkpoint whose copy is protected from removal once it is complete.
    best: Option<UploadRequest>,
    /// Number of checkpoints offered so far.
    num_requests: u64,
    /// Number of the newest request that has a complete copy.
    copied_request: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct UploadRequest {
    /// Number of the request, from 1; 0 for a checkpoint of an earlier process.
    number: u64,
    step: u64,
    folder: PathBuf,
}

impl Uploads {
    /// Starts the thread. The newest `keep` copies are kept in the object store.
    ///
    /// # Errors
    /// [`CopyError`] for an invalid address; no request is sent yet.
    pub(in super::super) fn start(uri: &str, keep: usize, run: &RunIdentity) -> Result<Self, CopyError> {
        Self::with_remote(RemoteStore::open(uri)?, keep, run)
    }

    pub(super) fn with_remote(
        remote: RemoteStore,
        keep: usize,
        run: &RunIdentity,
    ) -> Result<Self, CopyError> {
        let shared = Arc::new(Shared::default());
        let uploads = Self { shared: shared.clone(), sent: remote.sent(), uri: remote.uri().to_owned() };
        let runtime = runtime()?;
        let mut copier = Copier { remote, run: run.clone(), keep: keep.max(1), known: BTreeMap::new() };
        // The thread is never joined, because a store that hangs must not delay the end of the run.
        let thread = std::thread::Builder::new().name("copy checkpoints".into());
        thread.spawn(move || copier.copy_all(&shared, &runtime)).map_err(CopyError::Thread)?;
        Ok(uploads)
    }

    /// Requests a copy of the committed checkpoint in `folder`. An older request that still waits is dropped.
    pub(in super::super) fn request(&self, step: u64, folder: &Path) {
        let mut state = self.shared.lock();
        state.num_requests += 1;
        state.wanted = Some(UploadRequest { number: state.num_requests, step, folder: folder.to_path_buf() });
        self.shared.changed.notify_all();
    }

    /// Protects the copy of `step` from removal. Its checkpoint in `folder` is copied even if newer ones are
    /// offered meanwhile. Until the copy is complete, the copy that was protected before stays protected.
    pub(in super::super) fn protect(&self, step: u64, folder: &Path) {
        let mut state = self.shared.lock();
        if state.copied == Some(step) || !folder.exists() {
            (state.protected, state.best) = (Some(step), None);
            return;
        }
        // If no step is protected yet, this one is at once: an earlier process may have uploaded its copy.
        state.protected.get_or_insert(step);
        let offered =
            [&state.wanted, &state.current].into_iter().flatten().find(|request| request.step == step);
        let fresh = || UploadRequest { number: 0, step, folder: folder.to_path_buf() };
        state.best = Some(offered.cloned().unwrap_or_else(fresh));
        self.shared.changed.notify_all();
    }

    /// Whether a folder must be kept because its copy is not complete.
    pub(in super::super) fn needs(&self, folder: &Path) -> bool {
        let state = self.shared.lock();
        let mut missing = [&state.wanted, &state.current, &state.best].into_iter().flatten();
        missing.any(|request| request.folder == folder && state.copied != Some(request.step))
    }

    /// Newest step that has a complete copy.
    pub(in super::super) fn copied_step(&self) -> Option<u64> {
        self.shared.lock().copied
    }

    /// Waits until the newest checkpoint is copied and older copies are removed. Gives up `timeout` after
    /// the object store has last received bytes; the next run then removes the older copies.
    ///
    /// # Errors
    /// [`CopyError::NotCopied`] with the last failure.
    pub(in super::super) fn finish(&self, timeout: Duration) -> Result<(), CopyError> {
        let (mut sent, mut moved) = (self.sent.load(Ordering::Relaxed), Instant::now());
        self.shared.lock().is_ending = true;
        self.shared.changed.notify_all();
        loop {
            let state = self.shared.lock().clone();
            let Some(request) = state.wanted.or(state.current).or(state.best) else { return Ok(()) };
            if let Some(difference) = state.other_run {
                return Err(CopyError::OtherRun { uri: self.uri.clone(), difference });
            }
            let now_sent = self.sent.load(Ordering::Relaxed);
            if now_sent != sent {
                (sent, moved) = (now_sent, Instant::now());
            }
            if moved.elapsed() >= timeout {
                if state.copied == Some(request.step) {
                    return Ok(());
                }
                let waited = || format!("nothing moved for {} s", timeout.as_secs());
                let reason = state.failure.unwrap_or_else(waited);
                return Err(CopyError::NotCopied { step: request.step, uri: self.uri.clone(), reason });
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a checkpoint to copy.
    fn next(&self) -> UploadRequest {
        let mut state = self.lock();
        loop {
            if let Some(request) = state.wanted.take().or_else(|| state.best.clone()) {
                state.current = Some(request.clone());
                return request;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn succeeded(&self, request: &UploadRequest) {
        let mut state = self.lock();
        (state.failure, state.other_run) = (None, None);
        if request.number >= state.copied_request {
            (state.copied, state.copied_request) = (Some(request.step), request.number);
        }
        if state.best.as_ref().is_some_and(|best| best.step == request.step) {
            (state.protected, state.best) = (Some(request.step), None);
        }
    }

    fn protected(&self) -> Option<u64> {
        self.lock().protected
    }

    fn swept(&self) {
        self.lock().current = None;
    }

    /// Queues a failed request again and waits up to `delay` for a newer one, unless a newer one is queued
    /// already.
    fn failed(&self, request: UploadRequest, failure: &CopyError, delay: Duration) {
        let mut state = self.lock();
        state.current = None;
        state.failure = Some(with_causes(failure));
        state.other_run = match failure {
            CopyError::OtherRun { difference, .. } => Some(difference.clone()),
            _ => None,
        };
        if state.wanted.is_none() {
            state.wanted = Some(request.clone());
            let was_ending = state.is_ending;
            let delay = if was_ending { FIRST_DELAY } else { delay };
            let is_still =
                |state: &mut State| state.wanted.as_ref() == Some(&request) && state.is_ending == was_ending;
            drop(
                self.changed
                    .wait_timeout_while(state, delay, is_still)
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
    }
}

/// State of the uploading thread.
struct Copier {
    remote: RemoteStore,
    run: RunIdentity,
    keep: usize,
    /// Save index of every complete copy, by the name of its folder.
    known: BTreeMap<String, u64>,
}

impl Copier {
    fn copy_all(&mut self, shared: &Shared, runtime: &Runtime) {
        let mut delay = FIRST_DELAY;
        loop {
            let request = shared.next();
            match runtime.block_on(self.copy(&request.folder)) {
                Ok(()) => {
                    delay = FIRST_DELAY;
                    shared.succeeded(&request);
                    if let Err(error) = runtime.block_on(self.remove_old(shared.protected())) {
                        tracing::warn!(
                            "failed to delete an old copy of a checkpoint: {}",
                            with_causes(&error)
                        );
                    }
                    shared.swept();
                }
                Err(error) => {
                    let (step, causes) = (request.step, with_causes(&error));
                    tracing::warn!(step, "a checkpoint has no copy yet, training continues: {causes}");
                    shared.failed(request, &error, delay);
                    delay = (delay * 2).min(MAX_DELAY);
                }
            }
        }
    }

    /// Uploads a checkpoint, its manifest last. Does nothing if the checkpoint has a complete copy.
    async fn copy(&mut self, folder: &Path) -> Result<(), CopyError> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = folder.join(manifest::FILE_NAME);
        let json = std::fs::read(&path).map_err(CopyError::local("read", &path))?;
        let manifest = load::parse_manifest(&path, &json)?;
        // The owner is checked for every copy: another run may have started at the same time, or have become
        // the owner since.
        self.remote.claim(&self.run).await?;
        let there = match self.remote.manifest(&name).await {
            // An unreadable manifest is removed below, like a manifest with other content.
            Err(CopyError::Unreadable { .. }) => Some(Vec::new()),
            read => read?,
        };
        if there.as_deref() != Some(&*json) {
            if there.is_some() {
                self.remote.remove_manifest(&name).await?;
            }
            for (file, entry) in &manifest.files {
                self.remote.put_file(&name, &folder.join(file), entry).await?;
            }
            self.remote.put(&name, manifest::FILE_NAME, json).await?;
        }
        self.known.insert(name, manifest.save_index);
        Ok(())
    }

    /// Removes all copies except the newest ones and that of the step `protected`, and leftovers of
    /// interrupted uploads.
    async fn remove_old(&mut self, protected: Option<u64>) -> Result<(), CopyError> {
        let folders = self.remote.folders().await?;
        for name in &folders {
            if self.known.contains_key(name) {
                continue;
            }
            match self.remote.manifest(name).await {
                Ok(None) => drop(self.known.insert(name.clone(), CUT_OFF)),
                // Unreadable objects are not removed.
                Err(CopyError::Unreadable { .. }) => drop(self.known.insert(name.clone(), u64::MAX)),
                Err(error) => return Err(error),
                Ok(Some(json)) => {
                    let order = load::parse_manifest(Path::new(name), &json).and_then(|manifest| {
                        order_of(&manifest, step_of(name).unwrap_or_default(), Path::new(name))
                    });
                    self.known.insert(name.clone(), order.map_or(u64::MAX, |(save_index, _)| save_index));
                }
            }
        }
        self.known.retain(|name, _| folders.contains(name));
        let mut by_age: Vec<(u64, String)> =
            self.known.iter().map(|(name, save_index)| (*save_index, name.clone())).collect();
        by_age.retain(|(save_index, _)| *save_index < u64::MAX);
        by_age.sort_unstable_by(|one, other| other.cmp(one));
        let num_whole = by_age.iter().filter(|(save_index, _)| *save_index > CUT_OFF).count();
        for (save_index, name) in by_age.into_iter().skip(num_whole.min(self.keep)) {
            if save_index > CUT_OFF && protected.is_some() && step_of(&name) == protected {
                continue;
            }
            self.remote.remove(&name).await?;
            self.known.remove(&name);
        }
        Ok(())
    }
}
