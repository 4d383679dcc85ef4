//! Pod Security's level `restricted`: our own refusals, the pods that the operator makes, and what the
//! library of Kubernetes says of both.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

mod checks;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use k8s_openapi::api::core::v1::Pod;
use rlt_objects::args::PullPolicy;
use rlt_objects::build::{self, BuildInput, PodSettings, Settings};
use rlt_objects::job::Job;
use rlt_objects::pod_template;
use rlt_objects::prepare::{Invalid, Prepared};
use rlt_objects::privileges::Privileges;
use serde_json::{Value, json};

use checks::{APP_ARMOR_OF_TRAINER, requests, with_container};

/// The privileges beyond `restricted` that a template requests.
fn refused(template: &Value) -> Vec<String> {
    let workers = serde_json::from_value(json!({"podTemplate": template})).unwrap();
    Privileges::default().refused("team", &workers)
}

/// Templates of containers that conform to `restricted`, and of annotations.
fn conforming() -> Vec<Value> {
    let profile = json!({"type": "RuntimeDefault"});
    let context = json!({
        "allowPrivilegeEscalation": false, "privileged": false, "procMount": "Default", "runAsNonRoot": true,
        "runAsUser": 1000, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "Localhost", "localhostProfile": "a"}, "appArmorProfile": profile,
    });
    let mut containers = requests(&json!(""));
    containers.extend(requests(&Value::Null));
    containers.push(json!({"livenessProbe": {"exec": {"command": ["true"]}}}));
    containers.push(json!({"securityContext": context, "ports": [{"containerPort": 1, "hostPort": 0}]}));
    let lists = ["containers", "initContainers"].into_iter();
    let containers = lists.flat_map(|list| containers.iter().map(move |fields| with_container(list, fields)));
    let annotation = |profile: &str| json!({"metadata": {"annotations": {APP_ARMOR_OF_TRAINER: profile}}});
    let annotations = ["", "runtime/default", "localhost/trainer"].map(annotation);
    containers.chain(annotations).collect()
}

/// The job of a manifest, as the API server would have it.
fn job(mut manifest: Value) -> Job {
    manifest["metadata"] = json!({"name": "adding", "namespace": "team", "uid": "u", "generation": 1});
    serde_json::from_value(manifest).unwrap()
}

/// A pod of each group of a job's workers.
fn pods_of(job: &Job, prepared: &Prepared) -> Vec<Pod> {
    let settings = Settings {
        trainer_image: "rlt.local/rlt-trainer:dev".into(),
        trainer_cuda_image: None,
        pull_policy: PullPolicy::Never,
        channel: None,
        traces: Vec::new(),
        pods: PodSettings::default(),
    };
    let input = BuildInput { job, prepared, settings: &settings };
    prepared.plan.worker_groups.iter().map(|group| build::pod(&input, 1, group, 0)).collect()
}

/// The quickstart's pod with a template, whatever privileges it requests.
fn pod_of(template: &Value) -> Pod {
    let example = include_str!("../../../examples/quickstart/job.yaml");
    let mut manifest: Value = serde_saphyr::from_str(example).unwrap();
    manifest["spec"]["workers"]["podTemplate"] = template.clone();
    let job = job(manifest);
    let prepared = Prepared::new(&job).unwrap();
    pods_of(&job, &prepared).remove(0)
}

/// Judgements of Kubernetes' own library.
struct Library {
    /// Names of all checks of level `restricted`.
    checks: BTreeSet<String>,
    /// Whether each pod is allowed, and the names of the checks that refuse it.
    judgements: Vec<Judgement>,
}

struct Judgement {
    is_allowed: bool,
    refusing: BTreeSet<String>,
}

/// Asks the library about pods; `None` where it cannot be built, and the test is skipped.
fn library(pods: &[Pod]) -> Option<Library> {
    let mut library = rlt_cluster::pod_security().unwrap()?;
    let mut child = library.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for pod in pods {
        writeln!(input, "{}", serde_json::to_string(pod).unwrap()).unwrap();
    }
    drop(input);
    let answer = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let mut answers = answer.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let checks = names(&answers.next().unwrap());
    let judgement = |answer: Value| Judgement {
        is_allowed: answer["allowed"].as_bool().unwrap(),
        refusing: names(&answer["checks"]),
    };
    let judgements: Vec<_> = answers.map(judgement).collect();
    assert_eq!(judgements.len(), pods.len(), "{answer}");
    Some(Library { checks, judgements })
}

