//! The process around the controller, on a real API server: leadership, calls, authentication.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, PostParams};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rlt_cluster::{Cluster, Fault, Faults, Options, Shared};
use rlt_operator::client::{ApiLayer, CallRate, Limiter};
use rlt_operator::lease::{Candidate, Election, LeaseError, Term, Timing};
use rlt_operator::metrics::Metrics;
use rlt_operator::progress::{Reviewer as _, TokenReviewer, announce, certificates};
use serde_json::json;
use tokio::sync::watch;

static CLUSTER: Shared = Shared::new(|| Options::control_plane().without_scheduler().with_audit_log());

/// As the real one, five times as fast.
const TIMING: Timing = Timing {
    valid_for: Duration::from_secs(3),
    renew_within: Duration::from_secs(2),
    renew_every: Duration::from_secs(1),
    retry_after: Duration::from_millis(200),
    call_timeout: Duration::from_millis(600),
};

fn candidate(namespace: &str, identity: &str) -> Candidate {
    Candidate {
        namespace: namespace.into(),
        name: "rl-operator".into(),
        identity: identity.into(),
        timing: TIMING,
    }
}

async fn until(what: &str, limit: Duration, mut leadership: watch::Receiver<bool>) -> Duration {
    let started = Instant::now();
    let led = tokio::time::timeout(limit, leadership.wait_for(|leads| *leads)).await;
    assert!(led.is_ok_and(|led| led.is_ok()), "{what} within {limit:?}");
    started.elapsed()
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
async fn a_standby_leads_at_once_when_the_leader_hands_over_and_after_its_patience_when_it_dies() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("lease").await.unwrap();
    let client = cluster.client().await.unwrap();
    let first = Election::start(client.clone(), candidate(&namespace, "first"), Term::default());
    until("the first leads", Duration::from_secs(2), first.leadership()).await;
    let second = Election::start(client.clone(), candidate(&namespace, "second"), Term::default());
    // Longer than the lease is valid: it is renewed.
    tokio::time::sleep(TIMING.valid_for + Duration::from_secs(1)).await;
    assert!(*first.leadership().borrow() && !*second.leadership().borrow());
    first.release().await;
    let handed_over = until("the second leads", Duration::from_secs(2), second.leadership()).await;
    assert!(handed_over < Duration::from_secs(1), "{handed_over:?}");

    let third = Election::start(client, candidate(&namespace, "third"), Term::default());
    tokio::time::sleep(Duration::from_millis(500)).await;
    drop(second);
    let taken_over =
        until("the third leads", TIMING.valid_for + Duration::from_secs(2), third.leadership()).await;
    assert!(taken_over > TIMING.renew_within, "before the old one would have given up: {taken_over:?}");
}

#[tokio::test]
async fn a_leader_renews_once_a_period_and_a_standby_calls_nothing() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("idle").await.unwrap();
    let leader = cluster.client_of_service_account(&namespace, "leader").await.unwrap();
    let standby = cluster.client_of_service_account(&namespace, "standby").await.unwrap();
    let rules = json!([{ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
        "verbs": ["get", "list", "watch", "create", "update"] }]);
    allow(cluster, &namespace, &rules, &["leader", "standby"]).await;
    let leader = Election::start(leader, candidate(&namespace, "leader"), Term::default());
    until("it leads", Duration::from_secs(20), leader.leadership()).await;
    let standby = Election::start(standby, candidate(&namespace, "standby"), Term::default());
    tokio::time::sleep(Duration::from_millis(700)).await;
    let calls = |account: &str| {
        let user = format!("system:serviceaccount:{namespace}:{account}");
        cluster.calls().unwrap().into_iter().filter(|call| call.user == user).count()
    };
    let (leader_before, standby_before) = (calls("leader"), calls("standby"));
    tokio::time::sleep(TIMING.renew_every * 6).await;
    let num_renewals = calls("leader") - leader_before;
    assert!((5..=7).contains(&num_renewals), "{num_renewals} renewals in six periods");
    assert_eq!(calls("standby"), standby_before);
    drop((leader, standby));
}

