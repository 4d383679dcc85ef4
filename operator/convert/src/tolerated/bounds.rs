//! Rules on values by which other trainers turn a setting off, or that lie beyond the bounds of a field.

use crate::draft::Draft;

/// Lowest temperature that `rollout.temperature` accepts.
const MIN_TEMPERATURE: f64 = 0.01;
/// Largest norm that `training.maxGradNorm` accepts.
const MAX_GRAD_NORM: f64 = 1e6;

/// Raises a temperature of 0, at which all samples of a prompt would be equal.
pub(super) fn temperature(draft: &mut Draft) {
    let path = "rollout.temperature";
    let Some(given) = draft.number(path).filter(|given| *given < MIN_TEMPERATURE) else { return };
    draft.set(path, MIN_TEMPERATURE);
    let text = format!(
        "at a temperature of {given} all samples of a prompt are equal and nothing is learned from them: temperature is \
         {MIN_TEMPERATURE}, the lowest one."
    );
    draft.remark("rollout", text);
}

/// Replaces the `top_k` of -1, by which vLLM takes all tokens.
pub(super) fn top_k(draft: &mut Draft) {
    let path = "rollout.topK";
    let Some(given) = draft.number(path).filter(|given| *given < 0.0) else { return };
    draft.set(path, 0);
    draft.remark("rollout", format!("a top_k of {given} takes all tokens, which topK 0 does here."));
}

/// Replaces a bound of 0 on the norm of gradients, by which transformers and DeepSpeed do not clip.
pub(super) fn grad_norm(draft: &mut Draft) {
    let path = "training.maxGradNorm";
    let is_beyond = |given: &f64| *given <= 0.0 || *given > MAX_GRAD_NORM;
    let Some(given) = draft.number(path).filter(is_beyond) else { return };
    draft.set(path, MAX_GRAD_NORM);
    let text =
        format!("a gradient norm of {given} is no bound: maxGradNorm is {MAX_GRAD_NORM}, the largest one.");
    draft.remark("training", text);
}

/// Replaces a frequency of -1, by which open-instruct never measures or saves.
pub(super) fn never(draft: &mut Draft) {
    for (section, field) in [("training", "evaluateEvery"), ("checkpoint", "everySteps")] {
        let path = format!("{section}.{field}");
        let Some(given) = draft.number(&path).filter(|given| *given < 0.0) else { continue };
        draft.set(&path, 0);
        draft.remark(section, format!("a frequency of {given} means never, which {field} 0 does here."));
    }
}
