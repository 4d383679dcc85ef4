//! The operator's binary under the roles of the chart, on a real API server: it leads, works, serves, is
//! allowed all that it does and hands over when it is stopped.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use rlt_api::status::ConditionType;
use rlt_channel::client::{Settings, Urgency};
use rlt_channel::{Checkpoint, ModelCommit, Stage, environment};
use rlt_cluster::{Cluster, HeldPort, Options, own_cluster};
use rlt_objects::job::Job;
use rlt_objects::labels;
use rlt_operator::permissions::PERMISSIONS;
use rlt_tests::collector::{Collector, Received};
use rlt_traces::AttemptTrace;

#[path = "installed/namespaces.rs"]
mod namespaces;
#[path = "installed/overlays.rs"]
mod overlays;
#[path = "installed/spares.rs"]
mod spares;
#[path = "installed/versions.rs"]
mod versions;

const NAMESPACE: &str = "rl-operator";
/// Flag of an operator that stands for election, and ends where it cannot renew its Lease in ten seconds.
const LEASE: &str = "--lease=rl-operator";
/// Limit of each wait. A quiet machine needs seconds, or half a minute to collect the children of a job on a
/// cluster that has just started.
const PATIENCE: Duration = Duration::from_secs(300);

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn root() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> String {
    let answer = cluster.kubectl().args(arguments).current_dir(root()).output().unwrap();
    assert!(answer.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&answer.stderr));
    String::from_utf8(answer.stdout).unwrap()
}

async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn held_port() -> HeldPort {
    HeldPort::on([127, 0, 0, 1]).unwrap()
}

/// Starts the operator as the Deployment does, but on this machine and alone, so that it needs no Lease. It
/// serves probes and metrics on `port` (0 for any free one), and whatever else the flags say.
async fn start(cluster: &Cluster, port: u16, flags: &[String], collector: Option<&Collector>) -> Running {
    until_it_may_list(cluster, "nodes", "").await;
    until_it_may_list(cluster, "leases", NAMESPACE).await;
    let kubeconfig = cluster.kubeconfig_of_service_account(NAMESPACE, "rl-operator").await.unwrap();
    let started = Command::new(env!("CARGO_BIN_EXE_rlt-operator"))
        .arg(format!("--listen=127.0.0.1:{port}"))
        .args(flags)
        .envs(collector.map(Collector::environment).unwrap_or_default())
        .env("KUBECONFIG", kubeconfig)
        .env("POD_NAMESPACE", NAMESPACE)
        .env("POD_IP", "10.0.0.7")
        .env("RLT_TRAINER_IMAGE", "rlt.local/rlt-trainer:dev")
        .spawn();
    Running(started.unwrap())
}

/// Waits until the operator may list objects of a kind, in a namespace where one is named: the API server's
/// authorizer follows roles and bindings by watches.
async fn until_it_may_list(cluster: &Cluster, resource: &str, namespace: &str) {
    let group = match resource {
        "nodes" => "",
        "leases" => "coordination.k8s.io",
        _ => "rltraining.dev",
    };
    let asked = ResourceAttributes {
        verb: Some("list".into()),
        group: Some(group.into()),
        resource: Some(resource.into()),
        namespace: Some(namespace.into()),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        user: Some(format!("system:serviceaccount:{NAMESPACE}:rl-operator")),
        resource_attributes: Some(asked),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let reviews = Api::<SubjectAccessReview>::all(cluster.client().await.unwrap());
    eventually(&format!("it may list {resource} in {namespace:?}"), async || {
        let answer = reviews.create(&PostParams::default(), &review).await.unwrap();
        answer.status.unwrap().allowed.then_some(())
    })
    .await;
}

async fn page(port: u16, path: &str) -> Option<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    answer.starts_with("HTTP/1.1 200").then_some(answer)
}

/// A cluster with the plain bundle in it, its definition served.
fn installed(options: &Options) -> Option<Cluster> {
    let cluster = own_cluster(options)?;
    kubectl(&cluster, &["apply", "-k", "charts/kustomize"]);
    wait_for_definition(&cluster);
    Some(cluster)
}

