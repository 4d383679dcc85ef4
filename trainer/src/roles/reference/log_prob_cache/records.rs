//! File of completions' log-probs, which are read from the file when they are needed. The index in memory
//! takes eight bytes of each key and an offset.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rlt_core::digest;

const KEY_BYTES: usize = 16;
/// Bytes of a record before its values: key, number of values, digest of the values.
const HEADER_BYTES: usize = KEY_BYTES + 4 + 8;
const VALUE_BYTES: usize = 4;

/// Maximum number of records of one file. The index of as many takes 72 MB, whatever the length of the
/// completions.
pub(super) const MAX_RECORDS: usize = 3_500_000;

/// Digest of a prompt and a completion.
pub(super) type Key = [u8; KEY_BYTES];

/// Values of one completion, with their key.
pub(super) struct Record<'a> {
    pub(super) key: Key,
    pub(super) values: &'a [f32],
}

/// File of records, to which new ones are appended. A damaged record counts as missing.
#[derive(Debug)]
pub(super) struct RecordFile {
    file: File,
    /// Byte after the last complete record.
    end: u64,
    /// Offsets of records, by the first eight bytes of their keys.
    offsets: HashMap<u64, u64>,
    max_records: usize,
}

/// Key, number of values and digest of a record.
struct Header {
    key: Key,
    num_values: u32,
    digest: u64,
}

impl Header {
    fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let (key, rest) = bytes.split_first_chunk::<KEY_BYTES>()?;
        let (num_values, rest) = rest.split_first_chunk::<4>()?;
        let digest = u64::from_le_bytes(*rest.first_chunk::<8>()?);
        Some(Self { key: *key, num_values: u32::from_le_bytes(*num_values), digest })
    }

    fn record_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.num_values) * VALUE_BYTES as u64
    }
}

impl RecordFile {
    /// Opens the file with at most `max_records` records, and removes an incomplete last record, which a
    /// killed process may have left.
    pub(super) fn open(path: &Path, max_records: usize) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
        let len = file.metadata()?.len();
        let mut records = Self { file, end: 0, offsets: HashMap::new(), max_records };
        records.read_headers(len)?;
        records.file.set_len(records.end)?;
        Ok(records)
    }

    /// Fills the index from a file of `len` bytes, whose values are skipped.
    fn read_headers(&mut self, len: u64) -> io::Result<()> {
        let mut reader = BufReader::new(self.file.try_clone()?);
        reader.seek(SeekFrom::Start(0))?;
        let mut bytes = [0; HEADER_BYTES];
        while !self.is_full() && len - self.end >= HEADER_BYTES as u64 {
            reader.read_exact(&mut bytes)?;
            let Some(header) = Header::parse(&bytes) else { return Ok(()) };
            let Some(end) = self.end.checked_add(header.record_bytes()).filter(|end| *end <= len) else {
                return Ok(());
            };
            reader.seek_relative((end - self.end) as i64 - HEADER_BYTES as i64)?;
            self.offsets.insert(short(&header.key), self.end);
            self.end = end;
        }
        Ok(())
    }

    /// Whether the file has its maximum number of records.
    pub(super) fn is_full(&self) -> bool {
        self.offsets.len() >= self.max_records
    }

    /// Reads the `num_values` values of a key; `None` if they are missing or damaged.
    pub(super) fn find(&self, key: &Key, num_values: usize) -> Option<Vec<f32>> {
        let offset = *self.offsets.get(&short(key))?;
        let mut bytes = [0; HEADER_BYTES];
        self.file.read_exact_at(&mut bytes, offset).ok()?;
        let header = Header::parse(&bytes)?;
        if header.key != *key || header.num_values as usize != num_values {
            return None;
        }
        let mut bytes = vec![0; num_values * VALUE_BYTES];
        self.file.read_exact_at(&mut bytes, offset + HEADER_BYTES as u64).ok()?;
        let values = values_of(&bytes);
        (digest::digest64(&values) == header.digest).then_some(values)
    }

    /// Appends records until the file is full, and ignores the rest. Nothing is synced: after a power loss a
    /// record is complete, or damaged and computed again.
    pub(super) fn append<'a>(&mut self, records: impl Iterator<Item = Record<'a>>) -> io::Result<()> {
        let (mut bytes, mut offsets) = (Vec::new(), Vec::new());
        let num_free = self.max_records.saturating_sub(self.offsets.len());
        for Record { key, values } in records.take(num_free) {
            offsets.push((short(&key), self.end + bytes.len() as u64));
            bytes.extend_from_slice(&key);
            bytes.extend_from_slice(&(values.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&digest::digest64(values).to_le_bytes());
            values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
        }
        self.file.write_all_at(&bytes, self.end)?;
        self.end += bytes.len() as u64;
        self.offsets.extend(offsets);
        Ok(())
    }
}

