//! Nodes that a worker should avoid: those on which the job has failed before. For pods the avoidance is a
//! preferred node affinity, so a job never waits for another node. Kueue does not read preferences when it
//! chooses nodes (topology-aware scheduling), so a Workload excludes nodes by a required affinity.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
    PreferredSchedulingTerm,
};

/// Weight of one failure among a scheduler's preferences, and the maximum that Kubernetes allows.
const WEIGHT: u32 = 50;
const MAX_WEIGHT: u32 = 100;

/// Adds a preferred node affinity against each node of `failures_by_node` to the pod. Its weight grows with
/// the number of failures.
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

/// Adds the requirement to `affinity` that a pod runs on none of `nodes`.
pub(super) fn exclude(mut affinity: Option<Affinity>, nodes: &[String]) -> Option<Affinity> {
    if nodes.is_empty() {
        return affinity;
    }
    let of_nodes: &mut NodeAffinity = affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    let required = of_nodes
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_with(|| NodeSelector { node_selector_terms: vec![NodeSelectorTerm::default()] });
    // A node needs to match only one term of a selector, so each term must exclude all nodes.
    for term in &mut required.node_selector_terms {
        term.match_fields.get_or_insert_default().extend(nodes.iter().map(|node| other_than(node)));
    }
    affinity
}

fn wish_against(node: &str, failures: u32) -> PreferredSchedulingTerm {
    PreferredSchedulingTerm {
        preference: NodeSelectorTerm { match_fields: Some(vec![other_than(node)]), match_expressions: None },
        weight: failures.saturating_mul(WEIGHT).min(MAX_WEIGHT) as i32,
    }
}

/// Returns the requirement that a node has another name. Kubernetes allows only one name per requirement.
fn other_than(node: &str) -> NodeSelectorRequirement {
    NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "NotIn".into(),
        values: Some(vec![node.to_owned()]),
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

    #[test]
    fn each_term_of_a_required_affinity_excludes_each_node_and_nothing_changes_without_any() {
        let affinity = |terms: serde_json::Value| -> Option<Affinity> {
            let required = serde_json::json!({"nodeSelectorTerms": terms});
            let affinity = serde_json::json!({
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required},
            });
            serde_json::from_value(affinity).unwrap()
        };
        let zone = |zone: &str| serde_json::json!([{"key": "zone", "operator": "In", "values": [zone]}]);
        let fields = serde_json::json!([
            {"key": "metadata.name", "operator": "NotIn", "values": ["a"]},
            {"key": "metadata.name", "operator": "NotIn", "values": ["b"]},
        ]);
        let nodes = ["a".to_owned(), "b".to_owned()];
        assert_eq!(exclude(None, &nodes), affinity(serde_json::json!([{"matchFields": fields}])));
        let zones = || {
            affinity(serde_json::json!([{"matchExpressions": zone("x")}, {"matchExpressions": zone("y")}]))
        };
        let excluded = affinity(serde_json::json!([
            {"matchExpressions": zone("x"), "matchFields": fields},
            {"matchExpressions": zone("y"), "matchFields": fields},
        ]));
        assert_eq!(exclude(zones(), &nodes), excluded);
        assert_eq!((exclude(None, &[]), exclude(zones(), &[])), (None, zones()));
    }
}
