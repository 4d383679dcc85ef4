//! Selects the checkpoint of a run to export.

use std::str::FromStr;

use rlt_storage::checkpoint::{Checkpoint, CheckpointStore, CommittedCheckpoint};
use rlt_storage::run_folder::RunFolder;

use super::ExportError;
use crate::run::error::TrainError;
use crate::run::state::progress_of;

/// Checkpoint that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Checkpoint after this number of steps.
    Number(u64),
    /// Checkpoint with the highest mean held-out reward; the first one of several.
    Best,
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "best" => Ok(Self::Best),
            number => number.parse().map(Self::Number).map_err(|_| "expected a number or best".to_owned()),
        }
    }
}

/// Opens and verifies the checkpoint that `step` selects, by default the newest; also returns its step.
pub(super) fn checkpoint(folder: &RunFolder, step: Option<Step>) -> Result<(Checkpoint, u64), ExportError> {
    // The run may still be active, so nothing is cleaned up here.
    let committed = match folder.checkpoints() {
        dir if dir.is_dir() => CheckpointStore::follow(&dir).committed().map_err(TrainError::from)?,
        _ => Vec::new(),
    };
    let there = || committed.iter().map(|one| one.step).collect();
    let Some(newest) = committed.last() else { return Err(ExportError::NoCheckpoint(folder.checkpoints())) };
    let chosen = match step {
        None => newest,
        Some(Step::Number(step)) => {
            let found = committed.iter().find(|one| one.step == step);
            found.ok_or_else(|| ExportError::NoStep { step, there: there() })?
        }
        Some(Step::Best) => best(&committed)?.ok_or_else(|| ExportError::NoBest { there: there() })?,
    };
    Ok((Checkpoint::open(&chosen.path).map_err(TrainError::from)?, chosen.step))
}

/// Selects the checkpoint with the highest held-out reward; `None` if no checkpoint belongs to an evaluated
/// step.
fn best(committed: &[CommittedCheckpoint]) -> Result<Option<&CommittedCheckpoint>, TrainError> {
    let mut best: Option<(f64, &CommittedCheckpoint)> = None;
    for one in committed {
        let checkpoint = Checkpoint::open_verified(&one.path, &one.digest)?;
        let reward = progress_of(&checkpoint)?.evaluation();
        let is_better = |reward: &f64| best.is_none_or(|(highest, _)| *reward > highest);
        if let Some(reward) = reward.filter(is_better) {
            best = Some((reward, one));
        }
    }
    Ok(best.map(|(_, one)| one))
}

/// Formats steps as a list.
pub(super) fn listed(steps: &[u64]) -> String {
    steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_a_number_or_the_best() {
        assert_eq!("best".parse(), Ok(Step::Best));
        assert_eq!("20".parse(), Ok(Step::Number(20)));
        for text in ["Best", "-1", "2.0", ""] {
            assert_eq!(text.parse::<Step>(), Err("expected a number or best".to_owned()), "{text}");
        }
    }
}