/// Returns the first bytes of a key. Keys that share them are distinguished by the full key in the file.
fn short(key: &Key) -> u64 {
    key.iter().take(8).fold(0, |short, byte| short << 8 | u64::from(*byte))
}

/// Parses values from their little-endian bytes.
pub(super) fn values_of(bytes: &[u8]) -> Vec<f32> {
    let (values, _) = bytes.as_chunks::<VALUE_BYTES>();
    values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [Key; 3] = [[1; KEY_BYTES], [2; KEY_BYTES], [3; KEY_BYTES]];

    fn record(idx: usize, values: &[f32]) -> std::iter::Once<Record<'_>> {
        std::iter::once(Record { key: KEYS[idx], values })
    }

    /// A cache that held values in memory would find them whatever the file holds.
    #[test]
    fn values_are_read_from_the_file_and_damaged_ones_are_missing_until_they_are_appended_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        let mut records = RecordFile::open(&path, 10).unwrap();
        records.append(record(0, &[-0.5, -1.5])).unwrap();
        records.append(record(1, &[-2.5])).unwrap();
        assert_eq!(records.find(&KEYS[0], 2), Some(vec![-0.5, -1.5]));
        assert_eq!(records.find(&KEYS[0], 1), None, "another number of tokens");
        assert_eq!(records.find(&KEYS[2], 1), None);

        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[1], HEADER_BYTES as u64).unwrap();
        assert_eq!(records.find(&KEYS[0], 2), None, "a bit was flipped");
        assert_eq!(records.find(&KEYS[1], 1), Some(vec![-2.5]));
        records.append(record(0, &[-0.5, -1.5])).unwrap();
        for records in [records, RecordFile::open(&path, 10).unwrap()] {
            assert_eq!(records.find(&KEYS[0], 2), Some(vec![-0.5, -1.5]));
            assert_eq!(records.find(&KEYS[1], 1), Some(vec![-2.5]));
        }
    }

    #[test]
    fn a_key_that_begins_as_another_one_is_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = RecordFile::open(&folder.path().join("records"), 10).unwrap();
        records.append(record(0, &[-0.5])).unwrap();
        let mut other = KEYS[0];
        other[KEY_BYTES - 1] += 1;
        assert_eq!(records.find(&other, 1), None);
    }

    #[test]
    fn no_more_records_are_kept_than_the_index_may_have() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        let mut records = RecordFile::open(&path, 2).unwrap();
        for (idx, key) in KEYS.iter().enumerate() {
            assert_eq!(records.is_full(), idx == 2);
            records.append(std::iter::once(Record { key: *key, values: &[-0.5] })).unwrap();
        }
        let found = KEYS.map(|key| records.find(&key, 1).is_some());
        assert_eq!(found, [true, true, false]);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * (HEADER_BYTES + VALUE_BYTES) as u64);
        let fewer = RecordFile::open(&path, 1).unwrap();
        assert_eq!(fewer.find(&KEYS[1], 1), None, "the limit holds for records of earlier attempts");
    }
}
