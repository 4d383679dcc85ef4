//! NetworkPolicies of the chart and of jobs, evaluated as Kubernetes defines them: which pods and nodes reach
//! the operator and the workers, and on which ports.

use rlt_objects::args::PullPolicy;
use rlt_objects::build::{self, BuildInput, ChannelAccess, PodSettings, Settings};
use rlt_objects::fixtures;
use rlt_objects::prepare::Prepared;
use serde_json::{Value, json};

use super::{Helm, objects, of_kind};

/// Namespace of the operator.
const OPERATOR: &str = "rl-operator";
/// Namespace of the jobs.
const TEAM: &str = "default";
/// Port of the status channel.
const CHANNEL: u16 = 9443;
/// A port on which ranks meet.
const RENDEZVOUS: u16 = 29500;

/// The other end of a connection.
struct Peer {
    /// The namespace of a pod; `None` for an address that is no pod's, such as a node's. Pods in their nodes'
    /// networks have these, and no selector matches them.
    namespace: Option<&'static str>,
    labels: Value,
}

impl Peer {
    fn pod(namespace: &'static str, labels: &Value) -> Self {
        Self { namespace: Some(namespace), labels: labels.clone() }
    }

    fn node() -> Self {
        Self { namespace: None, labels: Value::Null }
    }
}

fn matches(selector: &Value, labels: &Value) -> bool {
    assert!(selector["matchExpressions"].is_null(), "only matchLabels are evaluated: {selector}");
    let wanted = selector["matchLabels"].as_object();
    wanted.is_none_or(|wanted| wanted.iter().all(|(name, value)| labels[name] == *value))
}

/// Whether an entry of `from` or `to` in a policy of this namespace selects the peer.
fn selects(entry: &Value, namespace: &str, peer: &Peer) -> bool {
    assert!(entry["ipBlock"].is_null(), "blocks of addresses are not evaluated: {entry}");
    let Some(of_peer) = peer.namespace else { return false };
    let is_in_namespace = match &entry["namespaceSelector"] {
        Value::Null => of_peer == namespace,
        // Every namespace has its name as a label.
        selector => matches(selector, &json!({ "kubernetes.io/metadata.name": of_peer })),
    };
    is_in_namespace && matches(&entry["podSelector"], &peer.labels)
}

/// Whether a rule allows a connection. An absent list allows everything, an empty one does too.
fn allows(rule: &Value, peers: &str, namespace: &str, peer: &Peer, port: u16) -> bool {
    let any = |list: &Value, holds: &dyn Fn(&Value) -> bool| {
        list.as_array().is_none_or(|entries| entries.is_empty() || entries.iter().any(holds))
    };
    any(&rule[peers], &|entry| selects(entry, namespace, peer))
        && any(&rule["ports"], &|entry| {
            entry["protocol"] == "TCP" && (entry["port"].is_null() || entry["port"] == port)
        })
}

/// Names of the fields of one direction.
struct Direction {
    kind: &'static str,
    rules: &'static str,
    peers: &'static str,
}

const INGRESS: Direction = Direction { kind: "Ingress", rules: "ingress", peers: "from" };
const EGRESS: Direction = Direction { kind: "Egress", rules: "egress", peers: "to" };

impl Direction {
    /// Whether the pods of a policy may have a TCP connection in this direction.
    fn is_open(&self, policy: &Value, peer: &Peer, port: u16) -> bool {
        let kinds = policy["spec"]["policyTypes"].as_array().unwrap();
        let namespace = policy["metadata"]["namespace"].as_str().unwrap();
        let mut rules = policy["spec"][self.rules].as_array().into_iter().flatten();
        !kinds.contains(&json!(self.kind))
            || rules.any(|rule| allows(rule, self.peers, namespace, peer, port))
    }
}

/// Whether the pods of a policy accept a TCP connection.
fn accepts(policy: &Value, peer: &Peer, port: u16) -> bool {
    INGRESS.is_open(policy, peer, port)
}

/// Whether the pods of a policy may open a TCP connection.
fn may_call(policy: &Value, peer: &Peer, port: u16) -> bool {
    EGRESS.is_open(policy, peer, port)
}

/// The policy of the operator that the chart renders with these values.
fn policy_of_operator(helm: &Helm, set: &str) -> (Value, Vec<Value>) {
    let rendered = objects(&helm.template(&["--namespace", OPERATOR, "--set", set]).unwrap());
    (of_kind(&rendered, "NetworkPolicy")[0].clone(), rendered)
}