fn wait_for_definition(cluster: &Cluster) {
    kubectl(
        cluster,
        &["wait", "--for=condition=Established", "crd/rltrainingjobs.rltraining.dev", "--timeout=300s"],
    );
}

#[tokio::test]
async fn the_bundle_allows_the_operator_everything_that_it_does() {
    let Some(cluster) = installed(&Options::control_plane().without_scheduler().with_audit_log()) else {
        return;
    };
    let held = held_port();
    let (port, channel) = (held.number(), "--channel-listen=127.0.0.1:0".to_owned());
    let service = "--channel-service=rl-operator-channel".to_owned();
    let collector = Collector::start().unwrap();
    let flags = [LEASE.to_owned(), service, channel];
    let mut operator = start(&cluster, port, &flags, Some(&collector)).await;
    eventually("it is ready", async || page(port, "/readyz").await).await;
    kubectl(&cluster, &["create", "namespace", "team"]);
    kubectl(&cluster, &["apply", "-n", "team", "-f", "examples/quickstart/job.yaml"]);
    let client = cluster.client().await.unwrap();
    let pods = Api::<Pod>::namespaced(client.clone(), "team");
    let pod =
        eventually("a pod is made", async || pods.list(&ListParams::default()).await.unwrap().items.pop())
            .await;
    let job_uid = pod.metadata.owner_references.clone().unwrap().remove(0).uid;
    let variables = variables(&pod, &config_map(&client).await);
    assert_eq!(variables[environment::ADDRESS], "https://rl-operator-channel.rl-operator.svc:9443");
    Api::<Secret>::namespaced(client.clone(), NAMESPACE).get("rl-operator-channel").await.unwrap();
    let metrics = eventually("a reconcile is counted", async || {
        page(port, "/metrics")
            .await
            .filter(|page| page.contains("rlt_operator_reconciles_total{outcome=\"done\"}"))
    })
    .await;
    assert!(metrics.contains("rlt_operator_leader 1"), "{metrics}");
    assert!(page(port, "/healthz").await.is_some());
    let suspend = r#"{"spec":{"runPolicy":{"suspend":true}}}"#;
    kubectl(&cluster, &["patch", "rltj/quickstart", "-n", "team", "--type=merge", "-p", suspend]);
    let suspended = "--for=condition=Suspended";
    kubectl(&cluster, &["wait", suspended, "rltj/quickstart", "-n", "team", "--timeout=300s"]);
    let named = Api::<Job>::namespaced(client.clone(), "team").get("quickstart").await.unwrap();
    assert_eq!(named.status.unwrap().trace_id, Some(AttemptTrace::of(&job_uid, 1).id()));
    kubectl(&cluster, &["delete", "rltj", "--all", "-n", "team"]);
    // The end of the process gives spans two seconds.
    eventually("the span of the attempt is sent", async || {
        collector.spans().iter().any(|span| span.name == "attempt").then_some(())
    })
    .await;

    terminate(&mut operator);
    let leases = Api::<Lease>::namespaced(client, NAMESPACE);
    let lease = leases.get("rl-operator").await.unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""), "handed over");
    check_calls(&cluster);
    check_traces(&collector, &job_uid, &variables);
}

