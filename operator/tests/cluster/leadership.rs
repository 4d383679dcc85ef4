//! Leadership among operators, authentication of workers on the channel, and the count of calls.

use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rlt_cluster::{Cluster, Fault, Faults};
use rlt_operator::client::{ApiLayer, CallRate, Limiter};
use rlt_operator::lease::{Candidate, Election, LeaseError, Term, Timing};
use rlt_operator::metrics::Metrics;
use rlt_operator::progress::{CachedCertificates, Reviewer as _, TokenReviewer, announce, certificates};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{CLUSTER, TIMEOUT};

/// Timing of an election in which no Lease expires: a write alone ends a term.
const NO_EXPIRY: Timing = Timing {
    valid_for: Duration::from_secs(3600),
    renew_within: Duration::from_secs(1800),
    renew_every: Duration::from_millis(100),
    retry_after: Duration::from_millis(20),
    call_timeout: TIMEOUT,
};

fn candidate(namespace: &str, identity: &str, timing: Timing) -> Candidate {
    Candidate {
        namespace: namespace.into(),
        name: "rl-operator".into(),
        identity: identity.into(),
        service: None,
        timing,
    }
}

async fn until(what: &str, mut leadership: watch::Receiver<bool>) {
    let led = tokio::time::timeout(TIMEOUT, leadership.wait_for(|leads| *leads)).await;
    assert!(led.is_ok_and(|led| led.is_ok()), "{what} within {TIMEOUT:?}");
}

/// Waits until the Lease has been renewed `count` times.
async fn wait_for_renewals(leases: &Api<Lease>, count: usize) {
    let renewed_at = async || leases.get("rl-operator").await.unwrap().spec.unwrap().renew_time;
    let mut last = renewed_at().await;
    let counted = async {
        for _ in 0..count {
            while renewed_at().await == last {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            last = renewed_at().await;
        }
    };
    tokio::time::timeout(TIMEOUT, counted).await.unwrap();
}

async fn config(cluster: &Cluster) -> Config {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.default_retry = false;
    config
}

async fn faulty_client(cluster: &Cluster, faults: &Faults) -> Client {
    ClientBuilder::try_from(config(cluster).await).unwrap().with_layer(faults).build()
}

#[tokio::test]
async fn a_standby_leads_after_a_handover_and_after_a_lease_has_expired() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("lease").await.unwrap();
    let client = cluster.client().await.unwrap();
    let leases = Api::<Lease>::namespaced(client.clone(), &namespace);
    let first = Election::start(client.clone(), candidate(&namespace, "first", NO_EXPIRY), Term::default());
    until("the first leads", first.leadership()).await;
    let second = Election::start(client.clone(), candidate(&namespace, "second", NO_EXPIRY), Term::default());
    wait_for_renewals(&leases, 3).await;
    assert!(*first.leadership().borrow() && !*second.leadership().borrow());
    first.release().await;
    until("the second leads", second.leadership()).await;

    // The next holder is a process that never runs.
    drop(second);
    let dead = json!({ "spec": { "holderIdentity": "dead", "leaseDurationSeconds": 1 } });
    leases.patch("rl-operator", &Default::default(), &Patch::Merge(dead)).await.unwrap();
    let timing = Timing { valid_for: Duration::from_secs(2), ..NO_EXPIRY };
    let started = Instant::now();
    let third = Election::start(client, candidate(&namespace, "third", timing), Term::default());
    until("the third leads", third.leadership()).await;
    assert!(started.elapsed() >= timing.valid_for, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_leader_outlives_refused_lost_and_hanging_renewals_and_doubts_about_them() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("faults").await.unwrap();
    let leases = Api::<Lease>::namespaced(cluster.client().await.unwrap(), &namespace);
    let faults = Faults::default();
    // One of the calls hangs.
    let timing = Timing { call_timeout: Duration::from_secs(2), ..NO_EXPIRY };
    let leader = Election::start(
        faulty_client(cluster, &faults).await,
        candidate(&namespace, "leader", timing),
        Term::default(),
    );
    until("it leads", leader.leadership()).await;
    let troubles = [
        Fault::Refuse(429),
        Fault::Refuse(500),
        Fault::Refuse(409),
        Fault::LoseRequest,
        // The renewal counts, but the version that is known is old: the next one conflicts.
        Fault::LoseAnswer,
        Fault::Hang,
    ];
    for fault in troubles {
        faults.inject("PUT", "/leases/", 1, fault);
        let met = async {
            while faults.num_left() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, met).await.unwrap_or_else(|_| panic!("{fault:?} was never met"));
        wait_for_renewals(&leases, 3).await;
        assert!(*leader.leadership().borrow(), "{fault:?} ended the leadership");
    }
}

#[tokio::test]
async fn a_leader_whose_lease_is_taken_ends() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("taken").await.unwrap();
    let client = cluster.client().await.unwrap();
    let mut leader =
        Election::start(client.clone(), candidate(&namespace, "leader", NO_EXPIRY), Term::default());
    until("it leads", leader.leadership()).await;
    let leases = Api::<Lease>::namespaced(client, &namespace);
    let patch = json!({ "spec": { "holderIdentity": "thief", "leaseTransitions": 99 } });
    leases.patch("rl-operator", &Default::default(), &Patch::Merge(patch)).await.unwrap();
    let error = tokio::time::timeout(TIMEOUT, leader.lost()).await.expect("its leadership ends");
    assert!(matches!(&error, LeaseError::TakenOver { holder } if holder == "thief"), "{error}");
}

