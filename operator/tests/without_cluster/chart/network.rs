//! NetworkPolicies of the chart and of jobs: which pods and nodes reach the operator and the workers, and on
//! which ports, as an implementation of NetworkPolicy decides.

use std::collections::BTreeSet;

use rlt_objects::args::PullPolicy;
use rlt_objects::build::{self, BuildInput, ChannelAccess, PodSettings, Settings};
use rlt_objects::fixtures;
use rlt_objects::prepare::Prepared;
use serde_json::{Value, json};

use super::simulated_network::SimulatedNetwork;
use super::{Helm, objects, of_kind};

/// Namespace of the operator.
const OPERATOR: &str = "rl-operator";
/// Namespace of the jobs.
const TEAM: &str = "default";
/// Namespace of another team.
const OTHER_TEAM: &str = "team-b";
/// Port of the status channel.
const CHANNEL: u16 = 9443;
/// Port of the operator's metrics and probes.
const OPERATOR_METRICS: u16 = 8080;
/// A port on which ranks meet.
const RENDEZVOUS: u16 = 29500;
/// Port of the jobs' metrics.
const METRICS: u16 = 9400;
/// Port of name servers.
const NAMES: u16 = 53;

/// Workers of the job under test.
const WORKERS: [&str; 3] = ["worker", "peer", "spare"];
/// The workers of the job under test but the first.
const PEERS: [&str; 2] = ["peer", "spare"];

/// All objects that the chart renders with these values.
fn rendered(helm: &Helm, set: &str) -> Vec<Value> {
    objects(&helm.template(&["--namespace", OPERATOR, "--set", set]).unwrap())
}

/// The operator's pod and its NetworkPolicy.
fn operator(rendered: &[Value]) -> [Value; 2] {
    let mut pod = of_kind(rendered, "Deployment")[0]["spec"]["template"].clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = "rl-operator".into();
    pod["metadata"]["namespace"] = OPERATOR.into();
    [pod, of_kind(rendered, "NetworkPolicy")[0].clone()]
}

/// All objects of a job with these settings of workers, and with metrics.
fn job(name: &str, namespace: &str, workers: &Value) -> Vec<Value> {
    let mut job = fixtures::job(&json!({}));
    job.metadata.name = Some(name.to_owned());
    job.metadata.namespace = Some(namespace.to_owned());
    job.metadata.uid = Some(format!("{namespace}-{name}"));
    let mut spec: Value = serde_json::from_str(&job.spec).unwrap();
    spec["workers"] = workers.clone();
    spec["tracking"] = json!({ "prometheus": { "port": METRICS } });
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
    build::objects(&input, 1).unwrap()
}

/// A pod of someone else.
fn pod(name: &str, namespace: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace, "labels": labels },
        "spec": { "containers": [{ "name": "main", "image": "example.com/main:1" }] },
    })
}

/// A pod of the jobs' namespace that belongs to no job.
fn stranger() -> Value {
    pod("stranger", TEAM, &json!({ "app": "web" }))
}

#[test]
fn workers_of_any_namespace_reach_the_status_channel_and_others_only_by_their_nodes_if_jobs_may() {
    let Some(helm) = Helm::find() else { return };
    let cases = [
        ("podPrivileges.allow={Root}", false),
        ("podPrivileges.allow={HostNetwork}", true),
        // Jobs that began under a setting that was less strict.
        ("podPrivileges.allow={Root},networkPolicy.admitNodes=true", true),
    ];
    let guarded = json!({ "network": "Guarded" });
    let on_node = json!({ "network": "Guarded", "pod": { "hostNetwork": true } });
    for (set, is_node_accepted) in cases {
        let Some(mut network) = SimulatedNetwork::new() else { return };
        network.add(&["operator"], &operator(&rendered(&helm, set)));
        network.add(&["worker"], &job("adding", TEAM, &guarded));
        network.add(&["worker of another namespace"], &job("adding", OTHER_TEAM, &guarded));
        network.add(&["worker in its node's network"], &job("fast", TEAM, &on_node));
        network.add(&["stranger"], &[stranger()]);
        network.add(&["neighbour"], &[pod("neighbour", OPERATOR, &json!({ "app": "web" }))]);
        let all = network.other_ends("operator");
        // A worker in its node's network has the node's address, which the policy cannot tell from others.
        let workers = BTreeSet::from(["worker", "worker of another namespace"]);
        let expected = if is_node_accepted { &all } else { &workers };
        assert_eq!(network.callers("operator", CHANNEL), *expected, "{set}");
        assert_eq!(network.callers("operator", OPERATOR_METRICS), all, "{set}");
        assert_eq!(network.callers("operator", RENDEZVOUS), BTreeSet::new(), "{set}");
    }
}

