//! Taints and conditions that mark a node as impaired: its termination was announced, or its hardware is
//! broken. Workers leave or avoid an impaired node. The operator's settings list the taints and conditions.

use std::str::FromStr;
use std::sync::Arc;

use clap::ValueEnum;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use k8s_openapi::jiff::Timestamp;
use rlt_api::FailureCause;

/// Conditions that report broken hardware or a broken kernel: those of node-problem-detector and its
/// counterparts on AKS (`GPUMissing`, `NVLinkStatusInactive`, `XIDErrors`), EKS (`AcceleratedHardwareReady`)
/// and Nebius (`NebiusGPUError`).
pub const DEFAULT_CONDITIONS: &str = "AcceleratedHardwareReady=False,GPUMissing,KernelDeadlock,NVLinkStatusInactive,\
                                      NebiusGPUError,ReadonlyFilesystem,XIDErrors";
/// Taints of a node that is about to be terminated: those of AWS, Google Cloud, Karpenter and the cluster
/// autoscaler.
pub const DEFAULT_TERMINATION_TAINTS: &str = "aws-node-termination-handler/*,cloud.google.com/impending-node-termination,\
                                              karpenter.sh/disrupted,ToBeDeletedByClusterAutoscaler";

/// Taints and conditions that mark a node as impaired, and the action on its workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSignals {
    /// Conditions that report a problem.
    pub conditions: Vec<ConditionSignal>,
    /// Keys of taints that announce a node's termination; `*` at the end matches any suffix.
    pub termination_taints: Vec<String>,
    /// Action for workers on a node that gets such a condition.
    pub on_problem: OnNodeProblem,
}

/// Condition that reports a problem: `XIDErrors`, or `AcceleratedHardwareReady=False` where a status other
/// than `True` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionSignal {
    type_: String,
    status: String,
}

/// List of [`ConditionSignal`]s, separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConditionSignals(pub Vec<ConditionSignal>);

/// Action for workers on a node that gets a problem while they run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum OnNodeProblem {
    /// The workers save a checkpoint and stop, and the next ones prefer other nodes.
    #[default]
    Restart,
    /// The workers run on; should they fail, the next ones prefer other nodes.
    Ignore,
}

/// Impairment of a node: a reason for workers to leave or avoid it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impairment {
    /// Failure cause of attempts that the impairment ends.
    pub cause: FailureCause,
    /// Taint or condition, for messages.
    pub message: String,
    /// Time at which the impairment began; `None` if the node does not report it.
    pub since: Option<Timestamp>,
    /// Whether the impairment stops running workers.
    pub stops_workers: bool,
}

/// The text of a condition is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no condition: expected a type such as XIDErrors, or TYPE=True, TYPE=False or TYPE=Unknown")]
pub struct ConditionSignalError(String);

impl FromStr for ConditionSignal {
    type Err = ConditionSignalError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (type_, status) = text.split_once('=').unwrap_or((text, "True"));
        let is_known = matches!(status, "True" | "False" | "Unknown");
        if type_.is_empty() || type_.contains(char::is_whitespace) || !is_known {
            return Err(ConditionSignalError(text.to_owned()));
        }
        Ok(Self { type_: type_.to_owned(), status: status.to_owned() })
    }
}