async fn allow(cluster: &Cluster, namespace: &str, rules: &serde_json::Value, accounts: &[&str]) {
    let subjects: Vec<_> = accounts
        .iter()
        .map(|name| json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace }))
        .collect();
    let admin = cluster.client().await.unwrap();
    let role = json!({ "metadata": { "name": "tested" }, "rules": rules });
    let binding = json!({ "metadata": { "name": "tested" }, "subjects": subjects,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tested" } });
    use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
    let roles = Api::<Role>::namespaced(admin.clone(), namespace);
    roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
    let bindings = Api::<RoleBinding>::namespaced(admin, namespace);
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_leader_outlives_refused_lost_and_hanging_renewals_and_doubts_about_them() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("faults").await.unwrap();
    let faults = Faults::default();
    let leader = Election::start(
        faulty_client(cluster, &faults).await,
        candidate(&namespace, "leader"),
        Term::default(),
    );
    until("it leads", Duration::from_secs(2), leader.leadership()).await;
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
        let deadline = Instant::now() + Duration::from_secs(5);
        while faults.num_left() > 0 {
            assert!(Instant::now() < deadline, "{fault:?} was never met");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(*leader.leadership().borrow(), "{fault:?} ended the leadership");
    }
}

#[tokio::test]
async fn a_leader_that_cannot_renew_stops_before_its_lease_expires() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("cut-off").await.unwrap();
    let faults = Faults::default();
    let mut leader = Election::start(
        faulty_client(cluster, &faults).await,
        candidate(&namespace, "cut-off"),
        Term::default(),
    );
    until("it leads", Duration::from_secs(2), leader.leadership()).await;
    let standby =
        Election::start(cluster.client().await.unwrap(), candidate(&namespace, "standby"), Term::default());
    let (leads, takes_over) = (leader.leadership(), standby.leadership());
    faults.inject("PUT", "/leases/", usize::MAX >> 1, Fault::Hang);
    let error = leader.lost().await;
    assert!(matches!(error, LeaseError::NotRenewed { .. }), "{error}");
    assert!(!*leads.borrow() && !*takes_over.borrow());
    until("the standby leads", TIMING.valid_for + Duration::from_secs(1), takes_over).await;
}

#[tokio::test]
async fn a_leader_whose_lease_is_taken_ends() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("taken").await.unwrap();
    let client = cluster.client().await.unwrap();
    let mut leader = Election::start(client.clone(), candidate(&namespace, "leader"), Term::default());
    until("it leads", Duration::from_secs(2), leader.leadership()).await;
    let leases = Api::<Lease>::namespaced(client, &namespace);
    let patch = json!({ "spec": { "holderIdentity": "thief", "leaseTransitions": 99 } });
    leases.patch("rl-operator", &Default::default(), &kube::api::Patch::Merge(patch)).await.unwrap();
    let error = leader.lost().await;
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
    let at_once = kube::api::DeleteParams::default().grace_period(0);
    pods.delete("adding-trainer-0", &at_once).await.unwrap();
    // The API server itself remembers a good token for ten seconds.
    let deadline = Instant::now() + Duration::from_secs(30);
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
    let get = || certificates(&client, &namespace, "rl-operator-channel", &names);
    let (one, two, three) = tokio::join!(get(), get(), get());
    let one = one.unwrap();
    assert_eq!((&two.unwrap(), &three.unwrap()), (&one, &one));
    let secrets = Api::<k8s_openapi::api::core::v1::Secret>::namespaced(client.clone(), &namespace);
    let damaged = json!({ "data": { "ca.key": null } });
    secrets
        .patch("rl-operator-channel", &Default::default(), &kube::api::Patch::Merge(damaged))
        .await
        .unwrap();
    assert_ne!(get().await.unwrap().authority(), one.authority());
}

#[tokio::test]
async fn the_leader_is_the_one_endpoint_of_the_channel() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("endpoint").await.unwrap();
    let client = cluster.client().await.unwrap();
    for last in [7, 8] {
        announce(&client, &namespace, "channel", ([10, 0, 0, last].into(), 9443)).await.unwrap();
    }
    let slices = Api::<EndpointSlice>::namespaced(client, &namespace);
    let slice = slices.get("channel-ipv4").await.unwrap();
    let addresses: Vec<_> = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses).collect();
    assert_eq!(addresses, ["10.0.0.8"]);
}

#[tokio::test]
async fn every_call_is_counted_and_times_out_on_a_slow_server() {
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
    let started = Instant::now();
    let all = (0..25).map(|_| pods.get("none"));
    let answers = futures::future::join_all(all).await;
    assert!(answers.iter().all(Result::is_err));
    let elapsed = started.elapsed();
    assert!(
        elapsed > Duration::from_millis(300),
        "twenty calls beyond the burst at fifty a second: {elapsed:?}"
    );
    let page = metrics.page();
    let expected = |code: &str, count: u32| {
        format!("rlt_operator_api_calls_total{{verb=\"get\",resource=\"pods\",code=\"{code}\"}} {count}")
    };
    assert!(page.contains(&expected("404", 25)) && page.contains(&expected("504", 1)), "{page}");
}
