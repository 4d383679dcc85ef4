//! The order of checkpoints, and the names of their folders.

use std::path::Path;

use super::CheckpointError;
use super::load;
use super::manifest::{self, Manifest};

/// Save index and step, by which checkpoints are ordered.
pub(super) type SaveOrder = (u64, u64);

pub(super) fn save_order(folder: &Path, step: u64) -> Result<SaveOrder, CheckpointError> {
    order_of(&load::read_manifest(folder)?, step, folder)
}

/// Returns the sort key of the checkpoint in `folder`. Fails unless its step is `step`, the one in the
/// folder's name.
pub(super) fn order_of(
    checkpoint: &Manifest,
    step: u64,
    folder: &Path,
) -> Result<SaveOrder, CheckpointError> {
    if checkpoint.step != step {
        let problem = format!("it is of step {}, its folder's name says {step}", checkpoint.step);
        return Err(CheckpointError::Inconsistent { path: folder.join(manifest::FILE_NAME), problem });
    }
    Ok((checkpoint.save_index, step))
}

pub(super) fn folder_name(step: u64) -> String {
    format!("step-{step:06}")
}

/// Returns the step in the name of a checkpoint's folder; `None` for any other name.
pub(super) fn step_of(folder_name: &str) -> Option<u64> {
    let step = folder_name.strip_prefix("step-")?.parse().ok()?;
    (self::folder_name(step) == folder_name).then_some(step)
}
