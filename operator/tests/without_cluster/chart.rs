//! The chart: generated files and README are current, Helm renders the checked-in base, and every name in it
//! exists.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

mod health;
mod helm;
mod network;
mod olm;
mod simulated_network;
mod values;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use helm::Helm;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rlt_objects::args::Args;
use rlt_objects::release_metadata;
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// All objects of a text of many documents.
fn objects(text: &str) -> Vec<Value> {
    let documents = text.split("\n---").filter(|document| document.contains("kind:"));
    documents.map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn of_kind<'a>(objects: &'a [Value], kind: &'a str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

#[test]
fn generated_files_are_current() {
    for (path, text) in rlt_operator::chart::files(&root()).unwrap() {
        let present = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(present == text, "{} is old: run `make generate`", path.display());
    }
}

#[test]
fn the_plain_bundle_is_what_helm_renders() {
    let Some(helm) = Helm::find() else { return };
    helm.lint();
    let rendered = helm.template(&["--namespace", "rl-operator"]).unwrap();
    let path = root().join("charts/kustomize/rl-operator.yaml");
    if std::env::var_os("UPDATE_BUNDLE").is_some() {
        std::fs::write(&path, &rendered).unwrap();
        olm::write();
    }
    let present = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(present == rendered, "charts/kustomize/rl-operator.yaml is old: run `make generate`");
}

#[test]
fn objects_that_the_operator_may_create_again_have_the_labels_of_the_channels_service() {
    let Some(helm) = Helm::find() else { return };
    let rendered = objects(&helm.template(&["--namespace", "rl-operator"]).unwrap());
    let metadata = |kind: &str, name: &str| -> ObjectMeta {
        let named = of_kind(&rendered, kind).into_iter().find(|object| object["metadata"]["name"] == name);
        serde_json::from_value(named.unwrap()["metadata"].clone()).unwrap()
    };
    let service = metadata("Service", "rl-operator-channel");
    for (kind, name) in [("Lease", "rl-operator"), ("Secret", "rl-operator-channel")] {
        let again = release_metadata::copy_from(&service, name);
        let of_chart = metadata(kind, name);
        assert_eq!((again.labels, again.annotations), (of_chart.labels, of_chart.annotations), "{kind}");
    }
}

#[test]
fn two_releases_share_no_object_but_the_definition() {
    let Some(helm) = Helm::find() else { return };
    let names = |release: &str| -> BTreeSet<String> {
        let namespaces = format!("namespaces={{team,of-{release}}}");
        let rendered = helm.template_of(release, &["--namespace", "operators", "--set", &namespaces]);
        let name = |object: &Value| {
            let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
            let metadata = &object["metadata"];
            [text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"])].join("/")
        };
        objects(&rendered.unwrap()).iter().map(name).collect()
    };
    let (first, second) = (names("rl-operator"), names("other"));
    assert!(first.len() > 15, "{first:?}");
    let shared: Vec<_> = first.intersection(&second).collect();
    assert_eq!(shared, ["CustomResourceDefinition//rltrainingjobs.rltraining.dev"]);
}

#[test]
fn every_optional_part_can_be_rendered() {
    let Some(helm) = Helm::find() else { return };
    let all = "serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true,\
               crd.keep=false,priorityClassName=high";
    let objects = objects(&helm.template(&["--set", all]).unwrap());
    for kind in ["ServiceMonitor", "PrometheusRule", "NetworkPolicy", "PodDisruptionBudget", "Deployment"] {
        assert_eq!(of_kind(&objects, kind).len(), 1, "{kind}");
    }
    let crd = of_kind(&objects, "CustomResourceDefinition")[0];
    assert_eq!(crd["metadata"]["annotations"]["helm.sh/resource-policy"], Value::Null);
    let none = "crd.install=false,networkPolicy.enabled=false,replicas=1";
    let objects = self::objects(&helm.template(&["--set", none]).unwrap());
    for kind in ["CustomResourceDefinition", "NetworkPolicy", "PodDisruptionBudget"] {
        assert!(of_kind(&objects, kind).is_empty(), "{kind}");
    }
}

#[test]
fn an_endpoint_for_traces_reaches_the_operator_and_its_port_is_open() {
    let Some(helm) = Helm::find() else { return };
    let policy_and_variables = |endpoint: &str| {
        let set = format!("traces.endpoint={endpoint},traces.ratio=0.25");
        let rendered = objects(&helm.template(&["--set", &set]).unwrap());
        let policy = of_kind(&rendered, "NetworkPolicy")[0]["spec"]["egress"].as_array().unwrap().clone();
        let container = &of_kind(&rendered, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0];
        let variables = container["env"].as_array().unwrap().clone();
        let is_about = |one: &Value| one["name"].as_str().is_some_and(|name| name.starts_with("OTEL"));
        (policy, variables.into_iter().filter(is_about).map(|one| one["value"].clone()).collect::<Vec<_>>())
    };
    let (without, none) = policy_and_variables("");
    assert_eq!((without.len(), none), (2, vec![]));
    for (endpoint, port) in [
        ("http://otel.obs:4318", 4318),
        ("https://otel.example.com/v1", 443),
        ("http://[fd00::1]:4318", 4318),
    ] {
        let (policy, variables) = policy_and_variables(endpoint);
        assert_eq!(policy[2]["ports"], json!([{"port": port, "protocol": "TCP"}]), "{endpoint}");
        assert_eq!(variables, [endpoint, "traceidratio", "0.25"]);
    }
}

#[test]
fn the_operator_knows_the_image_for_workers_with_gpus() {
    let Some(helm) = Helm::find() else { return };
    let image = |set: &str| {
        let rendered = objects(&helm.template(&["--set", set]).unwrap());
        let container = &of_kind(&rendered, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0];
        let variables = container["env"].as_array().unwrap().clone();
        variables.into_iter().find(|one| one["name"] == "RLT_TRAINER_CUDA_IMAGE").unwrap()["value"].clone()
    };
    assert_eq!(image("trainerImage.tag=v1"), "rlt.local/rlt-trainer:dev-cuda");
    assert_eq!(
        image("trainerCudaImage.repository=example.com/t,trainerCudaImage.tag=v2"),
        "example.com/t:v2"
    );
}

#[test]
fn the_operator_reads_what_the_values_say_of_pods() {
    let Some(helm) = Helm::find() else { return };
    let arguments = |set: &[&str]| {
        let rendered = objects(&helm.template(set).unwrap());
        let container = &of_kind(&rendered, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0];
        let variables = container["env"].as_array().unwrap().clone();
        let value = |name: &str| {
            let variable = variables.iter().find(|one| one["name"] == name);
            variable.and_then(|one| one["value"].as_str()).map(str::to_owned)
        };
        let privileges = value("RLT_POD_PRIVILEGES").map(|yaml| format!("--pod-privileges={yaml}"));
        let defaults = value("RLT_POD_DEFAULTS").map(|yaml| format!("--pod-defaults={yaml}"));
        let words = ["rlt-operator".to_owned(), "--trainer-image=i".to_owned()];
        Args::try_parse_from(words.into_iter().chain(privileges).chain(defaults)).unwrap().pods()
    };
    assert_eq!(arguments(&[]), rlt_objects::build::PodSettings::default(), "by default nothing is allowed");
    let set = "podPrivileges.allow={HostNetwork,Root},podPrivileges.capabilities={IPC_LOCK},podDefaults.nodeSelector.zone=a";
    let pods = arguments(&["--set", set]);
    assert_eq!(pods.privileges.allow.len(), 2);
    assert_eq!(pods.privileges.capabilities, ["IPC_LOCK"]);
    assert_eq!(pods.defaults.workers()["nodeSelector"], json!({"zone": "a"}));
}

#[test]
fn the_status_channel_is_open_to_addresses_of_nodes_where_jobs_may_use_their_network() {
    let Some(helm) = Helm::find() else { return };
    let open_ports = |set: &str| {
        let rendered = objects(&helm.template(&["--set", set]).unwrap());
        let ingress = of_kind(&rendered, "NetworkPolicy")[0]["spec"]["ingress"].as_array().unwrap().clone();
        let from_anywhere = ingress.into_iter().filter(|rule| rule["from"].is_null());
        from_anywhere.map(|rule| rule["ports"][0]["port"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(open_ports("podPrivileges.allow={Root}"), [json!(8080)]);
    assert_eq!(open_ports("podPrivileges.allow={Root,HostNetwork}"), [json!(9443), json!(8080)]);
}

#[test]
fn an_operator_of_named_namespaces_has_no_permission_on_jobs_elsewhere() {
    let Some(helm) = Helm::find() else { return };
    let objects = objects(&helm.template(&["--set", "namespaces={team-a,team-b}"]).unwrap());
    let cluster = of_kind(&objects, "ClusterRole");
    let operator = cluster.iter().find(|role| role["metadata"]["name"] == "rl-operator").unwrap();
    let resources: Vec<_> =
        operator["rules"].as_array().unwrap().iter().map(|rule| &rule["resources"][0]).collect();
    let of_queues = ["resourceflavors", "workloadpriorityclasses", "priorityclasses"];
    assert_eq!(resources[..3], of_queues, "what a queue says of nodes and priorities");
    assert_eq!(
        resources[3..],
        ["nodes", "tokenreviews"],
        "which have no namespace, and nodes are not changed"
    );
    let roles = of_kind(&objects, "Role");
    let mut namespaces: Vec<_> =
        roles.iter().map(|role| role["metadata"]["namespace"].as_str().unwrap()).collect();
    namespaces.sort_unstable();
    assert_eq!(namespaces, ["default", "team-a", "team-b"]);
}

#[test]
fn people_may_scale_jobs_that_they_may_edit() {
    let objects = objects(&read("charts/kustomize/rl-operator.yaml"));
    let verbs = |role: &str| {
        let roles = of_kind(&objects, "ClusterRole");
        let role = roles.iter().find(|one| one["metadata"]["name"] == role).unwrap();
        let rules = role["rules"].as_array().unwrap();
        let rule = rules.iter().find(|rule| rule["resources"] == json!(["rltrainingjobs/scale"]));
        rule.unwrap()["verbs"].clone()
    };
    assert_eq!(verbs("rl-operator-view"), json!(["get"]));
    assert_eq!(verbs("rl-operator-edit"), json!(["patch", "update"]));
}

#[test]
fn the_operator_reads_and_writes_no_secret_but_its_own() {
    let objects = objects(&read("charts/kustomize/rl-operator.yaml"));
    let roles = objects.iter().filter(|one| one["kind"] == "Role" || one["kind"] == "ClusterRole");
    let rules = roles.flat_map(|role| role["rules"].as_array().unwrap());
    let about_secrets: Vec<_> = rules.filter(|rule| rule["resources"] == json!(["secrets"])).collect();
    assert_eq!(about_secrets.len(), 2);
    for rule in about_secrets {
        let is_named = rule["resourceNames"] == json!(["rl-operator-channel"]);
        assert!(is_named || rule["verbs"] == json!(["create"]), "{rule}");
    }
}

#[test]
fn values_that_can_not_work_are_refused_by_name() {
    let Some(helm) = Helm::find() else { return };
    for wrong in [
        "replicas=0",
        "image.pullPolicy=Sometimes",
        "imagePullPolicy=Always",
        "trainerCudaImage.tag=",
        "namespaces={Team_A}",
        "traces.endpoint=otel:4318",
        "traces.ratio=2",
        "podPrivileges.allow={Everything}",
        "podPrivileges.capabilities={CAP-NET}",
        "podDefaults.count=2",
    ] {
        let error = helm.template(&["--set", wrong]).unwrap_err();
        assert!(error.contains(wrong.split(['=', '.']).next().unwrap()), "{wrong}: {error}");
    }
}

#[test]
fn the_deployment_starts_the_operator_with_arguments_that_it_knows() {
    let objects = objects(&read("charts/kustomize/rl-operator.yaml"));
    let pod = &of_kind(&objects, "Deployment")[0]["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let arguments = container["args"].as_array().unwrap().iter().map(|argument| argument.as_str().unwrap());
    let image = ["--trainer-image", "rlt.local/rlt-trainer:dev"];
    Args::try_parse_from(["rlt-operator"].into_iter().chain(image).chain(arguments)).unwrap();
    let security = &container["securityContext"];
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["capabilities"]["drop"], serde_json::json!(["ALL"]));
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
}

#[test]
fn alerts_and_dashboard_name_metrics_that_exist() {
    let documentation = read("operator/src/metrics.rs");
    for file in ["charts/rl-operator/files/alerts.yaml", "charts/rl-operator/files/dashboard.json"] {
        let text = read(file);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in words.filter(|word| word.starts_with("rlt_operator_")) {
            let family = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(documentation.contains(&format!("`{family}`")), "{file}: {name}");
        }
    }
}
