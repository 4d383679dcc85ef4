//! Rules on the numbers of prompts, samples and tokens of a step, an update and a pass.

use crate::draft::Draft;

/// Kinds of jobs whose preset compares the samples of a prompt.
const GROUP_KINDS: [&str; 6] = ["GRPO", "GSPO", "DrGRPO", "DAPO", "CISPO", "RLOO"];
/// Estimators that compare the samples of a prompt.
const GROUP_ESTIMATORS: [&str; 8] =
    ["Grpo", "GrpoPassk", "Rloo", "ReinforcePlusPlusBaseline", "Opo", "Gpg", "Gdpo", "OptimalTokenBaseline"];

/// Raises a group of one sample to two if the samples of a prompt are compared.
pub(super) fn groups(draft: &mut Draft) {
    let path = "rollout.samplesPerPrompt";
    if draft.count(path) != Some(1) {
        return;
    }
    let compares = match (draft.text("algorithm.advantage.estimator"), draft.text("algorithm.kind")) {
        (Some(estimator), _) => GROUP_ESTIMATORS.contains(&estimator.as_str()),
        (None, Some(kind)) => GROUP_KINDS.contains(&kind.as_str()),
        (None, None) => false,
    };
    if compares || draft.has("algorithm.dynamicSampling") {
        draft.set(path, 2);
        draft.remark(
            "rollout",
            "a group of one sample has no baseline, its advantage would be the reward itself: samplesPerPrompt is 2, \
             the smallest group.",
        );
    }
}

/// Reduces the number of prompts per update to a divisor of that per step, which is at least one.
pub(super) fn updates(draft: &mut Draft) {
    let (per_step, per_update) = ("training.promptsPerStep", "training.promptsPerUpdate");
    if draft.count(per_step) == Some(0) {
        draft.set(per_step, 1);
        draft.remark("training", "a step of less than one prompt is not taken: promptsPerStep is 1.");
    }
    let (Some(prompts), Some(given)) = (draft.count(per_step), draft.count(per_update)) else { return };
    if given > 0 && prompts.is_multiple_of(given) {
        return;
    }
    let divisor =
        (1..=given.min(prompts)).rev().find(|update| prompts.is_multiple_of(*update)).unwrap_or(prompts);
    draft.set(per_update, divisor);
    let text = format!(
        "updates of {given} prompts do not divide a step of {prompts}: promptsPerUpdate is {divisor}, so a step makes {} updates.",
        prompts / divisor
    );
    draft.remark("training", text);
}

/// Limits the samples of a held-out prompt to one without a temperature, since all samples would be equal.
pub(super) fn held_out(draft: &mut Draft) {
    let path = "rollout.heldOut.samplesPerPrompt";
    let temperature = draft.number("rollout.heldOut.temperature").unwrap_or(0.0);
    let Some(samples) = draft.count(path).filter(|samples| *samples > 1 && temperature <= 0.0) else {
        return;
    };
    draft.remove(path);
    let text =
        format!("{samples} samples of a held-out prompt would be equal at temperature 0: one is taken.");
    draft.remark("rollout", text);
}

/// Corrects the sequences that decode in one pass, and the space for a completion after the longest prompt.
pub(super) fn rollout(draft: &mut Draft) {
    let (tokens, sequences) = ("rollout.maxBatchedTokens", "rollout.maxConcurrentSequences");
    let (batched, concurrent) = (draft.count(tokens).unwrap_or(4096), draft.count(sequences).unwrap_or(256));
    if batched < concurrent {
        if draft.has(sequences) && !draft.has(tokens) {
            draft.set(tokens, concurrent);
        } else {
            draft.set(sequences, batched);
        }
        let text = format!(
            "{concurrent} sequences decode one token each in a pass of at most {batched} tokens: the two are made equal."
        );
        draft.remark("rollout", text);
    }
    let limit = "rollout.maxModelTokens";
    let prompt = draft.count("data.maxPromptTokens").unwrap_or(512);
    if let Some(length) = draft.count(limit).filter(|length| *length <= prompt) {
        draft.remove(limit);
        let text = format!(
            "a limit of {length} tokens leaves no completion behind a prompt of {prompt}: maxModelTokens is left out."
        );
        draft.remark("rollout", text);
    }
}

/// Token budgets, with the degrees of the ranks that share a pass.
const BUDGETS: [(&str, &[&str]); 5] = [
    ("training.maxTokensPerMicroBatch", &["sp"]),
    ("training.maxLogprobTokens", &["logprobSp", "sp"]),
    ("training.roles.critic.maxTokensPerMicroBatch", &["criticSp", "sp"]),
    ("training.roles.critic.maxForwardTokens", &["criticSp", "sp"]),
    ("training.roles.reference.maxForwardTokens", &["referenceSp", "logprobSp", "sp"]),
];

/// Raises budgets to the longest sequence, since a smaller one would fail in the middle of a run.
pub(super) fn budgets(draft: &mut Draft) {
    let prompt = draft.count("data.maxPromptTokens").unwrap_or(512);
    let completion = draft.count("rollout.maxCompletionTokens").unwrap_or(512);
    let whole = prompt.saturating_add(completion);
    let longest = draft.count("rollout.maxModelTokens").map_or(whole, |limit| limit.min(whole));
    for (path, degrees) in BUDGETS {
        let Some(given) = draft.count(path) else { continue };
        let degree = |name: &&str| draft.count(&format!("workers.mesh.{name}"));
        let mut ranks = degrees.iter().find_map(degree).unwrap_or(1);
        // Roles with their own degree but without their own budget share the actor's.
        for (role, budget) in
            SHARED.iter().filter(|(_, budget)| budget.0 == path).map(|(role, budget)| (role, budget.1))
        {
            if let Some(degree) = draft.count(role).filter(|_| !draft.has(budget)) {
                ranks = ranks.min(degree);
            }
        }
        let least = longest.div_ceil(ranks.max(1));
        if given < least {
            draft.set(path, least);
            let text = format!(
                "a budget of {given} tokens does not hold the longest sequence, {longest} tokens over {ranks} ranks: {path} is {least}."
            );
            draft.remark("training", text);
        }
    }
}

/// Degrees of roles, each with the shared budget and the role's own optional budget.
const SHARED: [(&str, (&str, &str)); 3] = [
    (
        "workers.mesh.criticSp",
        ("training.maxTokensPerMicroBatch", "training.roles.critic.maxTokensPerMicroBatch"),
    ),
    ("workers.mesh.criticSp", ("training.maxLogprobTokens", "training.roles.critic.maxForwardTokens")),
    ("workers.mesh.referenceSp", ("training.maxLogprobTokens", "training.roles.reference.maxForwardTokens")),
];