impl FromStr for ConditionSignals {
    type Err = ConditionSignalError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        items.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl NodeSignals {
    /// Returns the impairment of a node, if any; a termination takes precedence over problems.
    pub fn read(&self, node: &Node) -> Option<Arc<Impairment>> {
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        let ends = taints.into_iter().find(|taint| self.is_termination(&taint.key));
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let mut problems = conditions.filter(|condition| self.is_problem(condition));
        ends.map(termination).or_else(|| problems.next().map(|one| self.problem(one))).map(Arc::new)
    }

    fn is_termination(&self, key: &str) -> bool {
        self.termination_taints.iter().any(|known| match known.strip_suffix('*') {
            Some(prefix) => key.starts_with(prefix),
            None => key == known,
        })
    }

    fn is_problem(&self, condition: &NodeCondition) -> bool {
        let is = |known: &ConditionSignal| known.type_ == condition.type_ && known.status == condition.status;
        self.conditions.iter().any(is)
    }

    fn problem(&self, condition: &NodeCondition) -> Impairment {
        let NodeCondition { type_, reason, message, .. } = condition;
        let words = [reason, message].into_iter().flatten().filter(|word| !word.is_empty());
        let words = words.map(|word| format!(": {word}")).collect::<String>();
        Impairment {
            cause: FailureCause::NodeProblem,
            message: format!("condition {type_} is {}{words}", condition.status),
            since: condition.last_transition_time.as_ref().map(|time| time.0),
            stops_workers: self.on_problem == OnNodeProblem::Restart,
        }
    }
}

fn termination(taint: &Taint) -> Impairment {
    Impairment {
        cause: FailureCause::NodeTerminating,
        message: format!("taint {}", taint.key),
        since: taint.time_added.as_ref().map(|time| time.0),
        stops_workers: true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn signals(on_problem: OnNodeProblem) -> NodeSignals {
        let conditions = DEFAULT_CONDITIONS.parse::<ConditionSignals>().unwrap().0;
        let termination_taints = DEFAULT_TERMINATION_TAINTS.split(',').map(str::to_owned).collect();
        NodeSignals { conditions, termination_taints, on_problem }
    }

    fn impairment(taints: &[&str], conditions: Value) -> Option<(FailureCause, String)> {
        let taints: Vec<_> = taints.iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
        let node = json!({"spec": {"taints": taints}, "status": {"conditions": conditions}});
        let read = signals(OnNodeProblem::Restart).read(&serde_json::from_value(node).unwrap())?;
        Some((read.cause, read.message.clone()))
    }

    fn condition(type_: &str, status: &str) -> Value {
        json!([{"type": "Ready", "status": "True"}, {"type": type_, "status": status, "reason": "Xid79"}])
    }

    #[test]
    fn conditions_of_broken_hardware_are_known_by_type_and_status() {
        let problem = |message: &str| Some((FailureCause::NodeProblem, message.to_owned()));
        let read = |type_, status| impairment(&[], condition(type_, status));
        assert_eq!(read("XIDErrors", "True"), problem("condition XIDErrors is True: Xid79"));
        assert_eq!(read("XIDErrors", "False"), None);
        assert_eq!(read("XIDErrors", "Unknown"), None);
        let accelerated = "condition AcceleratedHardwareReady is False: Xid79";
        assert_eq!(read("AcceleratedHardwareReady", "False"), problem(accelerated));
        assert_eq!(read("AcceleratedHardwareReady", "True"), None);
        assert_eq!(read("MemoryPressure", "True"), None);
    }

    #[test]
    fn termination_is_read_from_taints_and_precedes_problems() {
        let ends = |key: &str| Some((FailureCause::NodeTerminating, format!("taint {key}")));
        for key in ["aws-node-termination-handler/spot-itn", "cloud.google.com/impending-node-termination"] {
            assert_eq!(impairment(&[key], condition("XIDErrors", "True")), ends(key));
        }
        for key in ["aws-node-termination", "karpenter.sh/disrupted-not", "node.kubernetes.io/unschedulable"]
        {
            assert_eq!(impairment(&[key], json!([])), None, "{key}");
        }
    }

    #[test]
    fn the_cluster_decides_whether_a_problem_stops_workers_and_never_whether_a_nodes_end_does() {
        let broken = json!({"status": {"conditions": condition("XIDErrors", "True")}});
        let ending = json!({"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}});
        for (on_problem, stops) in [(OnNodeProblem::Restart, true), (OnNodeProblem::Ignore, false)] {
            let read = |node: &Value| {
                signals(on_problem)
                    .read(&serde_json::from_value(node.clone()).unwrap())
                    .unwrap()
                    .stops_workers
            };
            assert_eq!((read(&broken), read(&ending)), (stops, true));
        }
    }

    #[test]
    fn a_condition_that_cannot_be_meant_is_refused() {
        for wrong in ["", "=True", "XIDErrors=Yes", "XID Errors", "XIDErrors="] {
            let error = wrong.parse::<ConditionSignal>().unwrap_err().to_string();
            assert!(error.contains("TYPE=False"), "{error}");
        }
        assert!("XIDErrors,GPU Missing".parse::<ConditionSignals>().is_err());
        assert_eq!("".parse(), Ok(ConditionSignals::default()), "none stop anything");
    }
}
