//! Tests of `rlctl` with a real API server and a real operator. No pod runs: the test plays the kubelet.

#[path = "../../../tests/cluster/test_namespace.rs"]
#[expect(dead_code, reason = "the test serves other tests as well")]
mod test_namespace;

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, ResourceQuota, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::api::{ListParams, PostParams};
use rlt_api::status::ConditionType;
use rlt_cluster::{Options, Shared};
use rlt_objects::labels;
use serde_json::{Value, json};
use test_namespace::TestNamespace;

static CLUSTER: Shared = Shared::new(Options::control_plane);
/// Cluster with the Deployment of an operator. It is separate because every plan on a cluster uses the
/// settings of its operator.
static WITH_OPERATOR: Shared = Shared::new(Options::control_plane);

/// Timeout of a wait for the API server or the operator. Nothing trains here.
const TIMEOUT: Duration = Duration::from_secs(120);

fn command(test: &TestNamespace, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rlctl"));
    command.args(arguments).args(["-n", &test.namespace]).env("KUBECONFIG", test.cluster.kubeconfig());
    command
}

async fn run(mut command: Command, input: Option<String>) -> Output {
    // The operator runs on this process's runtime, so the wait for `rlctl` must not block it.
    tokio::task::spawn_blocking(move || {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, input.unwrap_or_default().as_bytes()).unwrap();
        drop(stdin);
        child.wait_with_output().unwrap()
    })
    .await
    .unwrap()
}

