//! Cache of the nodes' states. The index has the pods of each node.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Node;

use rlt_objects::node_signals::{Impairment, NodeSignals};
use rlt_objects::worker::Worker;

/// Taint with which an administrator or a controller states that nothing runs on a node any more.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// State of a node that its workers depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// The node answers.
    Answers,
    /// The node answers, but workers should avoid or leave it.
    Impaired(Arc<Impairment>),
    /// The node does not answer; its processes may still run.
    Silent,
    /// The node is gone or tainted out-of-service: nothing runs on it any more.
    Lost,
}

/// States of nodes, by name.
pub type NodeStates = BTreeMap<Arc<str>, NodeState>;

impl NodeState {
    /// Reads the state of a node; `signals` decide whether it is impaired.
    pub fn read(node: &Node, signals: &NodeSignals) -> Self {
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        if taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE) {
            return Self::Lost;
        }
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
        // A new node has no conditions yet.
        if ready.any(|ready| ready.status != "True") {
            return Self::Silent;
        }
        signals.read(node).map_or(Self::Answers, Self::Impaired)
    }
}

/// Labels of nodes, by name.
pub type NodeLabels = BTreeMap<Arc<str>, BTreeMap<String, String>>;

/// Cache of the states of all nodes of the cluster. It stays empty if the operator may not read nodes.
#[derive(Debug, Default)]
pub struct Nodes {
    /// Taints and conditions that mark a node as impaired.
    pub signals: NodeSignals,
    known: Mutex<Option<HashMap<Arc<str>, NodeState>>>,
}

impl Nodes {
    /// Returns a cache for which nodes were not listed yet.
    pub fn new(signals: NodeSignals) -> Self {
        Self { signals, known: Mutex::default() }
    }

    /// Returns the cached states of the nodes of these workers.
    pub fn of(&self, workers: &[Arc<Worker>]) -> NodeStates {
        let known = self.lock();
        let Some(known) = known.as_ref() else { return NodeStates::new() };
        let names = workers.iter().filter_map(|worker| worker.node.clone());
        names.filter_map(|name| Some((name.clone(), known.get(&name)?.clone()))).collect()
    }

    /// Returns the names of all impaired nodes, sorted.
    pub fn impaired(&self) -> Vec<Arc<str>> {
        let known = self.lock();
        let nodes = known.iter().flatten();
        let impaired = nodes.filter(|(_, state)| matches!(state, NodeState::Impaired(_)));
        impaired.map(|(name, _)| name.clone()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the nodes of unfinished or terminating pods that are not in the cache. Such a node is gone, or
    /// the watch has not shown it yet; only the API server knows which. Empty until nodes were listed.
    pub fn uncached(&self, workers: &[Arc<Worker>]) -> BTreeSet<Arc<str>> {
        let known = self.lock();
        let Some(known) = known.as_ref() else { return BTreeSet::new() };
        let matters = |worker: &&Arc<Worker>| !worker.is_finished() || worker.is_deleting;
        let names = workers.iter().filter(matters).filter_map(|worker| worker.node.clone());
        names.filter(|name| !known.contains_key(name)).collect()
    }

    /// Adds or updates a node. Returns whether its state changed.
    pub fn enter(&self, name: &str, state: NodeState) -> bool {
        let mut known = self.lock();
        let Some(known) = known.as_mut() else { return false };
        let before = known.insert(name.into(), state);
        before.as_ref() != known.get(name)
    }

    /// Removes a deleted node.
    pub fn remove(&self, name: &str) {
        if let Some(known) = self.lock().as_mut() {
            known.remove(name);
        }
    }

    /// Replaces all nodes after a list. Returns those whose state changed.
    pub fn replace(&self, listed: HashMap<Arc<str>, NodeState>) -> Vec<Arc<str>> {
        let mut known = self.lock();
        let before = known.take().unwrap_or_default();
        let is_changed = |name: &&Arc<str>| before.get(*name) != listed.get(*name);
        let gone = before.keys().filter(|name| !listed.contains_key(*name));
        let changed = listed.keys().filter(is_changed).chain(gone).cloned().collect();
        *known = Some(listed);
        changed
    }

    fn lock(&self) -> MutexGuard<'_, Option<HashMap<Arc<str>, NodeState>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use rlt_objects::worker::WorkerPhase;
    use serde_json::{Value, json};

    use super::*;
    use crate::decide::fixtures::worker;

    fn state(taint: Value, ready: Value) -> NodeState {
        let node = json!({"spec": {"taints": taint}, "status": {"conditions": ready}});
        NodeState::read(&serde_json::from_value(node).unwrap(), &NodeSignals::default())
    }

    #[test]
    fn a_node_is_lost_only_if_it_is_deleted_or_tainted_as_out_of_service() {
        let ready = |status: &str| json!([{"type": "Ready", "status": status}]);
        let taint = |key: &str| json!([{"key": key, "effect": "NoExecute"}]);
        assert_eq!(state(json!([]), ready("True")), NodeState::Answers);
        assert_eq!(state(json!([]), json!([])), NodeState::Answers);
        assert_eq!(state(taint("node.kubernetes.io/unreachable"), ready("Unknown")), NodeState::Silent);
        assert_eq!(state(json!([]), ready("False")), NodeState::Silent);
        assert_eq!(state(taint(OUT_OF_SERVICE), ready("Unknown")), NodeState::Lost);
    }

    #[test]
    fn nothing_is_known_before_all_nodes_were_listed_and_then_an_absent_one_is_to_be_asked_about() {
        let on = |name: &str| Arc::new(Worker { node: Some(name.into()), ..worker(0, 1) });
        let (nodes, workers) = (Nodes::default(), [on("a"), on("b")]);
        assert!(!nodes.enter("a", NodeState::Answers));
        assert!(nodes.of(&workers).is_empty() && nodes.uncached(&workers).is_empty());
        let listed = |state| HashMap::from([("a".into(), state)]);
        assert_eq!(nodes.replace(listed(NodeState::Answers)), ["a".into()]);
        assert_eq!(nodes.of(&workers), [("a".into(), NodeState::Answers)].into());
        assert_eq!(nodes.uncached(&workers), ["b".into()].into());
        let ended = Worker { phase: WorkerPhase::Succeeded, node: Some("b".into()), ..worker(1, 1) };
        assert!(
            nodes.uncached(&[Arc::new(ended)]).is_empty(),
            "nothing depends on the node of one that has ended"
        );
        assert!(nodes.enter("b", NodeState::Silent) && !nodes.enter("b", NodeState::Silent));
        assert_eq!(nodes.replace(listed(NodeState::Answers)), ["b".into()]);
    }
}
