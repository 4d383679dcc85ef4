//! Corrections of settings that other trainers accept and a manifest rejects: values beyond a bound, settings
//! that another one makes ineffective, and degrees that do not divide the ranks.
//!
//! Each rule leaves a valid draft unchanged. A rule that changes something adds a remark.

mod batches;
mod bounds;
mod mesh;
pub(crate) mod refused;
mod roles;

use rlt_api::conflicts::{CONFLICTS, Fact, Facts};
use rlt_api::spec::AlgorithmKind;

use crate::draft::Draft;

/// A rule, which corrects one kind of setting in the finished draft.
type Rule = fn(&mut Draft);

/// All rules, in the order of application: budgets depend on the degrees of the mesh.
const RULES: [Rule; 23] = [
    clip_low,
    clip_high,
    dual_clip,
    schedule,
    overlong,
    reward_names,
    bounds::temperature,
    bounds::top_k,
    bounds::grad_norm,
    bounds::never,
    adapter_dropout,
    batches::groups,
    batches::updates,
    batches::held_out,
    batches::rollout,
    roles::adapter,
    roles::critic,
    roles::reference_sync,
    roles::activations,
    mesh::ranks,
    mesh::degrees,
    mesh::experts,
    batches::budgets,
];

/// Applies all rules to a draft whose fields are all set.
pub(crate) fn resolve(draft: &mut Draft) {
    RULES.iter().for_each(|rule| rule(draft));
}

/// Largest `clipLow`: a ratio of probabilities is never below 0.
const MAX_CLIP_LOW: f64 = 1.0;
/// Largest `clipHigh` and `dualClip`.
const MAX_CLIP: f64 = 1000.0;

fn clip_low(draft: &mut Draft) {
    let path = "algorithm.loss.clipLow";
    let Some(low) = draft.number(path).filter(|low| *low > MAX_CLIP_LOW) else { return };
    draft.set(path, MAX_CLIP_LOW);
    // GeoMean clips the logarithm of the ratio, which has no smallest value.
    let reason = match draft.text("algorithm.loss.policy").as_deref() {
        Some("GeoMean") => "clipLow is at most 1, so the logarithm of the ratio is clipped earlier here",
        Some("DppoTv" | "DppoKl") => "clipLow is at most 1, so the divergence is bounded earlier here",
        _ => "a ratio of probabilities is never below 0, so 1 clips nothing either",
    };
    draft.remark("algorithm", format!("a lower clip of {low} becomes clipLow 1: {reason}."));
}

fn clip_high(draft: &mut Draft) {
    let path = "algorithm.loss.clipHigh";
    let Some(high) = draft.number(path).filter(|high| *high > MAX_CLIP) else { return };
    draft.set(path, MAX_CLIP);
    draft.remark("algorithm", format!("an upper clip of {high} becomes clipHigh 1000, the largest one."));
}

/// Limits a dual clip beyond the largest one: it is removed for a loss that is bounded by it, and set to the
/// largest one if it caps a weight.
fn dual_clip(draft: &mut Draft) {
    let path = "algorithm.loss.dualClip";
    let Some(bound) = draft.number(path).filter(|bound| *bound > MAX_CLIP) else { return };
    if draft.text("algorithm.loss.policy").as_deref() == Some("Vanilla") {
        draft.remove(path);
        let text = format!(
            "a dual clip of {bound} bounds no loss in practice: dualClip (at most 1000) is left out."
        );
        draft.remark("algorithm", text);
    } else {
        draft.set(path, MAX_CLIP);
        draft.remark("algorithm", format!("a cap of {bound} becomes dualClip 1000, the largest one."));
    }
}

/// Removes the minimum of a constant schedule, and ends the warm-up before the training ends.
fn schedule(draft: &mut Draft) {
    let min_ratio = "training.schedule.minRatio";
    let kind = draft.text("training.schedule.kind").unwrap_or_else(|| "Constant".to_owned());
    if let Some(ratio) = draft.number(min_ratio).filter(|_| kind == "Constant") {
        draft.remove(min_ratio);
        if ratio != 0.0 {
            let text =
                format!("a minimum of {ratio} of the learning rate has no effect: the schedule is constant.");
            draft.remark("training", text);
        }
    }
    let path = "training.schedule.warmupSteps";
    let (Some(warmup), Some(steps)) = (draft.count(path), draft.count("training.steps")) else { return };
    if warmup >= steps {
        let last = steps.saturating_sub(1);
        draft.set(path, last);
        let text = format!("a warm-up of {warmup} steps is cut to {last}: the training has {steps} steps.");
        draft.remark("training", text);
    }
}

fn overlong(draft: &mut Draft) {
    let path = "rewards.overlong.bufferTokens";
    let limit = draft.count("rollout.maxCompletionTokens").unwrap_or(u64::MAX);
    let Some(tokens) = draft.count(path).filter(|tokens| *tokens > limit) else { return };
    draft.set(path, limit);
    draft
        .remark("rewards", format!("a buffer of {tokens} tokens is cut to {limit}, the longest completion."));
}

/// Whether the table of conflicts rules out the dropout of an adapter for a kind.
fn excludes_dropout(kind: &str) -> bool {
    let scores = |kind: AlgorithmKind| kind.learns_from().scores_completions();
    let facts = Facts::default().with(Fact::AdapterDropout, true).with(
        Fact::ScoredCompletions,
        serde_json::from_value::<AlgorithmKind>(kind.into()).is_ok_and(scores),
    );
    CONFLICTS.iter().any(|conflict| conflict.fact == Fact::AdapterDropout && conflict.is_met(&facts))
}

