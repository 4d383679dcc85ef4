//! The objects of a job, as they are sent to the API server.

mod children;
mod groups;
mod spares;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Service};
use rlt_plan::WorkerGroup;
use serde_json::{Value, json};

use super::{BuildInput, ChannelAccess, Settings, config_map, content_digest, storage_claim};
use crate::args::PullPolicy;
use crate::fixtures::job;
use crate::job::Job;
use crate::prepare::Prepared;

fn settings(channel: Option<ChannelAccess>) -> Settings {
    Settings {
        trainer_image: "rlt.local/rlt-trainer:dev".into(),
        trainer_cuda_image: Some("rlt.local/rlt-trainer:dev-cuda".into()),
        pull_policy: PullPolicy::Never,
        channel,
        traces: Vec::new(),
        pods: Default::default(),
    }
}

fn channel() -> ChannelAccess {
    ChannelAccess { address: "https://rlt-operator.rl:8443".into(), authority: "PEM".into() }
}

/// Returns the quickstart's job with `workers` as its section `spec.workers`.
fn with_workers(workers: Value) -> Job {
    let mut job = job(&json!({}));
    let mut spec: Value = serde_json::from_str(&job.spec).unwrap();
    spec["workers"] = workers;
    job.spec = spec.to_string();
    job
}

fn prepared(job: &Job, num_workers: u32) -> Prepared {
    let mut prepared = Prepared::new(job).unwrap();
    prepared.plan.worker_groups[0].num_workers = num_workers;
    prepared
}

/// Returns the first group of a job's workers.
fn trainer<'a>(input: &BuildInput<'a>) -> &'a WorkerGroup {
    &input.prepared.plan.worker_groups[0]
}

/// Returns the pod of a worker of the first group.
fn pod(input: &BuildInput<'_>, attempt: u32, worker_idx: u32) -> Pod {
    super::pod(input, attempt, trainer(input), worker_idx)
}

fn service(input: &BuildInput<'_>) -> Option<Service> {
    super::service(input, trainer(input))
}

#[test]
fn the_quickstart_is_one_restricted_pod() {
    let job = with_workers(json!({}));
    let (prepared, settings) = (prepared(&job, 1), settings(Some(channel())));
    let input = BuildInput { job: &job, prepared: &prepared, settings: &settings };
    let shared = config_map(&input).unwrap().data.unwrap().remove("environment.json").unwrap();
    let shared: Value = serde_json::from_str(&shared).unwrap();
    insta::assert_yaml_snapshot!((pod(&input, 1, 0), shared));
    assert!(service(&input).is_none(), "one worker needs no address");
    assert!(storage_claim(&input).is_none());
}

#[test]
fn every_field_of_the_workers_reaches_the_pod() {
    let job = with_workers(json!({
        "device": "Cuda",
        "image": "example.com/trainer:2",
        "imagePullSecrets": ["registry"],
        "resources": {
            "cpu": "4", "memory": "16Gi", "gpu": "amd.com/gpu", "sharedMemory": "1Gi",
            "extra": {"rdma/hca_shared": "1", "hugepages-2Mi": "1Gi"}
        },
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, {"key": "a", "value": "b"}],
        "pod": {
            "labels": {"team": "a", "app.kubernetes.io/name": "other"},
            "annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"},
            "serviceAccountName": "bucket-reader",
            "imagePullPolicy": "Always",
            "runtimeClassName": "nvidia",
            "volumes": [
                {"mountPath": "/models", "claimName": "models", "readOnly": true},
                {"mountPath": "/scratch", "ephemeral": {"size": "1Ti", "storageClassName": "nvme"}},
                {"mountPath": "/lists", "configMap": "lists"},
                {"mountPath": "/keys", "secret": "keys"},
                {"mountPath": "/base", "image": "example.com/models/qwen:1"},
            ]
        },
        "priorityClassName": "high",
        "env": [
            {"name": "PRICE", "value": "$(HOME) $5"},
            {"name": "HF_HOME", "value": "/models"},
            {"name": "HF_TOKEN", "secret": {"name": "hub", "key": "token"}},
        ],
        "storage": {"size": "10Gi", "storageClassName": "fast"},
    }));
    let (prepared, settings) = (prepared(&job, 2), settings(None));
    let input = BuildInput { job: &job, prepared: &prepared, settings: &settings };
    let rank_1 = pod(&input, 3, 1);
    insta::assert_yaml_snapshot!((rank_1, service(&input), storage_claim(&input)));
}

#[test]
fn workers_with_gpus_run_the_image_with_cuda_s_libraries_unless_the_job_names_one() {
    let image = |workers: Value, settings: &Settings| {
        let job = with_workers(workers);
        let prepared = prepared(&job, 1);
        let pod = pod(&BuildInput { job: &job, prepared: &prepared, settings }, 1, 0);
        let container = pod.spec.unwrap().containers.remove(0);
        let gpus = container.resources.unwrap().limits.unwrap_or_default().remove("nvidia.com/gpu");
        (container.image.unwrap(), gpus.map(|quantity| quantity.0))
    };
    let both = settings(None);
    let (plain, cuda) = ("rlt.local/rlt-trainer:dev".to_owned(), "rlt.local/rlt-trainer:dev-cuda".to_owned());
    let one_gpu = Some("1".to_owned());
    assert_eq!(image(json!({"device": "Cuda"}), &both), (cuda, one_gpu.clone()));
    for device in ["Auto", "Cpu"] {
        assert_eq!(image(json!({"device": device}), &both), (plain.clone(), None), "{device}");
    }
    let own = json!({"device": "Cuda", "image": "example.com/trainer:2"});
    assert_eq!(image(own, &both), ("example.com/trainer:2".to_owned(), one_gpu.clone()));
    let one_for_both = Settings { trainer_cuda_image: None, ..both };
    assert_eq!(image(json!({"device": "Cuda"}), &one_for_both), (plain, one_gpu));
}