async fn rlctl(test: &TestNamespace, arguments: &[&str]) -> String {
    let output = run(command(test, arguments), None).await;
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `rlctl` until its output contains `wanted`.
async fn until(test: &TestNamespace, arguments: &[&str], wanted: &str) -> String {
    let begin = Instant::now();
    loop {
        let answer = rlctl(test, arguments).await;
        if answer.contains(wanted) {
            return answer;
        }
        assert!(begin.elapsed() < TIMEOUT, "no {wanted:?} in {answer}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_job_is_explained_from_its_wait_to_its_end() {
    let Some(cluster) = CLUSTER.get() else { return };
    let test = TestNamespace::on(cluster, "explained").await;
    let _operator = test.operator().await;
    test.post("adding", json!({"runPolicy": {"cleanPodPolicy": "None"}})).await;
    let waits = until(&test, &["why", "adding"], "waits: no node has room for adding-trainer-0").await;
    assert!(waits.contains("no nodes available to schedule pods"), "{waits}");
    let table = rlctl(&test, &["status"]).await;
    assert!(table.lines().nth(1).unwrap().contains("Reconciling: WorkersStarting"), "{table}");
    until(&test, &["events", "adding"], "Pod/adding-trainer-0").await;
    until(&test, &["events", "adding"], "RLTrainingJob/adding").await;
    let pod = test.worker("adding", 1).await;
    test.run(&pod).await;
    until(&test, &["why", "adding"], "runs, and has not reported a finished step of attempt 1 yet").await;
    test.end(&pod, 77, "gradients were not finite").await;
    let failed = until(&test, &["why", "adding"], "failed in attempt 1: Diverged of adding-trainer-0").await;
    assert!(failed.contains("gradients were not finite") && failed.contains("learningRate"), "{failed}");
    let json: Value = serde_json::from_str(&rlctl(&test, &["status", "adding", "-o", "json"]).await).unwrap();
    assert_eq!((&json[0]["state"], &json[0]["hasEnded"]), (&json!("Failed"), &json!(true)));
    let yaml = rlctl(&test, &["why", "adding", "-o", "yaml"]).await;
    assert!(yaml.starts_with("summary: "), "{yaml}");
    let watched = rlctl(&test, &["status", "adding", "--watch"]).await;
    assert!(watched.contains("Failed: Diverged"), "a job that has ended is watched no longer: {watched}");
}

#[tokio::test]
async fn a_quota_is_explained_in_its_own_numbers() {
    let Some(cluster) = CLUSTER.get() else { return };
    let test = TestNamespace::on(cluster, "quota").await;
    let quota = json!({"metadata": {"name": "team"}, "spec": {"hard": {"limits.memory": "1Gi"}}});
    let quotas = Api::<ResourceQuota>::namespaced(test.client.clone(), &test.namespace);
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    let begin = Instant::now();
    while quotas.get("team").await.unwrap().status.is_none_or(|status| status.hard.is_none()) {
        assert!(begin.elapsed() < TIMEOUT, "the quota is not counted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let _operator = test.operator().await;
    test.post("large", json!({"workers": {"resources": {"memory": "2Gi"}}})).await;
    let why = until(&test, &["why", "large"], "quota `team` is used up").await;
    assert!(why.contains("limits.memory: a worker asks for 2Gi, and 0 of 1Gi are in use"), "{why}");
}

#[tokio::test]
async fn a_missing_job_is_named_with_its_namespace() {
    let Some(cluster) = CLUSTER.get() else { return };
    let test = TestNamespace::on(cluster, "absent").await;
    for arguments in [["why", "missing"], ["logs", "missing"], ["events", "missing"], ["status", "missing"]] {
        let output = run(command(&test, &arguments), None).await;
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8(output.stderr).unwrap();
        let expected = format!(
            "rlctl: read job `missing`: there is no job `missing` in namespace `{}`\n",
            test.namespace
        );
        assert_eq!(error, expected);
    }
}

/// Returns the objects that carry a job's label, by kind and name.
async fn made(test: &TestNamespace, job: &str) -> BTreeMap<String, Value> {
    let of_job = ListParams::default().labels(&format!("{}={job}", labels::JOB_NAME));
    let mut objects = BTreeMap::new();
    macro_rules! collect {
        ($($kind:ty),*) => {$(
            let api = Api::<$kind>::namespaced(test.client.clone(), &test.namespace);
            for object in api.list(&of_job).await.unwrap() {
                let object = serde_json::to_value(object).unwrap();
                objects.insert(key(&object), object);
            }
        )*};
    }
    collect!(ServiceAccount, ConfigMap, Service, NetworkPolicy, Pod);
    objects
}

fn key(object: &Value) -> String {
    format!("{}/{}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap())
}

/// Whether a created object contains everything that was planned. The API server may have added more.
fn holds(made: &Value, planned: &Value) -> bool {
    match (made, planned) {
        (Value::Object(made), Value::Object(planned)) => {
            planned.iter().all(|(name, value)| made.get(name).is_some_and(|made| holds(made, value)))
        }
        (Value::Array(made), Value::Array(planned)) => {
            made.len() >= planned.len()
                && made.iter().zip(planned).all(|(made, planned)| holds(made, planned))
        }
        (made, planned) => made == planned,
    }
}

#[tokio::test]
async fn the_plan_holds_every_object_that_the_operator_makes() {
    let Some(cluster) = CLUSTER.get() else { return };
    let test = TestNamespace::on(cluster, "planned").await;
    let patch = json!({"workers": {"count": 2, "device": "Cpu", "resources": {"memory": "2Gi"}}});
    // Users pass the namespace as an option, and write annotations that do not concern the workers.
    let mut manifest = test.manifest("planned", &patch);
    manifest.metadata.namespace = None;
    manifest.metadata.annotations = Some([("team".to_owned(), "alpha".to_owned())].into());
    let text = serde_json::to_string(&manifest).unwrap();
    let ask = async |extra: &[&str]| {
        let arguments =
            [&["plan", "-f", "-", "--trainer-image", "rlt.local/rlt-trainer:test"], extra].concat();
        run(command(&test, &arguments), Some(text.clone())).await
    };
    let before = ask(&["--server"]).await;
    let (before, error) =
        (String::from_utf8(before.stdout).unwrap(), String::from_utf8(before.stderr).unwrap());
    assert_eq!(before.lines().filter(|line| line.starts_with("+ ")).count(), 8, "{before}{error}");

    let _operator = test.operator().await;
    test.jobs().create(&PostParams::default(), &manifest).await.unwrap();
    test.when_pods("planned", |pods| pods.len() == 2).await;
    // The operator writes the status after it has created all objects.
    test.when("planned", |status| {
        status.conditions.iter().any(|condition| condition.type_ == ConditionType::Reconciling)
    })
    .await;
    let plan: Value = serde_json::from_slice(&ask(&["-o", "json"]).await.stdout).unwrap();
    let mut planned: BTreeMap<_, _> =
        plan["objects"].as_array().unwrap().iter().map(|object| (key(object), object.clone())).collect();
    // The EndpointSlice is created once the first worker has an address, which no kubelet sets here.
    planned.remove("EndpointSlice/planned-trainer").unwrap();
    let made = made(&test, "planned").await;
    assert_eq!(planned.keys().collect::<Vec<_>>(), made.keys().collect::<Vec<_>>());
    for (name, planned) in &planned {
        let (made, planned) = (comparable(made[name].clone()), comparable(planned.clone()));
        assert!(holds(&made, &planned), "{name}: planned {planned:#}\nmade {made:#}");
    }
    let after = String::from_utf8(ask(&["--server"]).await.stdout).unwrap();
    assert!(after.contains("= RLTrainingJob planned: stays as it is"), "{after}");
    // This operator serves no channel, so its ConfigMap has fewer entries; the others are equal.
    let gone: Vec<_> = after.lines().filter(|line| line.starts_with("    -")).collect();
    assert!(matches!(gone[..], [digest] if digest.contains(labels::CONTENT_DIGEST)), "{after}");
    assert!(after.contains("= Pod planned-trainer-1: stays; it follows the attempt"), "{after}");
}

/// Removes what differs from an offline plan: the job's UID, which only a cluster assigns, and settings in
/// which this operator differs from the chart, because it serves no channel and pulls no image.
fn comparable(mut object: Value) -> Value {
    // The first source of the job's volume is the ConfigMap; the other is a token for the channel.
    if let Some(sources) =
        object.pointer_mut("/spec/volumes/0/projected/sources").and_then(Value::as_array_mut)
    {
        sources.truncate(1);
    }
    if let Some(text) = object.pointer_mut("/data/environment.json") {
        let mut variables: BTreeMap<String, String> = serde_json::from_str(text.as_str().unwrap()).unwrap();
        let is_known =
            |name: &str| !name.starts_with("RLT_CHANNEL") && name != rlt_channel::environment::JOB_UID;
        variables.retain(|name, _| is_known(name));
        *text = json!(variables);
    }
    let gone = [
        ("/metadata/labels", labels::JOB_UID),
        ("/metadata/ownerReferences/0", "uid"),
        ("/spec/podSelector/matchLabels", labels::JOB_UID),
        ("/spec/ingress/0/from/0/podSelector/matchLabels", labels::JOB_UID),
        ("/spec/containers/0", "imagePullPolicy"),
        ("/metadata/annotations", labels::CONTENT_DIGEST),
        ("/data", rlt_channel::environment::CA_KEY),
    ];
    for (map, key) in gone {
        if let Some(map) = object.pointer_mut(map).and_then(Value::as_object_mut) {
            map.remove(key);
        }
    }
    object
}

#[tokio::test]
async fn a_refusal_of_the_cluster_is_reported_before_any_object_is_created() {
    let Some(cluster) = CLUSTER.get() else { return };
    let test = TestNamespace::on(cluster, "refused").await;
    test.post("steady", json!({})).await;
    let other = json!({"model": {"architecture": {"numLayers": 3}}});
    let manifest = serde_json::to_string(&test.manifest("steady", &other)).unwrap();
    let output = run(command(&test, &["plan", "-f", "-", "--server"]), Some(manifest)).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("! RLTrainingJob steady: would be refused: "), "{text}");
}

/// Returns a kubeconfig of a user with these permissions in the namespace, and none elsewhere.
fn kubeconfig_of_tenant(test: &TestNamespace, name: &str, rules: &Value) -> Value {
    let group = "rbac.authorization.k8s.io";
    let api = format!("{group}/v1");
    let metadata = json!({"name": name});
    let subject = json!({"kind": "ServiceAccount", "name": name, "namespace": test.namespace});
    test.create(&[
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        json!({"apiVersion": api, "kind": "Role", "metadata": metadata, "rules": rules}),
        json!({
            "apiVersion": api, "kind": "RoleBinding", "metadata": metadata, "subjects": [subject],
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        }),
    ]);
    let made =
        test.cluster.kubectl().args(["create", "token", name, "-n", &test.namespace]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let token = String::from_utf8(made.stdout).unwrap();
    let mut kubeconfig: Value =
        serde_json::from_slice(&std::fs::read(test.cluster.kubeconfig()).unwrap()).unwrap();
    kubeconfig["users"][0]["user"] = json!({"token": token.trim()});
    kubeconfig
}

/// A user of one namespace may not list Deployments of all namespaces, so cannot read the operator's.
#[tokio::test]
async fn a_user_of_one_namespace_plans_on_the_cluster_and_learns_what_is_not_known() {
    let Some(cluster) = CLUSTER.get() else { return };
    let test = TestNamespace::on(cluster, "tenant").await;
    let of_groups = |groups: &[&str]| json!([{"apiGroups": groups, "resources": ["*"], "verbs": ["*"]}]);
    let without_deployments = ["", "rltraining.dev", "networking.k8s.io", "discovery.k8s.io"];
    let folder = tempfile::tempdir().unwrap();
    for (name, rules, note) in [
        ("admin", of_groups(&["*"]), "no operator is to be seen here"),
        ("tenant", of_groups(&without_deployments), "you may not read the operator's Deployment"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, kubeconfig_of_tenant(&test, name, &rules).to_string()).unwrap();
        let mut ask = command(&test, &["plan", "-f", "-", "--server"]);
        ask.env("KUBECONFIG", &path);
        let manifest = serde_json::to_string(&test.manifest("planned", &json!({}))).unwrap();
        let output = run(ask, Some(manifest)).await;
        let [text, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(output.status.success(), "{name}: {text}{said}");
        assert!(text.contains("+ RLTrainingJob planned") && text.contains("+ Pod planned-trainer"), "{text}");
        assert!(said.contains(note), "{name}: {said}");
    }
}

#[tokio::test]
async fn the_plan_shows_the_source_of_each_value() {
    let Some(cluster) = WITH_OPERATOR.get() else { return };
    let test = TestNamespace::on(cluster, "origins").await;
    let defaults = json!({"workers": {"nodeSelector": {"zone": "b"}}}).to_string();
    let of_namespace = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rltraining-defaults"},
        "data": {"defaults.yaml": defaults},
    });
    let of_cluster = json!({"workers": {"nodeSelector": {"zone": "a", "gpu": "h100"}}}).to_string();
    let privileges = json!({"allow": ["HostIpc"]}).to_string();
    let variable = |name: &str, value: &str| json!({"name": name, "value": value});
    let container = json!({
        "name": "operator", "image": "i",
        "env": [
            variable("RLT_TRAINER_IMAGE", "rlt.local/rlt-trainer:test"), variable("RLT_POD_DEFAULTS", &of_cluster),
            variable("RLT_POD_PRIVILEGES", &privileges),
        ],
    });
    let labels = json!({"app.kubernetes.io/name": "rl-operator"});
    let operator = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "rl-operator", "labels": labels},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    });
    test.create(&[of_namespace, operator]);
    let ask = async |switch: &str| {
        let template = json!({"spec": {switch: true, "containers": []}});
        let patch = json!({"workers": {"count": 2, "device": "Cpu", "podTemplate": template}});
        let manifest = serde_json::to_string(&test.manifest("placed", &patch)).unwrap();
        run(command(&test, &["plan", "-f", "-", "--server"]), Some(manifest)).await
    };
    let output = ask("hostIPC").await;
    let text = String::from_utf8(output.stdout).unwrap();
    let from = |field: &str| {
        let line =
            text.lines().find(|line| line.trim_start().starts_with(&format!("spec.workers.{field}: ")));
        let line = line.unwrap_or_else(|| unreachable!("no {field} in {text}"));
        line.rsplit_once("  ").unwrap().1.to_owned()
    };
    assert_eq!(from("count"), "job");
    assert_eq!(from("ranksPerWorker"), "built in");
    assert_eq!(from("nodeSelector.zone"), "namespace's defaults");
    assert_eq!(from("nodeSelector.gpu"), "cluster's defaults");
    assert_eq!(from("podTemplate.spec.hostIPC"), "job");
    let refused = ask("hostPID").await;
    assert!(!refused.status.success());
    let text = String::from_utf8(refused.stdout).unwrap();
    assert!(
        text.contains("spec.workers.podTemplate.spec.hostPID: HostPid is not in the operator's setting"),
        "{text}"
    );
}
