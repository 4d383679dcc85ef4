//! TensorBoard event files: scalars only, written by hand, so that no TensorFlow is needed.
//!
//! An event file is a row of TFRecords, each an `Event` of `tensorflow/core/util/event.proto`:
//! ```text
//! u64 length | u32 masked crc32c(length) | bytes | u32 masked crc32c(bytes)        (all little-endian)
//! ```
//! When a run resumes, the file is truncated after the steps of `metrics.jsonl`, or rewritten if it does not
//! begin with them, so that both files always agree.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::append_file::{AppendFile, RecordSink as _};
use super::{History, Stage, StepMetrics, Tracker, TrackingError};

/// Prefix of the names of event files.
const EVENT_FILE: &str = "events.out.tfevents.";

/// Writes scalars into one event file.
pub(super) struct EventLog(AppendFile);

impl EventLog {
    /// Opens the only event file in `folder`, with exactly the steps of `history`.
    pub(super) fn open(folder: &Path, history: &History) -> Result<Self, TrackingError> {
        fs::create_dir_all(folder).map_err(TrackingError::file("create folder", folder))?;
        let mut present = event_files(folder).map_err(TrackingError::file("list", folder))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let fresh = || folder.join(format!("{EVENT_FILE}{:010}.rlt-trainer", now.as_secs()));
        // The run keeps its event file under the same name, so that it has one at every moment.
        let first = history.first()?;
        let path = present.pop().filter(|_| first.is_some()).unwrap_or_else(fresh);
        let started = first.map_or(now.as_secs_f64(), |first| first.timestamp);
        let version = version_record(&path).unwrap_or_else(|| record(&version_event(started)));
        let file = AppendFile::restore(&path, |file| {
            file.append(&version)?;
            history.for_each(|metrics| file.append(&record(&scalar_event(metrics))))
        })?;
        remove_event_files_but(folder, &path).map_err(TrackingError::file("clean folder", folder))?;
        Ok(Self(file))
    }
}

impl Tracker for EventLog {
    fn log_step(&mut self, metrics: &StepMetrics) -> Result<(), TrackingError> {
        self.0.append(&record(&scalar_event(metrics)))
    }

    fn sync(&mut self) -> Result<(), TrackingError> {
        self.0.sync()
    }
}

/// Reads the first record of an event file, which contains the time of its creation; `None` for other files.
fn version_record(path: &Path) -> Option<Vec<u8>> {
    let mut found = vec![0; record(&version_event(0.0)).len()];
    fs::File::open(path).ok()?.read_exact(&mut found).ok()?;
    // Behind the length, its checksum and the key of the time.
    let begun = f64::from_le_bytes(*found.get(13..)?.first_chunk()?);
    (record(&version_event(begun)) == found).then_some(found)
}

/// Returns the event files of a folder, the newest last.
fn event_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(EVENT_FILE) {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

fn remove_event_files_but(folder: &Path, kept: &Path) -> std::io::Result<()> {
    let others = event_files(folder)?.into_iter().filter(|path| path != kept);
    others.into_iter().try_for_each(fs::remove_file)
}

/// Frames one event as a TFRecord.
fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(event.len() + 16);
    record.extend(length);
    record.extend(masked_crc32c(&length).to_le_bytes());
    record.extend(event);
    record.extend(masked_crc32c(event).to_le_bytes());
    record
}

/// Masks a CRC, because a CRC over data that contains CRCs detects fewer errors
/// (`tensorflow/core/lib/hash/crc32c.h`).
fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Encodes `Event { wall_time = 1, file_version = 3 }`, the first event of every file.
fn version_event(timestamp: f64) -> Vec<u8> {
    let mut event = Vec::new();
    put_double(&mut event, 1, timestamp);
    put_bytes(&mut event, 3, b"brain.Event:2");
    event
}

/// Encodes `Event { wall_time = 1, step = 2, summary = 5 }` with one scalar per finite metric.
fn scalar_event(metrics: &StepMetrics) -> Vec<u8> {
    let mut summary = Vec::new();
    for (name, &value) in metrics.values.iter().filter(|(_, value)| value.is_finite()) {
        let mut scalar = Vec::new();
        // Both stages count from one, so each has its own tags.
        match metrics.stage {
            Stage::ColdStart => put_bytes(&mut scalar, 1, format!("cold_start/{name}").as_bytes()),
            Stage::Training => put_bytes(&mut scalar, 1, name.as_bytes()),
        }
        put_float(&mut scalar, 2, value as f32);
        put_bytes(&mut summary, 1, &scalar);
    }
    let mut event = Vec::new();
    put_double(&mut event, 1, metrics.timestamp);
    put_varint(&mut event, 2, metrics.step);
    put_bytes(&mut event, 5, &summary);
    event
}

// The four protobuf field encodings that events use (https://protobuf.dev/programming-guides/encoding/).

fn put_key(message: &mut Vec<u8>, field: u64, wire_type: u64) {
    put_raw_varint(message, field << 3 | wire_type);
}

fn put_raw_varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

fn put_varint(message: &mut Vec<u8>, field: u64, value: u64) {
    put_key(message, field, 0);
    put_raw_varint(message, value);
}

fn put_double(message: &mut Vec<u8>, field: u64, value: f64) {
    put_key(message, field, 1);
    message.extend(value.to_le_bytes());
}

fn put_bytes(message: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_key(message, field, 2);
    put_raw_varint(message, bytes.len() as u64);
    message.extend(bytes);
}

fn put_float(message: &mut Vec<u8>, field: u64, value: f32) {
    put_key(message, field, 5);
    message.extend(value.to_le_bytes());
}

#[cfg(test)]
pub(crate) mod tests;