#[test]
fn a_pod_of_eight_ranks_has_eight_gpus_and_begins_at_its_first_rank() {
    let job = with_workers(json!({"count": 4, "ranksPerWorker": 8, "device": "Cuda"}));
    let (prepared, settings) = (Prepared::new(&job).unwrap(), settings(None));
    let input = BuildInput { job: &job, prepared: &prepared, settings: &settings };
    let last = pod(&input, 1, 3).spec.unwrap().containers.remove(0);
    let rank = last.env.unwrap().into_iter().find(|variable| variable.name == "RANK").unwrap();
    assert_eq!(rank.value.as_deref(), Some("24"));
    assert_eq!(last.resources.unwrap().limits.unwrap()["nvidia.com/gpu"].0, "8");
    let shared = config_map(&input).unwrap().data.unwrap().remove("environment.json").unwrap();
    let shared: Value = serde_json::from_str(&shared).unwrap();
    assert_eq!((&shared["WORLD_SIZE"], &shared["LOCAL_WORLD_SIZE"]), (&json!("32"), &json!("8")));
    let resolved = prepared.resolved_numbers();
    assert_eq!((resolved.world_size, resolved.gpus_per_worker), (32, 8));
}

#[test]
fn a_claim_goes_with_the_job_only_on_request() {
    let owners = |storage: Value| {
        let job = with_workers(json!({"storage": storage}));
        let (prepared, settings) = (prepared(&job, 1), settings(None));
        let claim = storage_claim(&BuildInput { job: &job, prepared: &prepared, settings: &settings });
        claim.map(|claim| claim.metadata.owner_references.is_some())
    };
    assert_eq!(owners(json!({"size": "1Gi"})), Some(false));
    assert_eq!(owners(json!({"size": "1Gi", "retain": false})), Some(true));
    assert_eq!(owners(json!({"claimName": "models"})), None);
}

#[test]
fn the_manifest_in_the_config_map_validates_to_the_same_job_and_its_digest_follows_its_content() {
    let job = with_workers(json!({"resources": {"memory": "2Gi"}}));
    let (prepared, settings) = (prepared(&job, 1), settings(Some(channel())));
    let map = config_map(&BuildInput { job: &job, prepared: &prepared, settings: &settings }).unwrap();
    let data = map.data.clone().unwrap();
    assert_eq!(rlt_api::validate(&data["manifest.yaml"]).unwrap(), prepared.job);
    assert_eq!(data[rlt_channel::environment::CA_KEY], "PEM");
    let other = Settings { channel: None, ..settings };
    let changed = config_map(&BuildInput { job: &job, prepared: &prepared, settings: &other }).unwrap();
    assert_ne!(content_digest(&map), content_digest(&changed));
}

#[test]
fn a_jobs_own_variables_win_and_rank_and_attempt_are_set_per_pod() {
    let endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let collector = [(endpoint.to_owned(), "http://otel:4318/$a".to_owned())];
    let environment = |job: &Job, traces: &[(String, String)], attempt: u32| {
        let (prepared, settings) = (prepared(job, 2), Settings { traces: traces.into(), ..settings(None) });
        let input = BuildInput { job, prepared: &prepared, settings: &settings };
        let container = pod(&input, attempt, 1).spec.unwrap().containers.remove(0);
        let pairs = container.env.unwrap().into_iter().map(|one| (one.name, one.value.unwrap_or_default()));
        let shared = config_map(&input).unwrap().data.unwrap().remove("environment.json").unwrap();
        (
            pairs.collect::<BTreeMap<_, _>>(),
            serde_json::from_str::<BTreeMap<String, String>>(&shared).unwrap(),
        )
    };
    let own = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect::<BTreeMap<_, _>>()
    };
    let job = with_workers(json!({}));
    let (of_pod, shared) = environment(&job, &[], 3);
    assert_eq!(of_pod, own(&[("RANK", "1"), ("RLT_ATTEMPT", "3")]));
    assert_eq!((&*shared["WORLD_SIZE"], &*shared["HF_HOME"]), ("2", "/storage/hub"));
    assert!(!shared.contains_key("RANK") && !shared.contains_key(endpoint));

    let parent = rlt_traces::AttemptTrace::of(job.uid(), 3).traceparent();
    let (of_pod, shared) = environment(&job, &collector, 3);
    assert_eq!(of_pod[rlt_traces::TRACEPARENT], parent);
    assert_eq!(shared[endpoint], "http://otel:4318/$a");

    let mine =
        json!([{"name": endpoint, "value": "http://mine:4318"}, {"name": "HF_HOME", "value": "/models"}]);
    let (of_pod, shared) = environment(&with_workers(json!({"env": mine})), &collector, 3);
    assert_eq!((&*of_pod[endpoint], &*of_pod["HF_HOME"]), ("http://mine:4318", "/models"));
    assert!(!shared.contains_key(endpoint) && !shared.contains_key("HF_HOME"), "{shared:?}");
}
