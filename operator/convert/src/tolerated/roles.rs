//! Rules on the critic, the reference and offloading.

use rlt_api::conflicts::{CONFLICTS, Fact};

use crate::draft::Draft;

/// Yields the fields of roles that an adapter rules out, since the roles then have the actor's base weights.
fn fields_of_own_weights() -> impl Iterator<Item = &'static str> {
    let excluded = CONFLICTS.iter().filter(|conflict| conflict.with == [Fact::Adapter]);
    let paths = excluded.filter_map(|conflict| conflict.fact.field().strip_prefix("spec."));
    paths.filter(|path| path.starts_with("training.roles.") || path.starts_with("workers.mesh."))
}

/// Removes the fields of reference and critic that need their own base weights, if there is an adapter.
pub(super) fn adapter(draft: &mut Draft) {
    if !draft.has("model.lora") {
        return;
    }
    for path in fields_of_own_weights() {
        if draft.has(path) {
            draft.remove(path);
            let section = if path.starts_with("workers") { "workers" } else { "training" };
            let text = format!("{path} is left out: with an adapter the role has the actor's base weights.");
            draft.remark(section, text);
        }
    }
}

/// Kinds of jobs whose preset has a critic.
const KINDS_WITH_CRITIC: [&str; 3] = ["PPO", "VAPO", "PFPPO"];

/// Removes settings of a critic if the estimator reads no values.
pub(super) fn critic(draft: &mut Draft) {
    let has_critic = match (draft.text("algorithm.advantage.estimator"), draft.text("algorithm.kind")) {
        (Some(estimator), _) => matches!(estimator.as_str(), "Gae" | "LengthAdaptiveGae"),
        (None, kind) => kind.is_none_or(|kind| KINDS_WITH_CRITIC.contains(&kind.as_str())),
    };
    if has_critic {
        return;
    }
    for (prefix, section) in [("training.roles.critic", "training"), ("algorithm.critic", "algorithm")] {
        if draft.has(prefix) {
            draft.remove_below(prefix);
            draft.remark(section, "the estimator reads no values: settings of a critic have no effect.");
        }
    }
}

/// Removes the updates of a reference that nothing reads, since there is no KL divergence.
pub(super) fn reference_sync(draft: &mut Draft) {
    let path = "algorithm.referenceSync";
    if draft.text("algorithm.kl.placement").as_deref() == Some("None") && draft.has(path) {
        draft.remove_below(path);
        draft.remark(
            "algorithm",
            "without a KL divergence there is no reference: its updates have no effect.",
        );
    }
}

/// Turns checkpointing on if activations are offloaded, since only the inputs of checkpointed layers are. If
/// it is off explicitly, offloading is turned off instead.
pub(super) fn activations(draft: &mut Draft) {
    let (checkpointing, offload) = ("training.activationCheckpointing", "training.offload.activations");
    if !draft.is_true(offload) || draft.is_true(checkpointing) {
        return;
    }
    if draft.has(checkpointing) {
        draft.remove(offload);
        draft.remark(
            "training",
            "activations are offloaded only with activationCheckpointing: they stay on the device.",
        );
    } else {
        draft.set(checkpointing, true);
        draft.remark(
            "training",
            "activationCheckpointing is on, as it is there by default: offload.activations needs it.",
        );
    }
}
