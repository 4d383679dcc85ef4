//! Cache of the reference's log-probs on completions of a data set, so that each is computed once: later
//! epochs and resumed runs read them from the run folder.
//!
//! ```text
//! reference-logprobs/<digest of the reference's weights>.records   [key][length u32][digest u64][f32 ..]
//! ```
//! A record is found by a digest of its prompt and completion, so the order and position of rows do not
//! matter. Only the leader has the file, and sends what it finds to the other ranks: their machines need not
//! share a file system. Values are those of the first computation, bit by bit.
//!
//! No log-prob stays in memory, so that memory does not grow with the rows of a stream. If the file cannot be
//! written, or has as many records as its index may have, log-probs are computed again in later epochs.
//!
//! A reference that follows the actor has other weights after each sync, and so another file. The files of
//! the newest references stay, because a resumed run goes back to the one of its checkpoint.

mod records;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::path::Path;

use rlt_core::batch::{Batch, BatchSequence};
use rlt_parallel::{RankError, Ranks};
use sha2::{Digest, Sha256};

use self::records::{Key, MAX_RECORDS, Record, RecordFile, values_of};

/// Name of the folder with the records in a run's folder.
pub(crate) const FOLDER: &str = "reference-logprobs";
/// Extension of a file of records. Earlier releases wrote names without one.
const EXTENSION: &str = "records";
/// Hexadecimal digits of the digest of a reference's weights.
const DIGEST_DIGITS: usize = 16;
/// Maximum number of references whose records stay in the run folder, the present one included.
const MAX_REFERENCES: usize = 16;

/// The cached log-probs of completions under one reference.
#[derive(Debug)]
pub(crate) struct LogProbCache {
    /// Records in the run folder; `None` on ranks other than the leader, and if they cannot be written.
    records: Option<RecordFile>,
    /// Whether the user was warned that the file is full.
    is_full_reported: bool,
    ranks: Ranks,
}

impl LogProbCache {
    /// Opens the records of earlier attempts in `folder` for a reference with this digest. `ranks` are all
    /// ranks of the job.
    pub(crate) fn open(folder: &Path, digest: u64, ranks: Ranks) -> Self {
        Self::with_limit(folder, digest, ranks, MAX_RECORDS)
    }

