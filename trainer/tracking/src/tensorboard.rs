//! TensorBoard event files: scalars only, written by hand, so that no TensorFlow is needed.
//!
//! An event file is a row of TFRecords, each an `Event` of `tensorflow/core/util/event.proto`:
//! ```text
//! u64 length | u32 masked crc32c(length) | bytes | u32 masked crc32c(bytes)        (all little-endian)
//! ```
//! When a run resumes the file is written again from `metrics.jsonl`, so that both always agree.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::append_file::AppendFile;
use super::{Stage, StepMetrics, Tracker, TrackingError};

/// Writes scalars into one event file.
pub(super) struct EventLog(AppendFile);

impl EventLog {
    /// Starts a new event file in `folder`, alone there, with all steps of `history`.
    pub(super) fn open(folder: &Path, history: &[StepMetrics]) -> Result<Self, TrackingError> {
        fs::create_dir_all(folder).map_err(TrackingError::file("create folder", folder))?;
        remove_event_files(folder).map_err(TrackingError::file("clean folder", folder))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let path = folder.join(format!("events.out.tfevents.{:010}.rlt-trainer", now.as_secs()));
        let mut log = Self(AppendFile::open(&path)?);
        let started = history.first().map_or(now.as_secs_f64(), |first| first.timestamp);
        let mut records = record(&version_event(started));
        records.extend(history.iter().flat_map(|metrics| record(&scalar_event(metrics))));
        log.0.append(&records)?;
        Ok(log)
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

fn remove_event_files(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("events.out.tfevents.") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
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

/// The mask keeps a checksum of data that itself holds checksums meaningful
/// (`tensorflow/core/lib/hash/crc32c.h`).
fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// `Event { wall_time = 1, file_version = 3 }`: the first event of every file.
fn version_event(timestamp: f64) -> Vec<u8> {
    let mut event = Vec::new();
    put_double(&mut event, 1, timestamp);
    put_bytes(&mut event, 3, b"brain.Event:2");
    event
}

/// `Event { wall_time = 1, step = 2, summary = 5 }` with one scalar per finite metric.
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
