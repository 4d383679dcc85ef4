//! Nodes that a worker should avoid: those on which the job has failed before. The avoidance is a preferred
//! node affinity, so a job never waits for another node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, Pod, PreferredSchedulingTerm,
};

/// Weight of one failure among a scheduler's preferences, and the maximum that Kubernetes allows.
const WEIGHT: u32 = 50;
const MAX_WEIGHT: u32 = 100;

/// Adds a preferred affinity against each of these nodes to the pod; its weight grows with the node's
/// failures.
pub fn avoid(mut pod: Pod, failures_by_node: &BTreeMap<String, u32>) -> Pod {
    let wishes = failures_by_node.iter().map(|(node, failures)| wish_against(node, *failures));
    let wishes: Vec<_> = wishes.collect();
    if let Some(spec) = pod.spec.as_mut().filter(|_| !wishes.is_empty()) {
        let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
        let nodes: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
        nodes.preferred_during_scheduling_ignored_during_execution.get_or_insert_default().extend(wishes);
    }
    pod
}

fn wish_against(node: &str, failures: u32) -> PreferredSchedulingTerm {
    let other = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "NotIn".into(),
        values: Some(vec![node.to_owned()]),
    };
    PreferredSchedulingTerm {
        preference: NodeSelectorTerm { match_fields: Some(vec![other]), match_expressions: None },
        weight: failures.saturating_mul(WEIGHT).min(MAX_WEIGHT) as i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_avoided_the_more_the_more_failures_it_has_and_nothing_is_said_without_any() {
        let pod = || Pod { spec: Some(Default::default()), ..Pod::default() };
        assert_eq!(avoid(pod(), &BTreeMap::new()), pod());
        let avoided = avoid(pod(), &[("a".to_owned(), 1), ("b".to_owned(), 7)].into());
        let nodes = avoided.spec.unwrap().affinity.unwrap().node_affinity.unwrap();
        let wishes = nodes.preferred_during_scheduling_ignored_during_execution.unwrap();
        assert_eq!(wishes.iter().map(|wish| wish.weight).collect::<Vec<_>>(), [50, 100]);
        assert_eq!(nodes.required_during_scheduling_ignored_during_execution, None);
    }
}