/// Pods and reconciles are parts of one trace, that of the job's first attempt.
fn check_traces(collector: &Collector, job_uid: &str, variables: &BTreeMap<String, String>) {
    let trace = AttemptTrace::of(job_uid, 1);
    assert_eq!(variables[rlt_traces::TRACEPARENT], trace.traceparent());
    let (endpoint, address) = collector.environment().remove(0);
    assert_eq!(variables[endpoint], address);
    let spans = collector.spans();
    let reconciles: Vec<&Received> = spans.iter().filter(|span| span.name == "reconcile").collect();
    assert!(!reconciles.is_empty() && reconciles.iter().all(|span| span.trace == trace.id()), "{spans:#?}");
    let start = reconciles.iter().find(|span| span.attribute("num_started") == Some("1")).unwrap();
    assert_eq!((start.attribute("job"), start.attribute("attempt")), (Some("quickstart"), Some("1")));
    let made = spans.iter().find(|span| span.name == "create pods").unwrap();
    assert_eq!((&made.parent, made.attribute("http.response.status_code")), (&start.id, Some("201")));
    assert!(spans.iter().all(|span| span.service == "rlt-operator"));
    let ended: Vec<&Received> = spans.iter().filter(|span| span.name == "attempt").collect();
    assert_eq!(ended.len(), 1, "{spans:#?}");
    let attempt = ended[0];
    assert_eq!((&*attempt.parent, attempt.attribute("outcome")), ("", Some("Suspended")));
    assert_eq!(trace.traceparent(), format!("00-{}-{}-01", attempt.trace, attempt.id));
    assert!(reconciles.iter().all(|span| span.parent == attempt.id), "{spans:#?}");
}

/// Asks the operator to stop, as the kubelet does.
fn terminate(operator: &mut Running) {
    let pid = operator.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(operator.0.wait().unwrap().success());
}

/// Every call was allowed, and is in the table.
fn check_calls(cluster: &Cluster) {
    let user = format!("system:serviceaccount:{NAMESPACE}:rl-operator");
    let calls: Vec<_> = cluster.calls().unwrap().into_iter().filter(|call| call.user == user).collect();
    assert!(calls.len() > 10, "{calls:#?}");
    for call in calls.iter().filter(|call| !call.resource.is_empty()) {
        assert!(![401, 403].contains(&call.code), "{call:?}");
        let subresource =
            if call.subresource.is_empty() { String::new() } else { format!("/{}", call.subresource) };
        let resource = format!("{}{subresource}", call.resource);
        let is_known = |permission: &&rlt_operator::permissions::Permission| {
            permission.resource == resource && permission.verbs.contains(&call.verb.as_str())
        };
        assert!(PERMISSIONS.iter().any(|permission| is_known(&permission)), "{call:?}");
    }
}

/// The ConfigMap that all pods of the job read.
async fn config_map(client: &Client) -> BTreeMap<String, String> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "team");
    let map =
        eventually("what workers read is there", async || maps.get_opt("quickstart-manifest").await.unwrap());
    map.await.data.unwrap()
}

/// The variables that a pod's trainer would see.
fn variables(pod: &Pod, data: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut variables: BTreeMap<String, String> = serde_json::from_str(&data["environment.json"]).unwrap();
    let own = pod.spec.clone().unwrap().containers.remove(0).env.unwrap();
    variables.extend(own.into_iter().map(|one| (one.name, one.value.unwrap_or_default())));
    variables
}

/// The files that a pod would have: the ConfigMap, and a token that is bound to it.
async fn pod_files(client: &Client, pod: &Pod, data: &BTreeMap<String, String>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (key, text) in data {
        std::fs::write(folder.path().join(key), text).unwrap();
    }
    let bound_object_ref = Some(BoundObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
    });
    let spec = TokenRequestSpec {
        audiences: vec![rlt_channel::AUDIENCE.into()],
        bound_object_ref,
        expiration_seconds: Some(600),
    };
    let account = pod.spec.as_ref().unwrap().service_account_name.clone().unwrap();
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "team");
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let granted = accounts.create_token_request(&account, &PostParams::default(), &request).await.unwrap();
    std::fs::write(folder.path().join(environment::TOKEN_KEY), granted.status.unwrap().token).unwrap();
    folder
}