/// Removes the dropout of an adapter for kinds that have none.
fn adapter_dropout(draft: &mut Draft) {
    let path = "model.lora.dropout";
    let kind = draft.text("algorithm.kind").unwrap_or_default();
    let Some(dropout) = draft.number(path).filter(|_| excludes_dropout(&kind)) else { return };
    draft.remove(path);
    if dropout != 0.0 {
        let text = format!("a dropout of {dropout} is left out: {kind} scores completions without dropout.");
        draft.remark("model", text);
    }
}

/// Largest number of characters of a reward function's name, without those of a number after it.
const MAX_NAME_CHARS: usize = 60;

/// Cuts the names of reward functions to the allowed length, and makes them unique by a number after a
/// repeated name.
fn reward_names(draft: &mut Draft) {
    let path = "rewards.functions";
    let Some(mut functions) = draft.value(path).and_then(|value| value.as_array().cloned()) else { return };
    let mut names: Vec<String> = Vec::new();
    for function in &mut functions {
        let Some(given) = function["name"].as_str() else { continue };
        let name: String = given.chars().take(MAX_NAME_CHARS).collect();
        let candidates =
            (1u32..).map(|number| if number == 1 { name.clone() } else { format!("{name}_{number}") });
        for candidate in candidates {
            if !names.contains(&candidate) {
                function["name"] = candidate.as_str().into();
                names.push(candidate);
                break;
            }
        }
    }
    draft.set(path, functions);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The draft with these fields of numbers and words after all rules.
    fn resolved(fields: &[(&str, serde_json::Value)]) -> Draft {
        let mut draft = Draft::new("a", &[]);
        fields.iter().for_each(|(path, value)| draft.set(path, value.clone()));
        resolve(&mut draft);
        draft
    }

    #[test]
    fn clips_beyond_their_bounds_end_at_them() {
        let draft =
            resolved(&[("algorithm.loss.clipLow", 10.into()), ("algorithm.loss.clipHigh", 1e4.into())]);
        assert_eq!(draft.number("algorithm.loss.clipLow"), Some(1.0));
        assert_eq!(draft.number("algorithm.loss.clipHigh"), Some(1000.0));
        let policy = |name: &str| ("algorithm.loss.policy", serde_json::Value::from(name));
        let bound = ("algorithm.loss.dualClip", serde_json::Value::from(1e4));
        assert_eq!(resolved(&[policy("Vanilla"), bound.clone()]).number(bound.0), None);
        assert_eq!(resolved(&[policy("DppoTv"), bound.clone()]).number(bound.0), Some(1000.0));
    }

    #[test]
    fn a_draft_that_is_valid_stays_as_it_is() {
        let fields = [
            ("algorithm.loss.clipLow", 0.2.into()),
            ("algorithm.loss.dualClip", 10.into()),
            ("training.schedule.warmupSteps", 3.into()),
            ("training.steps", 4.into()),
            ("rollout.samplesPerPrompt", 2.into()),
            ("training.promptsPerStep", 8.into()),
            ("training.promptsPerUpdate", 4.into()),
            ("workers.count", 2.into()),
            ("workers.ranksPerWorker", 4.into()),
            ("workers.mesh.dpShard", 4.into()),
            ("workers.mesh.sp", 2.into()),
        ];
        let draft = resolved(&fields);
        fields.iter().for_each(|(path, value)| assert_eq!(draft.value(path), Some(value), "{path}"));
        assert_eq!(draft.remarks().count(), 0);
    }

    #[test]
    fn every_change_is_a_remark() {
        let changes: [&[(&str, serde_json::Value)]; 17] = [
            &[("algorithm.kl.placement", "None".into()), ("algorithm.referenceSync.everySteps", 8.into())],
            &[("rollout.temperature", 0.into())],
            &[("rollout.topK", (-1).into())],
            &[("training.maxGradNorm", 0.into())],
            &[("training.evaluateEvery", (-1).into())],
            &[("checkpoint.everySteps", (-1).into())],
            &[("algorithm.loss.clipLow", 10.into())],
            &[("algorithm.loss.dualClip", 1e4.into())],
            &[("training.schedule.minRatio", 0.1.into())],
            &[("training.schedule.warmupSteps", 10.into()), ("training.steps", 10.into())],
            &[("rewards.overlong.bufferTokens", 10.into()), ("rollout.maxCompletionTokens", 9.into())],
            &[("training.promptsPerStep", 8.into()), ("training.promptsPerUpdate", 0.into())],
            &[("algorithm.kind", "KTO".into()), ("model.lora.dropout", 0.1.into())],
            &[("training.offload.activations", true.into())],
            &[("model.lora.rank", 8.into()), ("training.roles.reference.offloadParameters", true.into())],
            &[("workers.ranksPerWorker", 4.into()), ("workers.mesh.rolloutTp", 8.into())],
            &[
                ("workers.device", "Cuda".into()),
                ("workers.ranksPerWorker", 2.into()),
                ("workers.mesh.dpShard", 2.into()),
                ("workers.mesh.ep", 2.into()),
            ],
        ];
        for fields in changes {
            let draft = resolved(fields);
            let is_changed = fields.iter().any(|(path, value)| draft.value(path) != Some(value));
            let num_remarks = draft.remarks().count();
            assert!(num_remarks > 0, "{fields:?} changes without a remark");
            assert!(is_changed || draft.is_true("training.activationCheckpointing"), "{fields:?}");
        }
    }
}
