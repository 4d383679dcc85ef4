//! Cache of the reference's log-probs on completions of a data set, so that each is computed once: later
//! epochs and resumed runs read them from memory and from the run folder.
//!
//! ```text
//! reference-logprobs/<digest of the reference's weights>   records of [key 16 bytes][length u32][f32 ..]
//! ```
//! A record is found by a digest of its prompt and completion, so the order and position of rows do not
//! matter. The leader appends; every rank reads. Values are those of the first computation, bit by bit.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rlt_core::batch::{Batch, BatchSequence};
use sha2::{Digest, Sha256};

use crate::parallel::{RankError, Ranks};

/// Name of the folder with the records in a run's folder.
pub(crate) const FOLDER: &str = "reference-logprobs";

const KEY_BYTES: usize = 16;
const LEN_BYTES: usize = 4;
const NUMBER_BYTES: usize = 4;

type Key = [u8; KEY_BYTES];

/// The cached log-probs of completions under one reference.
#[derive(Debug)]
pub(crate) struct KeptLogprobs {
    known: HashMap<Key, Vec<f32>>,
    /// File to which new records are appended; `None` on ranks other than the leader, and if it cannot be
    /// written.
    file: Option<File>,
}

impl KeptLogprobs {
    /// Opens the records of earlier attempts in `folder` for a reference with this digest. Collective; all
    /// ranks begin with the same records.
    pub(crate) fn open(folder: &Path, digest: u64, ranks: &Ranks) -> Result<Self, RankError> {
        let path = folder.join(format!("{digest:016x}"));
        let file = if ranks.is_leader() { append_to(folder, &path) } else { None };
        let records = ranks.leader_first(|| Ok::<_, RankError>(read(&path)))?;
        // On a shared file system ranks may see different lengths of the file.
        let num_common = -ranks.all_reduce_max(-(records.len() as i64))?;
        let known = records.into_iter().take(num_common as usize).collect();
        Ok(Self { known, file })
    }

    /// The log-probs of all completions of `batch`, if all of them are cached.
    pub(crate) fn find(&self, batch: &Batch) -> Option<Vec<f64>> {
        let rows = batch.sequences.iter().map(|sequence| self.known.get(&key(sequence)));
        let mut logprobs = Vec::with_capacity(batch.rows.num_tokens());
        for (row, sequence) in rows.zip(&batch.sequences) {
            let row = row.filter(|row| row.len() == sequence.completion.len())?;
            logprobs.extend(row.iter().map(|logprob| f64::from(*logprob)));
        }
        Some(logprobs)
    }

    /// Caches new log-probs, and returns those of all completions as the cache has them.
    pub(crate) fn keep(&mut self, batch: &Batch, logprobs: &[f64]) -> Vec<f64> {
        let mut records = Vec::new();
        let mut kept = Vec::with_capacity(logprobs.len());
        for (sequence, range) in batch.sequences.iter().zip(batch.rows.ranges()) {
            let key = key(sequence);
            let row = self.known.entry(key).or_insert_with(|| {
                let row: Vec<f32> = logprobs[range].iter().map(|logprob| *logprob as f32).collect();
                append_record(&mut records, &key, &row);
                row
            });
            kept.extend(row.iter().map(|logprob| f64::from(*logprob)));
        }
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(&records)
        {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "the reference's log-probs are kept in memory alone");
            self.file = None;
        }
        kept
    }
}

fn key(sequence: &BatchSequence) -> Key {
    let mut hash = Sha256::new();
    hash.update((sequence.prompt.tokens.len() as u64).to_le_bytes());
    for token in sequence.prompt.tokens.iter().chain(&sequence.completion) {
        hash.update(token.to_le_bytes());
    }
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(&hash.finalize()[..KEY_BYTES]);
    key
}

fn append_record(records: &mut Vec<u8>, key: &Key, row: &[f32]) {
    records.extend_from_slice(key);
    records.extend_from_slice(&(row.len() as u32).to_le_bytes());
    row.iter().for_each(|logprob| records.extend_from_slice(&logprob.to_le_bytes()));
}