/// A token of the namespace's default account.
async fn token(client: &Client, namespace: &str, audience: &str, pod: Option<&Pod>) -> String {
    let bound_object_ref = pod.map(|pod| BoundObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
    });
    let spec = TokenRequestSpec {
        audiences: vec![audience.into()],
        bound_object_ref,
        expiration_seconds: Some(600),
    };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    let request = accounts.create_token_request("default", &PostParams::default(), &request).await.unwrap();
    request.status.unwrap().token
}

#[tokio::test]
async fn a_pod_is_believed_by_a_token_for_the_channel_that_is_bound_to_it_and_ends_with_it() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("tokens").await.unwrap();
    let client = cluster.client().await.unwrap();
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let pod = json!({ "metadata": { "name": "adding-trainer-0" },
        "spec": { "serviceAccountName": "default", "containers": [{ "name": "trainer", "image": "rlt.local/none" }] } });
    let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let reviewer = TokenReviewer(client.clone());
    let bound = token(&client, &namespace, rlt_channel::AUDIENCE, Some(&pod)).await;
    let identity = reviewer.review(&bound).await.unwrap().unwrap();
    assert_eq!((&identity.namespace, &identity.name), (&namespace, &"adding-trainer-0".to_owned()));
    assert_eq!(Some(identity.uid), pod.metadata.uid);
    for wrong in [
        token(&client, &namespace, "https://kubernetes.default.svc.cluster.local", Some(&pod)).await,
        token(&client, &namespace, rlt_channel::AUDIENCE, None).await,
        "a.forged.token".to_owned(),
    ] {
        assert_eq!(reviewer.review(&wrong).await.unwrap(), None);
    }
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete("adding-trainer-0", &at_once).await.unwrap();
    // The API server itself remembers a good token for ten seconds.
    let deadline = Instant::now() + TIMEOUT;
    while reviewer.review(&bound).await.unwrap().is_some() {
        assert!(Instant::now() < deadline, "the token outlived its pod");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn replicas_that_start_together_share_one_authority_and_its_secret_can_be_lost() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("secret").await.unwrap();
    let client = cluster.client().await.unwrap();
    let names = vec!["rl-operator-channel.rl.svc".to_owned()];
    let name = "rl-operator-channel";
    let [first, second, third, late] = std::array::from_fn(|_| CachedCertificates::default());
    let get = |cached| certificates(&client, &namespace, name, &names, cached);
    let (one, two, three) = tokio::join!(get(&first), get(&second), get(&third));
    let one = one.unwrap();
    assert_eq!((&two.unwrap(), &three.unwrap()), (&one, &one));
    let secrets = Api::<Secret>::namespaced(client.clone(), &namespace);
    // A replica that has read it restores it, whether it is damaged or gone.
    let damaged = Patch::Merge(json!({ "data": { "ca.key": null } }));
    secrets.patch(name, &PatchParams::default(), &damaged).await.unwrap();
    assert_eq!(get(&second).await.unwrap(), one);
    secrets.delete(name, &DeleteParams::default()).await.unwrap();
    assert_eq!(get(&third).await.unwrap(), one);
    // A replica that has not read it makes another one, which all take.
    secrets.patch(name, &PatchParams::default(), &damaged).await.unwrap();
    let new = get(&late).await.unwrap();
    assert_ne!(new.authority(), one.authority());
    assert_eq!(get(&first).await.unwrap(), new);
}

