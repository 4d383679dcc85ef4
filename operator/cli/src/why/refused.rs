//! Explanation of objects that the API server rejects: quotas, policies, missing classes, names that are
//! taken.

use rlt_api::Reason;
use rlt_api::status::{ConditionType, RLTrainingJobStatus};

use super::explanation::{Explanation, when_true};

pub(super) fn refused(status: &RLTrainingJobStatus) -> Option<Explanation> {
    let stalled = when_true(status, ConditionType::Stalled)?;
    let message = stalled.message.as_str();
    let is_because = |reason: Reason| stalled.reason == reason.name();
    if is_because(Reason::ObjectRefused) {
        return Some(quota(message).unwrap_or_else(|| object(message)));
    }
    if is_because(Reason::NameConflict) {
        return Some(taken(message));
    }
    if !is_because(Reason::WorkersRefused) {
        return None;
    }
    Some(
        quota(message)
            .or_else(|| policy(message))
            .or_else(|| class(message))
            .unwrap_or_else(|| other(message)),
    )
}

/// Explains an exceeded quota, from a message such as `exceeded quota: team, requested: limits.memory=2Gi,
/// used: limits.memory=7Gi, limited: limits.memory=8Gi`.
fn quota(message: &str) -> Option<Explanation> {
    let (_, rest) = message.split_once("exceeded quota: ")?;
    let (name, rest) = rest.split_once(", requested: ")?;
    let (requested, rest) = rest.split_once(", used: ")?;
    let (used, limited) = rest.split_once(", limited: ")?;
    let amount = |list: &str, resource: &str| {
        let pairs = list.split(',').filter_map(|pair| pair.trim().split_once('='));
        pairs.into_iter().find(|(name, _)| *name == resource).map(|(_, amount)| amount.to_owned())
    };
    let lines = requested.split(',').filter_map(|pair| {
        let (resource, asked) = pair.trim().split_once('=')?;
        let (used, limit) = (amount(used, resource)?, amount(limited, resource)?);
        Some(format!("{resource}: a worker asks for {asked}, and {used} of {limit} are in use"))
    });
    Some(
        Explanation::new(format!("cannot make its workers: quota `{name}` is used up"))
            .because(lines)
            .so(format!("wait for other work to end, or have quota `{name}` raised; the operator tries again by itself"))
            .so("or ask for less: spec.workers.count, spec.workers.resources"),
    )
}

fn policy(message: &str) -> Option<Explanation> {
    let (_, violated) = message.split_once("violates PodSecurity ")?;
    Some(
        Explanation::new("cannot make its workers: the namespace's pod security refuses them")
            .because([violated.to_owned()])
            .so("workers keep to the level `restricted`; see what a webhook of the cluster changes in them"),
    )
}

fn class(message: &str) -> Option<Explanation> {
    let (_, rest) = message.split_once("no PriorityClass with name ")?;
    let name = rest.split(" was found").next().unwrap_or(rest);
    Some(
        Explanation::new(format!("cannot make its workers: there is no PriorityClass `{name}`"))
            .because([message.to_owned()])
            .so("correct spec.workers.priorityClassName, in a new job, or have the class made"),
    )
}

fn object(message: &str) -> Explanation {
    Explanation::new("cannot apply its objects: the API server refuses one")
        .because([message.to_owned()])
        .so("correct what the message names, such as a permission that the operator lacks or a field that cannot be changed")
        .so("the operator tries again every 30 s")
}

fn taken(message: &str) -> Explanation {
    Explanation::new("cannot apply its objects: a name that it needs is taken")
        .because([message.to_owned()])
        .so("delete that object, or give the job another name; the operator tries again every 30 s")
}

fn other(message: &str) -> Explanation {
    Explanation::new("cannot make its workers: the API server refuses them")
        .because([message.to_owned()])
        .so("correct what the message names; the operator tries again every 30 s")
}