#[tokio::test]
async fn a_pods_report_is_in_the_status_of_its_job() {
    let Some(cluster) = installed(&Options::control_plane().without_scheduler()) else { return };
    let port = held_port();
    let listen = format!("--channel-listen=127.0.0.1:{}", port.number());
    let _operator = start(&cluster, 0, &[listen, "--channel-host=127.0.0.1".to_owned()], None).await;
    kubectl(&cluster, &["create", "namespace", "team"]);
    kubectl(&cluster, &["apply", "-n", "team", "-f", "examples/quickstart/job.yaml"]);
    let client = cluster.client().await.unwrap();
    let pods = Api::<Pod>::namespaced(client.clone(), "team");
    let pod =
        eventually("a pod is made", async || pods.list(&ListParams::default()).await.unwrap().items.pop())
            .await;
    let data = config_map(&client).await;
    let files = pod_files(&client, &pod, &data).await;
    let variables = variables(&pod, &data);
    // Where the folder of the job is in a pod.
    let here = files.path().display().to_string();
    let variable = |name: &str| Some(variables.get(name)?.replace("/etc/rltraining", &here));
    let settings = Settings::from_environment(variable).unwrap().unwrap();
    let rank = rlt_channel::client::Client::start(settings).unwrap();
    rank.update(Urgency::AtOnce, |report| {
        report.knows_checkpoints = true;
        let (field, repo) = ("spec.model.hub".to_owned(), "owner/tiny".to_owned());
        report.commits.push(ModelCommit { field, repo, commit: "0123456789".repeat(4) });
        report.checkpoints.push(Checkpoint { step: 20, is_latest: true, ..Checkpoint::default() });
        let progress = report.progress.get_or_insert_default();
        progress.set_stage(Stage::Training);
        (progress.step, progress.num_steps, progress.reward) = (23, 60, Some(0.5));
    });
    let jobs = Api::<Job>::namespaced(client, "team");
    let status = eventually("the status has the progress", async || {
        let status = jobs.get("quickstart").await.unwrap().status.unwrap();
        status.progress.is_some().then_some(status)
    })
    .await;
    assert_eq!(
        (&*status.commits[0].repo, &*status.commits[0].commit),
        ("owner/tiny", &*"0123456789".repeat(4))
    );
    let progress = status.progress.unwrap();
    assert_eq!((progress.step, progress.num_steps, progress.reward), (23, 60, Some(0.5)));
    assert_eq!((status.checkpoints[0].step, status.checkpoints[0].latest), (20, true));
}

#[tokio::test]
async fn a_job_that_is_made_again_takes_over_the_claim_that_the_one_before_left() {
    let Some(cluster) = installed(&Options::control_plane().without_scheduler().with_audit_log()) else {
        return;
    };
    let _operator = start(&cluster, 0, &[], None).await;
    kubectl(&cluster, &["create", "namespace", "team"]);
    let example = std::fs::read_to_string(root().join("examples/quickstart/job.yaml")).unwrap();
    let mut manifest: serde_json::Value = serde_saphyr::from_str(&example).unwrap();
    manifest["spec"]["workers"] = serde_json::json!({"storage": {"size": "2Gi"}});
    let file = tempfile::NamedTempFile::new().unwrap();
    let apply = |manifest: &serde_json::Value| {
        std::fs::write(file.path(), manifest.to_string()).unwrap();
        kubectl(&cluster, &["apply", "-n", "team", "-f", file.path().to_str().unwrap()]);
    };
    let client = cluster.client().await.unwrap();
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), "team");
    let jobs = Api::<Job>::namespaced(client, "team");
    let claim_of = async |uid: &str| {
        let claim = claims.list(&ListParams::default()).await.unwrap().items.pop()?;
        (claim.metadata.labels?.get(labels::JOB_UID)? == uid).then_some(claim.metadata.uid)
    };
    let uid = async || jobs.get("quickstart").await.unwrap().metadata.uid.unwrap();
    apply(&manifest);
    let first = uid().await;
    let claim = eventually("a claim is made", async || claim_of(&first).await).await;
    // In the foreground: a cluster as young as this takes half a minute to collect the job's children.
    let delete = ["delete", "rltj", "quickstart", "-n", "team", "--cascade=foreground", "--timeout=300s"];
    kubectl(&cluster, &delete);
    apply(&manifest);
    let second = uid().await;
    let again = eventually("the claim is taken over", async || claim_of(&second).await).await;
    assert_eq!(again, claim, "it is the same claim");
    check_calls(&cluster);

    kubectl(&cluster, &delete);
    manifest["spec"]["workers"]["storage"]["size"] = "1Gi".into();
    apply(&manifest);
    let message = eventually("a claim that cannot become smaller is a condition", async || {
        let conditions = jobs.get("quickstart").await.unwrap().status.unwrap().conditions;
        let refused = conditions.into_iter().find(|condition| {
            condition.type_ == ConditionType::Stalled && condition.reason == "ObjectRefused"
        });
        refused.map(|condition| condition.message)
    })
    .await;
    assert!(
        message.contains("quickstart-storage") && message.contains("spec.workers.storage.size"),
        "{message}"
    );
}

