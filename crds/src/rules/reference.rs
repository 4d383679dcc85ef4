//! Rules of `spec.algorithm.referenceSync`: there is a reference, and it has its own weights.

use rlt_algorithms::declaration::{Family, Parameters};
use rlt_algorithms::preference::PreferenceLoss;

use super::algorithm::{cel_kl_placement, kl_placement};
use super::{Check, Rule, cel_learns_from, cel_list, conflict, learns_from, preference};
use crate::conflicts::REFERENCE_SYNC_ADAPTER;
use crate::spec::{KlPlacement, LearnsFrom, PreferenceLossKind, RLTrainingJobSpec};

/// Returns the losses of pairs that read a reference policy.
fn with_reference() -> Vec<PreferenceLossKind> {
    let reads =
        |kind: &PreferenceLossKind| PreferenceLoss::resolve(*kind, &Parameters::default()).reads_reference();
    PreferenceLossKind::ALL.iter().copied().filter(reads).collect()
}

fn is_of_pairs(from: LearnsFrom) -> bool {
    from.is_preference() && from != LearnsFrom::Labels
}

/// Whether the algorithm reads log-probs under a reference policy.
fn reads_reference(spec: &RLTrainingJobSpec) -> bool {
    match learns_from(spec) {
        LearnsFrom::Rewards => kl_placement(spec) != KlPlacement::None,
        LearnsFrom::Labels => true,
        from if is_of_pairs(from) => {
            let with_reference = with_reference();
            preference::all_losses(spec).iter().any(|loss| with_reference.contains(loss))
        }
        _ => false,
    }
}

fn cel_reads_reference() -> String {
    let kinds = cel_list(&with_reference());
    let losses = "self.preference.losses";
    format!(
        "({of_rewards} && {placement} != 'None') || {of_labels} || ({of_pairs} && \
         (has(self.preference) && has({losses}) ? {losses}.exists(one, one.loss in {kinds}) : \
         {loss} in {kinds}))",
        of_rewards = cel_learns_from("self", |from| from == LearnsFrom::Rewards),
        placement = cel_kl_placement("self"),
        of_labels = cel_learns_from("self", |from| from == LearnsFrom::Labels),
        of_pairs = cel_learns_from("self", is_of_pairs),
        loss = preference::cel_loss(),
    )
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.algorithm",
        at: "referenceSync",
        reads: &["referenceSync", "kind", "kl.placement", "preference.loss", "preference.losses"],
        message: "referenceSync moves a reference policy, which neither this kind nor its KL or losses read: remove it",
        cel: || format!("!has(self.referenceSync) || {}", cel_reads_reference()),
        holds: Check::Spec(|spec| spec.algorithm.reference_sync.is_none() || reads_reference(spec)),
        allowed: None,
    },
    conflict(REFERENCE_SYNC_ADAPTER),
];