/// The NetworkPolicy of a job with this UID, and the labels of its first pod.
fn job(uid: &str, network: &str) -> (Value, Value) {
    let mut job = fixtures::job(&json!({}));
    job.metadata.uid = Some(uid.to_owned());
    let mut spec: Value = serde_json::from_str(&job.spec).unwrap();
    spec["workers"] = json!({ "network": network });
    job.spec = spec.to_string();
    let prepared = Prepared::new(&job).unwrap();
    let address = format!("https://rl-operator-channel.{OPERATOR}.svc:{CHANNEL}");
    let settings = Settings {
        trainer_image: "rlt.local/rlt-trainer:dev".into(),
        trainer_cuda_image: None,
        pull_policy: PullPolicy::Never,
        channel: Some(ChannelAccess { address, authority: "PEM".into() }),
        traces: Vec::new(),
        pods: PodSettings::default(),
    };
    let input = BuildInput { job: &job, prepared: &prepared, settings: &settings };
    let objects = build::objects(&input, 1).unwrap();
    let labels = of_kind(&objects, "Pod")[0]["metadata"]["labels"].clone();
    (of_kind(&objects, "NetworkPolicy")[0].clone(), labels)
}

#[test]
fn workers_of_any_namespace_reach_the_status_channel_and_others_only_by_their_nodes_if_jobs_may() {
    let Some(helm) = Helm::find() else { return };
    let (_, labels) = job("a", "Guarded");
    let worker = Peer::pod(TEAM, &labels);
    let stranger = Peer::pod(TEAM, &json!({ "app": "web" }));
    let cases = [
        ("podPrivileges.allow={Root}", false),
        ("podPrivileges.allow={HostNetwork}", true),
        // Jobs that began under a setting that was less strict.
        ("podPrivileges.allow={Root},networkPolicy.admitNodes=true", true),
    ];
    for (set, is_node_accepted) in cases {
        let (policy, rendered) = policy_of_operator(&helm, set);
        let deployment = of_kind(&rendered, "Deployment")[0]["spec"]["template"]["metadata"].clone();
        assert!(matches(&policy["spec"]["podSelector"], &deployment["labels"]), "{policy}");
        assert!(accepts(&policy, &worker, CHANNEL), "{set}");
        // A worker in its node's network has the node's address.
        assert_eq!(accepts(&policy, &Peer::node(), CHANNEL), is_node_accepted, "{set}");
        assert_eq!(accepts(&policy, &stranger, CHANNEL), is_node_accepted, "{set}");
        assert!(accepts(&policy, &stranger, 8080), "metrics and probes");
        assert!(!accepts(&policy, &worker, RENDEZVOUS));
    }
}

#[test]
fn workers_of_a_job_reach_each_other_and_no_other_pod_or_node_reaches_them() {
    for network in ["Guarded", "Isolated"] {
        let (policy, labels) = job("a", network);
        let (_, of_other) = job("b", network);
        assert!(matches(&policy["spec"]["podSelector"], &labels));
        assert!(!matches(&policy["spec"]["podSelector"], &of_other), "each job has its own policy");
        assert!(accepts(&policy, &Peer::pod(TEAM, &labels), RENDEZVOUS));
        let elsewhere = Peer::pod("other", &labels);
        for stranger in [Peer::pod(TEAM, &of_other), elsewhere, Peer::node()] {
            assert!(!accepts(&policy, &stranger, RENDEZVOUS), "{network}");
        }
    }
}

#[test]
fn isolated_workers_call_each_other_and_the_channel_and_names_and_nothing_else() {
    let (guarded, _) = job("a", "Guarded");
    let (isolated, labels) = job("a", "Isolated");
    let web = Peer::node();
    assert!(may_call(&guarded, &web, 443));
    assert!(!may_call(&isolated, &web, 443) && !may_call(&isolated, &web, RENDEZVOUS));
    assert!(may_call(&isolated, &Peer::pod(TEAM, &labels), RENDEZVOUS));
    // Policies see the port of the operator's pod, which is that of its Service.
    let operator = Peer::pod(OPERATOR, &json!({ "app.kubernetes.io/name": "rl-operator" }));
    assert!(may_call(&isolated, &operator, CHANNEL));
    assert!(may_call(&isolated, &web, 53), "names");
    let Some(helm) = Helm::find() else { return };
    let (_, rendered) = policy_of_operator(&helm, "replicas=1");
    let services = of_kind(&rendered, "Service");
    let ports: Vec<_> =
        services.iter().flat_map(|service| service["spec"]["ports"].as_array().unwrap()).collect();
    let channel = ports.iter().find(|port| port["name"] == "channel").unwrap();
    assert_eq!((&channel["port"], &channel["targetPort"]), (&json!(CHANNEL), &json!(CHANNEL)));
}