/// One cluster for all that is applied while no operator runs.
#[tokio::test]
async fn an_api_server_takes_the_bundle_its_overlays_and_all_examples() {
    let Some(cluster) = own_cluster(&Options::control_plane().without_scheduler()) else { return };
    applying_the_bundle_twice_changes_nothing(&cluster);
    wait_for_definition(&cluster);
    overlays::every_overlay_is_accepted_by_the_api_server_and_is_documented(&cluster);
    applying_any_example_twice_says_unchanged(&cluster);
}

fn applying_the_bundle_twice_changes_nothing(cluster: &Cluster) {
    for flags in [&[][..], &["--server-side", "--force-conflicts"][..]] {
        let apply = [&["apply", "-k", "charts/kustomize", "-o", "name"], flags].concat();
        let names = kubectl(cluster, &apply);
        let names: Vec<_> = names.lines().collect();
        assert!(names.len() > 10, "{names:?}");
        // The second one, after either kind of apply has found the objects of the other.
        kubectl(cluster, &apply);
        let before = versions(cluster, &names);
        kubectl(cluster, &apply);
        assert_eq!(versions(cluster, &names), before, "{flags:?}");
    }
}

fn applying_any_example_twice_says_unchanged(cluster: &Cluster) {
    let folders = std::fs::read_dir(root().join("examples")).unwrap();
    // A workflow of Argo's makes its job itself.
    let jobs = folders.map(|folder| folder.unwrap().path().join("job.yaml"));
    let examples: Vec<_> = jobs.filter(|job| job.exists()).collect();
    assert!(examples.len() >= 9, "{examples:?}");
    for example in examples {
        let apply = ["apply", "-f", example.to_str().unwrap()];
        assert!(kubectl(cluster, &apply).ends_with(" created\n"));
        let again = kubectl(cluster, &apply);
        assert!(again.ends_with(" unchanged\n"), "{}: {again}", example.display());
    }
}

/// The version of each object that an apply named. The Deployment's changes with its status, so its
/// generation counts.
fn versions(cluster: &Cluster, names: &[&str]) -> Vec<String> {
    let version = |name: &&str| {
        let field = if name.starts_with("deployment") { "generation" } else { "resourceVersion" };
        let path = format!("jsonpath={{.metadata.{field}}}");
        format!("{name} {}", kubectl(cluster, &["get", name, "-n", NAMESPACE, "-o", &path]))
    };
    names.iter().map(version).collect()
}

/// Installs the chart for these namespaces, makes them, and waits until the roles in them count.
async fn install_for(cluster: &Cluster, namespaces: &[String]) {
    let object = |name: &str| format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n---\n");
    let mut bundle: String = namespaces.iter().map(|name| object(name)).collect();
    bundle.push_str(&object(NAMESPACE));
    let mut helm = cluster.helm().unwrap();
    helm.args(["template", "rl-operator", "charts/rl-operator", "--namespace", NAMESPACE]);
    let values = format!("namespaces={{{}}}", namespaces.join(","));
    let rendered = helm.args(["--set", &values]).current_dir(root()).output().unwrap();
    bundle.push_str(&String::from_utf8(rendered.stdout).unwrap());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bundle).unwrap();
    kubectl(cluster, &["apply", "-f", file.path().to_str().unwrap()]);
    wait_for_definition(cluster);
    for namespace in namespaces {
        until_it_may_list(cluster, "rltrainingjobs", namespace).await;
    }
}