/// Opens the file and removes an incomplete last record, which a killed process may have left.
fn append_to(folder: &Path, path: &PathBuf) -> Option<File> {
    let opened = || -> io::Result<File> {
        std::fs::create_dir_all(folder)?;
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let bytes = std::fs::read(path)?;
        let end = bytes.len() - Records(&bytes).rest().len();
        file.set_len(end as u64)?;
        Ok(file)
    };
    opened()
        .inspect_err(|error| {
            let error: &dyn std::error::Error = error;
            tracing::warn!(error, "the reference's log-probs are kept in memory alone");
        })
        .ok()
}

/// All complete records of a file; none if it cannot be read.
fn read(path: &Path) -> Vec<(Key, Vec<f32>)> {
    Records(&std::fs::read(path).unwrap_or_default()).collect()
}

/// Iterator over the complete records at the beginning of a byte slice.
struct Records<'a>(&'a [u8]);

impl<'a> Records<'a> {
    /// The bytes after the last complete record.
    fn rest(mut self) -> &'a [u8] {
        while self.next().is_some() {}
        self.0
    }
}

impl Iterator for Records<'_> {
    type Item = (Key, Vec<f32>);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, behind) = self.0.split_first_chunk::<KEY_BYTES>()?;
        let (len, behind) = behind.split_first_chunk::<LEN_BYTES>()?;
        let num_bytes = (u32::from_le_bytes(*len) as usize).checked_mul(NUMBER_BYTES)?;
        let (row, behind) = behind.split_at_checked(num_bytes)?;
        let (numbers, _) = row.as_chunks::<NUMBER_BYTES>();
        self.0 = behind;
        Some((*key, numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rlt_core::preferences::PreferenceExample;
    use rlt_core::types::Prompt;

    use super::*;

    fn example(prompt: &[u32], completions: &[&[u32]]) -> Arc<PreferenceExample> {
        let prompt = Prompt {
            row_idx: 0,
            tokens: prompt.to_vec(),
            text: String::new(),
            messages: serde_json::Value::Null,
            data_source: String::new(),
            ground_truth: serde_json::Value::Null,
            extra_info: serde_json::Value::Null,
            images: Vec::new(),
        };
        Arc::new(PreferenceExample {
            prompt: Arc::new(prompt),
            completions: completions.iter().map(|tokens| tokens.to_vec()).collect(),
            labels: vec![true, false],
            margin: 0.0,
            step_ends: Vec::new(),
        })
    }

    #[test]
    fn cached_log_probs_are_read_by_the_next_attempt_up_to_a_torn_record() {
        let folder = tempfile::tempdir().unwrap();
        let open = |digest| KeptLogprobs::open(folder.path(), digest, &Ranks::alone()).unwrap();
        let [one, two] = [
            Batch::from_preferences(&[example(&[1, 2], &[&[3, 4], &[5]])]),
            Batch::from_preferences(&[example(&[1], &[&[2, 3], &[5]])]),
        ];
        let mut kept = open(7);
        assert_eq!(kept.find(&one), None);
        assert_eq!(kept.keep(&one, &[-0.5, -1.5, -2.5]), [-0.5, -1.5, -2.5]);
        assert_eq!(kept.keep(&one, &[-9.0; 3]), [-0.5, -1.5, -2.5], "the first computation counts");
        kept.keep(&two, &[-3.5, -4.5, -5.5]);

        let path = folder.path().join("0000000000000007");
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let mut resumed = open(7);
        assert_eq!(resumed.find(&one), Some(vec![-0.5, -1.5, -2.5]));
        assert_eq!(resumed.find(&two), None, "its second completion was torn");
        resumed.keep(&two, &[-3.5, -4.5, -5.5]);
        assert_eq!(std::fs::read(&path).unwrap(), whole, "the torn record was written again");
        assert_eq!(open(8).find(&one), None, "other weights have other log-probs");
    }
}