fn names(list: &Value) -> BTreeSet<String> {
    list.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_template_that_violates_a_check_of_pod_security_is_refused() {
    for check in checks::all() {
        let templates = check.all_templates();
        assert!(!templates.is_empty(), "{}", check.name);
        for template in templates {
            let problems = pod_template::problems(&template);
            assert!(problems.is_empty(), "{}: not a template: {problems:?}", check.name);
            assert_eq!(refused(&template).len(), 1, "{}: {template}", check.name);
        }
    }
}

#[test]
fn a_template_that_conforms_to_restricted_is_not_refused() {
    for template in conforming() {
        assert_eq!(refused(&template), [""; 0], "{template}");
    }
}

/// A check that a release of Kubernetes adds is missing in the table, until a template violates it and is
/// refused by us.
#[test]
fn the_library_of_kubernetes_has_the_checks_of_the_table_and_refuses_their_templates() {
    let mut cases = Vec::new();
    for check in checks::all() {
        cases.extend(check.all_templates().into_iter().map(|template| (check.name, template)));
    }
    let pods: Vec<Pod> = cases.iter().map(|(_, template)| pod_of(template)).collect();
    let Some(library) = library(&pods) else { return };
    let table: BTreeSet<String> = checks::all().into_iter().map(|check| check.name.to_owned()).collect();
    assert_eq!(library.checks, table);
    for ((check, template), judgement) in cases.iter().zip(library.judgements) {
        let Judgement { is_allowed, refusing } = judgement;
        assert!(!is_allowed && refusing.contains(*check), "{check}: {refusing:?}: {template}");
    }
}

#[test]
fn the_library_of_kubernetes_allows_what_we_allow() {
    let templates = conforming();
    let pods: Vec<Pod> = templates.iter().map(pod_of).collect();
    let Some(library) = library(&pods) else { return };
    for (template, Judgement { is_allowed, refusing }) in templates.iter().zip(library.judgements) {
        assert!(is_allowed && refusing.is_empty(), "{refusing:?}: {template}");
    }
}

/// Settings of workers that add containers, volumes and fields to their pods.
fn settings_of_workers() -> [Value; 4] {
    [
        json!({"storage": {"size": "1Gi"}}),
        json!({"count": 2, "spares": 1, "resources": {"cpu": "2", "memory": "4Gi", "sharedMemory": "1Gi"}}),
        json!({"device": "Cuda", "count": 2, "ranksPerWorker": 2}),
        json!({"pod": {"volumes": [
            {"mountPath": "/models", "claimName": "models"}, {"mountPath": "/lists", "configMap": "lists"},
            {"mountPath": "/keys", "secret": "keys"}, {"mountPath": "/base", "image": "example.com/base:1"},
            {"mountPath": "/scratch", "ephemeral": {"size": "1Gi", "storageClassName": "nvme"}},
        ]}}),
    ]
}

#[test]
fn the_library_of_kubernetes_allows_the_pods_of_every_example_and_setting_without_privileges() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let files = std::fs::read_dir(examples).unwrap().map(|folder| folder.unwrap().path().join("job.yaml"));
    let texts = files.filter(|file| file.exists()).map(|file| std::fs::read_to_string(file).unwrap());
    let mut manifests: Vec<Value> = texts.map(|text| serde_saphyr::from_str(&text).unwrap()).collect();
    assert!(manifests.len() >= 9, "{} examples", manifests.len());
    let quickstart = include_str!("../../../examples/quickstart/job.yaml");
    for workers in settings_of_workers() {
        let mut manifest: Value = serde_saphyr::from_str(quickstart).unwrap();
        manifest["spec"]["workers"] = workers;
        manifests.push(manifest);
    }
    let mut pods = Vec::new();
    for manifest in manifests {
        let job = job(manifest.clone());
        match Prepared::in_cluster(&job, &PodSettings::default(), None) {
            Ok(prepared) => pods.extend(pods_of(&job, &prepared)),
            Err(Invalid::NotAllowed(_)) => {}
            Err(invalid) => unreachable!("{invalid:?}: {manifest:#}"),
        }
    }
    assert!(pods.len() >= 9, "{} pods", pods.len());
    let Some(library) = library(&pods) else { return };
    for (pod, Judgement { is_allowed, refusing }) in pods.iter().zip(library.judgements) {
        assert!(is_allowed && refusing.is_empty(), "{refusing:?}: {}", serde_json::to_string(pod).unwrap());
    }
}
