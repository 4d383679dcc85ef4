//! Translation of the scheduler's message: which nodes lack what, in the terms of the manifest.

use super::JobSnapshot;

/// The contents of the scheduler's message, with the changes that would help.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) evidence: Vec<String>,
    pub(super) change: Vec<String>,
}

/// Parses a message such as `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {a:
/// b}.`
pub(super) fn read(snapshot: &JobSnapshot, message: &str) -> Reading {
    let Some((total, reasons)) = parse(message) else {
        return Reading { evidence: vec![message.to_owned()], change: vec![CLAIM_OR_NODES.to_owned()] };
    };
    let mut reading = Reading::default();
    for (count, reason) in reasons {
        let (what, change) = in_our_words(snapshot, &reason);
        let nodes = count.map(|count| format!("{count} of {total} nodes: ")).unwrap_or_default();
        reading.evidence.push(format!("{nodes}{what}"));
        reading.change.extend(change.filter(|change| !reading.change.contains(change)));
    }
    reading
}

/// A reason why nodes are unsuitable, with the number of such nodes if it is given.
type Reason = (Option<u32>, String);

const CLAIM_OR_NODES: &str = "see `kubectl get nodes` and `kubectl get pvc`";

/// Parses the number of nodes, and the reasons with the number of nodes to which each applies.
fn parse(message: &str) -> Option<(u32, Vec<Reason>)> {
    let (head, rest) = message.split_once(" nodes are available: ")?;
    let total = head.rsplit('/').next()?.parse().ok()?;
    // The rest is about preemption: `no new claims to deallocate, preemption: 0/3 nodes are available: ...`.
    let reasons = rest.split(". ").next().unwrap_or(rest).trim_end_matches('.');
    let mut parsed: Vec<Reason> = Vec::new();
    for piece in reasons.split(", ") {
        let counted = piece.split_once(' ').and_then(|(count, reason)| Some((count.parse().ok()?, reason)));
        match (counted, parsed.last_mut()) {
            (Some((count, reason)), _) => parsed.push((Some(count), reason.to_owned())),
            // The reason itself contains a comma.
            (None, Some((_, reason))) => *reason = format!("{reason}, {piece}"),
            (None, None) => parsed.push((None, piece.to_owned())),
        }
    }
    Some((total, parsed))
}

fn in_our_words(snapshot: &JobSnapshot, reason: &str) -> (String, Option<String>) {
    if let Some(resource) = reason.strip_prefix("Insufficient ") {
        return insufficient(snapshot, resource);
    }
    let workers = snapshot.prepared.as_ref().ok().map(|prepared| &prepared.job.spec().workers);
    if reason.contains("node affinity/selector") {
        let labels = workers.map(|workers| {
            let labels = workers.node_selector.iter().map(|(name, value)| format!("{name}={value}"));
            labels.collect::<Vec<_>>().join(", ")
        });
        let labels = labels.filter(|labels| !labels.is_empty()).map(|labels| format!(" ({labels})"));
        let what = format!("not what spec.workers.nodeSelector asks for{}", labels.unwrap_or_default());
        return (what, Some("correct spec.workers.nodeSelector, or label nodes so".to_owned()));
    }
    if reason.contains("taint") {
        let taint = reason.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(taint, _)| taint);
        let what = format!("a taint that the workers do not tolerate ({})", taint.unwrap_or(reason));
        return (
            what,
            Some("name the taint in spec.workers.tolerations, if workers may run there".to_owned()),
        );
    }
    if reason.contains("unbound immediate PersistentVolumeClaims") {
        let what = "its claim has no volume yet".to_owned();
        return (
            what,
            Some("see `kubectl describe pvc`; correct spec.workers.storage.storageClassName".to_owned()),
        );
    }
    if reason.contains("were unschedulable") {
        return ("cordoned".to_owned(), Some("uncordon nodes when their maintenance is over".to_owned()));
    }
    if reason.contains("volume") {
        let what = format!("its volume cannot be used there: {reason}");
        return (what, Some("let the volume and the nodes be of one zone".to_owned()));
    }
    (reason.trim_start_matches("node(s) ").to_owned(), None)
}

fn insufficient(snapshot: &JobSnapshot, resource: &str) -> (String, Option<String>) {
    let Ok(prepared) = &snapshot.prepared else { return (format!("too little {resource}"), None) };
    let resources = &prepared.job.spec().workers.resources;
    let asks = |amount: Option<String>| amount.map(|amount| format!(": a worker asks for {amount}"));
    let lower = |field: &str| Some(format!("lower {field}, free nodes, or add larger ones"));
    if resource == resources.gpu {
        let ranks = prepared.plan.worker_groups.first().map(|group| group.ranks_per_worker.to_string());
        let what = format!("too few free {resource}{}", asks(ranks).unwrap_or_default());
        let change = "free or add GPUs, lower spec.workers.count or ranksPerWorker, or train without by spec.workers.device: Cpu";
        return (what, Some(change.to_owned()));
    }
    let (amount, field) = match resource {
        "cpu" => (resources.cpu.clone(), "spec.workers.resources.cpu"),
        "memory" => (resources.memory.clone(), "spec.workers.resources.memory"),
        _ => (None, "what the workers ask for"),
    };
    (format!("too little free {resource}{}", asks(amount).unwrap_or_default()), lower(field))
}