/// Labels and annotations that Helm gives each object of a release of this version.
fn of_release(version: &str) -> Value {
    json!({
        "labels": {
            "app.kubernetes.io/name": "rl-operator",
            "app.kubernetes.io/instance": "rl-operator",
            "app.kubernetes.io/version": version,
            "app.kubernetes.io/managed-by": "Helm",
            "helm.sh/chart": format!("rl-operator-{version}"),
        },
        "annotations": {
            "meta.helm.sh/release-name": "rl-operator",
            "meta.helm.sh/release-namespace": "rl-operator",
        },
    })
}

/// An object of a release of this version.
fn released(kind: [&str; 2], name: &str, version: &str) -> Value {
    let [api_version, kind] = kind;
    let mut object = json!({ "apiVersion": api_version, "kind": kind, "metadata": of_release(version) });
    object["metadata"]["name"] = name.into();
    object
}

#[tokio::test]
async fn a_secret_and_a_lease_that_are_created_again_belong_to_the_release_and_to_its_next_version() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("again").await.unwrap();
    let client = cluster.client().await.unwrap();
    let (channel, lease) = ("rl-operator-channel", "rl-operator");
    let mut service = released(["v1", "Service"], channel, "0.1.0");
    service["spec"] = json!({ "ports": [{ "name": "channel", "port": 9443 }] });
    let services = Api::<Service>::namespaced(client.clone(), &namespace);
    services.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();

    let cached = CachedCertificates::default();
    certificates(&client, &namespace, channel, &["host".to_owned()], &cached).await.unwrap();
    let candidate = Candidate { service: Some(channel.into()), ..candidate(&namespace, "leader", NO_EXPIRY) };
    let leader = Election::start(client.clone(), candidate, Term::default());
    until("it leads", leader.leadership()).await;
    let leases = Api::<Lease>::namespaced(client.clone(), &namespace);
    wait_for_renewals(&leases, 1).await;
    let secrets = Api::<Secret>::namespaced(client, &namespace);
    let created = [secrets.get(channel).await.unwrap().metadata, leases.get(lease).await.unwrap().metadata];
    for metadata in created {
        let found = json!({ "labels": metadata.labels, "annotations": metadata.annotations });
        assert_eq!(found, of_release("0.1.0"), "{:?}", metadata.name);
    }

    // As `helm upgrade` does, which overrides no other owner of a field.
    let helm = PatchParams::apply("helm");
    let next = released(["v1", "Secret"], channel, "0.2.0");
    let secret = secrets.patch(channel, &helm, &Patch::Apply(next)).await.unwrap();
    assert!(secret.data.is_some_and(|data| data.contains_key("ca.key")), "the authority stays");
    let next = released(["coordination.k8s.io/v1", "Lease"], lease, "0.2.0");
    leases.patch(lease, &helm, &Patch::Apply(next)).await.unwrap();
    wait_for_renewals(&leases, 1).await;
    assert!(*leader.leadership().borrow());
}

#[tokio::test]
async fn the_leader_is_the_one_endpoint_of_the_channel() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("endpoint").await.unwrap();
    let client = cluster.client().await.unwrap();
    for last in [7, 8] {
        announce(&client, &namespace, "channel", [10, 0, 0, last].into(), 9443).await.unwrap();
    }
    let slices = Api::<EndpointSlice>::namespaced(client, &namespace);
    let slice = slices.get("channel-ipv4").await.unwrap();
    let addresses: Vec<_> = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses).collect();
    assert_eq!(addresses, ["10.0.0.8"]);
}

#[tokio::test]
async fn every_call_is_counted_with_its_answer() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("calls").await.unwrap();
    let (faults, metrics) = (Faults::default(), Metrics::default());
    let limiter = Limiter::new(CallRate { per_second: 50.0, burst: 5.0 }, usize::MAX);
    let client = ClientBuilder::try_from(config(cluster).await)
        .unwrap()
        .with_layer(&faults)
        .with_layer(&ApiLayer::new(limiter, metrics.clone()))
        .build();
    let pods = Api::<Pod>::namespaced(client, &namespace);
    faults.inject("GET", "/pods/refused", 1, Fault::Refuse(504));
    pods.get("refused").await.unwrap_err();
    let all = (0..25).map(|_| pods.get("none"));
    let answers = futures::future::join_all(all).await;
    assert!(answers.iter().all(Result::is_err));
    let page = metrics.page();
    let expected = |code: &str, count: u32| {
        format!("rlt_operator_api_calls_total{{verb=\"get\",resource=\"pods\",code=\"{code}\"}} {count}")
    };
    assert!(page.contains(&expected("404", 25)) && page.contains(&expected("504", 1)), "{page}");
}