#[test]
fn workers_of_a_job_reach_each_other_and_no_other_pod_or_node_reaches_them() {
    for access in ["Guarded", "Isolated"] {
        let Some(mut network) = SimulatedNetwork::new() else { return };
        let adding = job("adding", TEAM, &json!({ "network": access, "count": 2, "spares": 1 }));
        let labels = &of_kind(&adding, "Pod")[0]["metadata"]["labels"];
        network.add(&WORKERS, &adding);
        network.add(&["worker of another job"], &job("other", TEAM, &json!({ "network": "Guarded" })));
        network.add(&["copy in another namespace"], &[pod("copy", OTHER_TEAM, labels)]);
        network.add(&["stranger"], &[stranger()]);
        for port in [RENDEZVOUS, CHANNEL, NAMES, 22] {
            assert_eq!(network.callers("worker", port), BTreeSet::from(PEERS), "{access}: {port}");
        }
        let gang = BTreeSet::from(["peer", "worker"]);
        assert_eq!(network.callers("spare", RENDEZVOUS), gang, "{access}: a spare is a worker");
        assert_eq!(network.callers("worker", METRICS), network.other_ends("worker"), "{access}");
    }
}

/// Name servers and the operator may have any address, so their ports are open at every address.
#[test]
fn isolated_workers_call_each_other_and_the_channel_and_names_and_nothing_else() {
    let Some(helm) = Helm::find() else { return };
    let Some(mut network) = SimulatedNetwork::new() else { return };
    let isolated = json!({ "network": "Isolated", "count": 2, "spares": 1 });
    network.add(&["operator"], &operator(&rendered(&helm, "replicas=1")));
    network.add(&["names"], &[pod("coredns", "kube-system", &json!({ "k8s-app": "kube-dns" }))]);
    network.add(&WORKERS, &job("adding", TEAM, &isolated));
    network.add(&["guarded"], &job("other", TEAM, &json!({ "network": "Guarded" })));
    network.add(&["stranger"], &[stranger()]);
    let unguarded = BTreeSet::from(["names", "node", "stranger", "web"]);
    assert_eq!(network.destinations("guarded", "TCP", 443), unguarded, "egress is restricted");
    let anywhere: BTreeSet<_> = unguarded.into_iter().chain(PEERS).collect();
    for protocol in ["TCP", "UDP"] {
        assert_eq!(network.destinations("worker", protocol, NAMES), anywhere, "{protocol}");
        for port in [RENDEZVOUS, METRICS, OPERATOR_METRICS, 22, 443] {
            let destinations = network.destinations("worker", protocol, port);
            assert_eq!(destinations, BTreeSet::from(PEERS), "{protocol} {port}");
        }
    }
    let with_operator: BTreeSet<_> = anywhere.into_iter().chain(["operator"]).collect();
    assert_eq!(network.destinations("worker", "TCP", CHANNEL), with_operator);
    assert_eq!(network.destinations("worker", "UDP", CHANNEL), BTreeSet::from(PEERS));
}

/// Policies see the port of the operator's pod, and the address of workers names that of its Service.
#[test]
fn the_service_of_the_status_channel_has_the_port_of_the_operators_pod() {
    let Some(helm) = Helm::find() else { return };
    let rendered = rendered(&helm, "replicas=1");
    let services = of_kind(&rendered, "Service");
    let ports: Vec<_> =
        services.iter().flat_map(|service| service["spec"]["ports"].as_array().unwrap()).collect();
    let channel = ports.iter().find(|port| port["name"] == "channel").unwrap();
    assert_eq!((&channel["port"], &channel["targetPort"]), (&json!(CHANNEL), &json!(CHANNEL)));
}

#[test]
fn no_policy_holds_for_open_workers_and_for_those_in_the_networks_of_their_nodes() {
    let open = json!({ "network": "Open" });
    let on_node = json!({ "network": "Isolated", "pod": { "hostNetwork": true } });
    for workers in [open, on_node] {
        let Some(mut network) = SimulatedNetwork::new() else { return };
        network.add(&["worker"], &job("adding", TEAM, &workers));
        network.add(&["stranger"], &[stranger()]);
        let others = network.other_ends("worker");
        assert_eq!(network.callers("worker", RENDEZVOUS), others, "{workers}");
        assert_eq!(network.destinations("worker", "TCP", 443), others, "{workers}");
    }
}