    fn with_limit(folder: &Path, digest: u64, ranks: Ranks, max_records: usize) -> Self {
        let opened = || -> io::Result<RecordFile> {
            std::fs::create_dir_all(folder)?;
            let path = folder.join(format!("{digest:0DIGEST_DIGITS$x}.{EXTENSION}"));
            if let Err(error) = remove_old(folder, &path) {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "log-probs of earlier references stay in the run folder");
            }
            RecordFile::open(&path, max_records)
        };
        let records = ranks.is_leader().then(opened).and_then(|opened| opened.inspect_err(warn).ok());
        Self { records, is_full_reported: false, ranks }
    }

    /// Returns the log-probs of all completions of `batch`, if all of them are cached. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(crate) fn find(&self, batch: &Batch) -> Result<Option<Vec<f64>>, RankError> {
        let found = self.broadcast(self.found(batch).unwrap_or_default())?;
        // The leader sends nothing if a completion is missing.
        let is_found = found.len() == batch.rows.num_tokens();
        Ok(is_found.then(|| found.into_iter().map(f64::from).collect()))
    }

    /// Reads the log-probs of all completions from this rank's file; `None` if any is missing.
    fn found(&self, batch: &Batch) -> Option<Vec<f32>> {
        let records = self.records.as_ref()?;
        let mut found = Vec::with_capacity(batch.rows.num_tokens());
        for sequence in &batch.sequences {
            found.extend(records.find(&key(sequence), sequence.completion.len())?);
        }
        Some(found)
    }

    /// Caches new log-probs, and returns the cached log-probs of all completions. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(crate) fn keep(&mut self, batch: &Batch, logprobs: &[f64]) -> Result<Vec<f64>, RankError> {
        let kept = if self.ranks.is_leader() { self.merge_with_cached(batch, logprobs) } else { Vec::new() };
        Ok(self.broadcast(kept)?.into_iter().map(f64::from).collect())
    }

    /// Merges the log-probs of `batch` into the leader's file: cached completions keep their first values,
    /// new ones are appended.
    fn merge_with_cached(&mut self, batch: &Batch, logprobs: &[f64]) -> Vec<f32> {
        let mut kept: Vec<f32> = Vec::with_capacity(logprobs.len());
        // The first range of each new completion of the batch; its order is the same in every run.
        let mut new: BTreeMap<Key, Range<usize>> = BTreeMap::new();
        for (sequence, range) in batch.sequences.iter().zip(batch.rows.ranges()) {
            let key = key(sequence);
            let known = self.records.as_ref().and_then(|records| records.find(&key, range.len()));
            match (known, new.get(&key).cloned()) {
                (Some(known), _) => kept.extend(known),
                (None, Some(first)) => kept.extend_from_within(first),
                (None, None) => {
                    kept.extend(logprobs[range.clone()].iter().map(|logprob| *logprob as f32));
                    new.insert(key, range);
                }
            }
        }
        let new = new.into_iter().map(|(key, range)| Record { key, values: &kept[range] });
        self.append(new.collect());
        kept
    }

    fn append(&mut self, new: Vec<Record<'_>>) {
        let Some(records) = &mut self.records else { return };
        if let Err(error) = records.append(new.into_iter()) {
            warn(&error);
            self.records = None;
        } else if records.is_full() && !self.is_full_reported {
            self.is_full_reported = true;
            tracing::warn!("the reference's log-probs of further rows are computed again in every epoch");
        }
    }

    /// Sends the leader's values to all ranks. Collective.
    fn broadcast(&self, own: Vec<f32>) -> Result<Vec<f32>, RankError> {
        if self.ranks.size() == 1 {
            return Ok(own);
        }
        let own: Vec<u8> = own.iter().flat_map(|value| value.to_le_bytes()).collect();
        let of_ranks = self.ranks.all_gather_bytes(&own)?;
        // Other ranks send nothing.
        Ok(values_of(of_ranks.first().ok_or(RankError::NothingFromLeader)?))
    }
}

/// Removes the records of all references but the newest ones, and files of earlier releases, which nothing
/// reads. The file `present` stays.
fn remove_old(folder: &Path, present: &Path) -> io::Result<()> {
    let mut others = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if path == present || !is_of_reference(&path) {
            continue;
        }
        match path.extension() {
            Some(_) => others.push((entry.metadata()?.modified()?, path)),
            None => std::fs::remove_file(path)?,
        }
    }
    others.sort_unstable_by(|one, other| other.cmp(one));
    others.into_iter().skip(MAX_REFERENCES - 1).try_for_each(|(_, path)| std::fs::remove_file(path))
}

/// Whether a file has the name of records, of this or an earlier release.
fn is_of_reference(path: &Path) -> bool {
    let is_digest = |stem: &OsStr| {
        let bytes = stem.as_encoded_bytes();
        bytes.len() == DIGEST_DIGITS && bytes.iter().all(u8::is_ascii_hexdigit)
    };
    path.file_stem().is_some_and(is_digest) && path.extension().is_none_or(|extension| extension == EXTENSION)
}

fn warn(error: &io::Error) {
    let error: &dyn std::error::Error = error;
    tracing::warn!(error, "the reference's log-probs are not kept, and computed again in every epoch");
}

fn key(sequence: &BatchSequence) -> Key {
    let mut hash = Sha256::new();
    hash.update((sequence.prompt.tokens.len() as u64).to_le_bytes());
    for token in sequence.prompt.tokens.iter().chain(&sequence.completion) {
        hash.update(token.to_le_bytes());
    }
    let hash = hash.finalize();
    let mut key = Key::default();
    key.iter_mut().zip(hash).for_each(|(byte, hashed)| *byte = hashed);
    key
}

#[cfg(test)]
mod tests;
