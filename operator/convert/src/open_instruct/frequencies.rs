//! How often open-instruct evaluates and saves, and how long its ranks wait for each other.

use crate::draft::Draft;
use crate::settings::Settings;

/// Seconds of an hour.
const HOUR_SECONDS: f64 = 3600.0;
/// Settings with the number of steps between two models or states that are saved.
const SAVES: [&str; 3] = ["save_freq", "checkpointing_steps", "ephemeral_save_interval"];

/// Sets the frequencies once the length of the training is set.
pub(super) fn finish(settings: &Settings, draft: &mut Draft) {
    // A checkpoint of ours contains model and state, which open-instruct saves separately.
    let is_by_epoch = |key: &str| settings.text(key).as_deref() == Some("epoch");
    let saves = SAVES.iter().filter(|key| !is_by_epoch(key)).filter_map(|key| settings.count(key));
    let every = saves.chain(draft.count("checkpoint.everySteps")).filter(|steps| *steps > 0).min();
    draft.set_some("spec.checkpoint.everySteps", every);
    if !draft.has("training.evaluateEvery") || draft.count("training.evaluateEvery") == Some(0) {
        let evaluations = settings.count("num_evals").filter(|number| *number > 0);
        let steps = draft.count("training.steps");
        let every = steps.zip(evaluations).map(|(steps, number)| (steps / number).max(1));
        draft.set_some("spec.training.evaluateEvery", every);
    }
    let timeout = settings.number("dist_timeout_hours").map(|hours| (hours * HOUR_SECONDS).round());
    draft.set_some("spec.workers.peerTimeoutSeconds", timeout);
}