#[tokio::test]
async fn an_operator_of_two_namespaces_needs_and_touches_no_third() {
    let Some(cluster) = own_cluster(&Options::control_plane().without_scheduler().with_audit_log()) else {
        return;
    };
    kubectl(&cluster, &["create", "namespace", "team-c"]);
    install_for(&cluster, &["team-a".to_owned(), "team-b".to_owned()]).await;
    let held = held_port();
    let (port, channel) = (held.number(), "--channel-listen=127.0.0.1:0".to_owned());
    let watched = "--namespaces=team-a,team-b".to_owned();
    let _operator =
        start(&cluster, port, &["--channel-service=rl-operator-channel".to_owned(), channel, watched], None)
            .await;
    eventually("it is ready", async || page(port, "/readyz").await).await;
    for namespace in ["team-c", "team-a", "team-b"] {
        kubectl(&cluster, &["apply", "-n", namespace, "-f", "examples/quickstart/job.yaml"]);
    }
    let client = cluster.client().await.unwrap();
    for namespace in ["team-a", "team-b"] {
        let pods = Api::<Pod>::namespaced(client.clone(), namespace);
        eventually("a pod is made", async || pods.list(&ListParams::default()).await.unwrap().items.pop())
            .await;
    }
    // It was posted before the others.
    let other = Api::<Pod>::namespaced(client.clone(), "team-c").list(&ListParams::default()).await.unwrap();
    assert!(other.items.is_empty());
    let job = Api::<Job>::namespaced(client, "team-c").get("quickstart").await.unwrap();
    assert!(job.status.unwrap().conditions.is_empty());
    check_calls(&cluster);
}

#[tokio::test]
async fn fifty_namespaces_are_followed_and_the_lease_is_renewed_all_the_while() {
    let Some(cluster) = own_cluster(&Options::control_plane().without_scheduler().with_audit_log()) else {
        return;
    };
    let teams: Vec<_> = (0..50).map(|idx| format!("team-{idx}")).collect();
    install_for(&cluster, &teams).await;
    let held = held_port();
    let port = held.number();
    let namespaces = format!("--namespaces={}", teams.join(","));
    let mut operator = start(&cluster, port, &[LEASE.to_owned(), namespaces], None).await;
    eventually("it is ready", async || page(port, "/readyz").await).await;
    let client = cluster.client().await.unwrap();
    let leases = Api::<Lease>::namespaced(client.clone(), NAMESPACE);
    let renewed_at = async || leases.get("rl-operator").await.unwrap().spec.unwrap().renew_time.unwrap().0;
    let ready_at = jiff::Timestamp::now();
    for team in [&teams[0], &teams[49]] {
        kubectl(&cluster, &["apply", "-n", team, "-f", "examples/quickstart/job.yaml"]);
        let pods = Api::<Pod>::namespaced(client.clone(), team);
        eventually("a pod is made", async || pods.list(&ListParams::default()).await.unwrap().items.pop())
            .await;
    }
    eventually("the lease is renewed", async || (renewed_at().await > ready_at).then_some(())).await;
    // Pods, six kinds of children and jobs of each namespace; nodes; the lease.
    let user = format!("system:serviceaccount:{NAMESPACE}:rl-operator");
    let is_watched = |call: &rlt_cluster::Call| call.user == user && call.verb == "watch";
    eventually("everything is watched", async || {
        let num_watches = cluster.calls().unwrap().into_iter().filter(is_watched).count();
        (num_watches >= 50 * 8).then_some(())
    })
    .await;
    terminate(&mut operator);
    check_calls(&cluster);
}
