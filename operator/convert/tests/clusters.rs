//! Tests that jobs of KubeRay and Kubeflow Trainer become valid manifests: their commands, their pods, and a
//! remark on each field without an equivalent.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rlt_convert::{ClusterJob, Conversion, Fate, Launch, Manifest, convert, launches_of_manifest};
use serde_json::{Value, json};

use super::{fixture, problems};

fn launches(text: &str) -> Result<Vec<Launch>, String> {
    let manifest = Manifest::read(text).map_err(|error| error.to_string())?;
    let manifest = manifest.ok_or_else(|| format!("no manifest: {text}"))?;
    let found = launches_of_manifest(&manifest, &BTreeMap::new(), &[]);
    found.map(|(launches, _)| launches).map_err(|error| error.to_string())
}

/// Converts the first job of a file, with the texts of its settings files.
fn conversion(text: &str) -> Conversion {
    let launch = launches(text).unwrap().remove(0);
    let files: Vec<String> = launch.files.iter().map(|path| launch.texts[path].clone()).collect();
    convert(&launch, &files, launch.cluster.as_ref().and_then(ClusterJob::name).unwrap_or("test")).unwrap()
}

fn manifest(text: &str) -> Value {
    let conversion = conversion(text);
    assert_eq!(problems(&conversion), [""; 0], "{}", conversion.manifest);
    serde_saphyr::from_str(&conversion.manifest).unwrap()
}

/// Returns a RayJob with these groups and additional fields, whose command ends with the settings of a
/// training.
fn ray_job(command: &str, cluster: &Value, more: &Value) -> String {
    let settings = "actor_rollout_ref.model.path=org/base data.train_files=/data/a.parquet \
                    algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4";
    let mut job = json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": "one"},
        "spec": {"entrypoint": format!("{command} {settings}"), "rayClusterSpec": cluster},
    });
    for (name, value) in more.as_object().unwrap() {
        job["spec"][name] = value.clone();
    }
    job.to_string()
}

/// Returns a group of pods with GPUs.
fn group(replicas: u64, gpus: u64) -> Value {
    let limits = if gpus > 0 { json!({"nvidia.com/gpu": gpus}) } else { json!({}) };
    let container = json!({"name": "ray", "image": "ray:1", "resources": {"limits": limits}});
    json!({"replicas": replicas, "template": {"spec": {"containers": [container]}}})
}

const VERL: &str = "python3 -m verl.trainer.main_ppo";

#[test]
fn a_ray_job_becomes_a_valid_manifest() {
    let conversion = conversion(&fixture("ray-job.yaml"));
    assert_eq!(problems(&conversion), [""; 0], "{}", conversion.manifest);
    insta::assert_snapshot!(conversion.manifest);
}

#[test]
fn a_train_job_becomes_a_valid_manifest() {
    let conversion = conversion(&fixture("train-job.yaml"));
    assert_eq!(problems(&conversion), [""; 0], "{}", conversion.manifest);
    insta::assert_snapshot!(conversion.manifest);
}

/// Versions, kinds, names and the command have no outcome.
#[test]
fn every_field_of_a_job_has_an_outcome() {
    let cases: [(&str, &str, &[&str]); 4] = [
        ("ray-job.yaml", "/spec", &["entrypoint", "rayClusterSpec"]),
        ("ray-job.yaml", "/spec/rayClusterSpec", &[]),
        ("ray-job.yaml", "/spec/rayClusterSpec/workerGroupSpecs/0", &["replicas"]),
        ("ray-job.yaml", "/spec/rayClusterSpec/workerGroupSpecs/0/template/spec", &["containers", "volumes"]),
    ];
    for (name, path, unnamed) in cases {
        let text = fixture(name);
        let given: Value = serde_saphyr::from_str(&text).unwrap();
        let outcomes = conversion(&text).outcomes;
        for field in given.pointer(path).unwrap().as_object().unwrap().keys() {
            let is_named =
                outcomes.iter().any(|outcome| outcome.key.split(['.', '[']).any(|part| part == field));
            assert!(is_named != unnamed.contains(&field.as_str()), "{path}/{field}");
        }
    }
}

#[test]
fn a_command_that_gives_no_numbers_has_those_of_the_pods() {
    let cluster = json!({"headGroupSpec": group(1, 4), "workerGroupSpecs": [group(3, 4)]});
    let workers = |command: &str| {
        let manifest = manifest(&ray_job(command, &cluster, &json!({})));
        [&manifest["spec"]["workers"]["count"], &manifest["spec"]["workers"]["ranksPerWorker"]]
            .map(Value::clone)
    };
    assert_eq!(workers(VERL), [4, 4], "a head with GPUs is a worker, too");
    let numbers =
        |nodes: u64, gpus: u64| format!("{VERL} trainer.nnodes={nodes} trainer.n_gpus_per_node={gpus}");
    assert_eq!(workers(&numbers(2, 8)), [4, 4], "as many ranks as GPUs");
    assert_eq!(workers(&numbers(1, 4)), [1, 4], "the numbers of the command count");
    let text = conversion(&ray_job(&numbers(1, 4), &cluster, &json!({}))).manifest;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace(" # ", " ");
    assert!(text.contains("the RayJob has 4 pods with 4 GPUs each, and the command trains on 4"), "{text}");
}

#[test]
fn a_ray_cluster_without_gpus_or_of_several_kinds_of_pods_is_named() {
    let lost = |cluster: &Value| {
        let conversion = conversion(&ray_job(VERL, cluster, &json!({})));
        let lost: Vec<_> = conversion.lost().map(|outcome| outcome.key.clone()).collect();
        (lost, conversion.manifest)
    };
    let (_, manifest) = lost(&json!({"headGroupSpec": group(1, 0)}));
    assert!(manifest.contains("the RayJob requests no GPUs"), "{manifest}");
    let groups = json!([group(2, 8), group(4, 0), group(1, 2)]);
    let (keys, _) = lost(&json!({"headGroupSpec": group(1, 0), "workerGroupSpecs": groups}));
    for key in ["RayJob.workerGroupSpecs[1]", "RayJob.workerGroupSpecs[2]"] {
        assert!(keys.contains(&key.to_owned()), "{keys:?}");
    }
    assert!(!keys.contains(&"RayJob.headGroupSpec".to_owned()), "{keys:?}");
}

#[test]
fn entrypoints_are_found_in_submissions_shells_and_scripts_of_config_maps() {
    let cluster = json!({"headGroupSpec": group(1, 8)});
    for command in [
        format!("ray job submit --address http://head:8265 -- {VERL}"),
        format!("env HF_HUB_OFFLINE=1 {VERL}"),
        format!("cd /workspace && pip install x && {VERL}"),
    ] {
        let manifest = manifest(&ray_job(&command, &cluster, &json!({})));
        assert_eq!(manifest["spec"]["workers"]["ranksPerWorker"], 8, "{command}");
    }
    let job = ray_job("bash /scripts/run.sh", &cluster, &json!({}));
    let error = launches(&job).unwrap_err();
    assert!(error.contains("spec.entrypoint of the RayJob `bash /scripts/run.sh"), "{error}");
    let script = format!("set -e\n{VERL} trainer.nnodes=1 \"$@\"\n");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"run.sh": script}});
    assert_eq!(manifest(&format!("{map}\n---\n{job}\n"))["spec"]["model"]["hub"]["repo"], "org/base");
}

#[test]
fn a_queue_waits_without_a_suspension_and_a_suspension_stays() {
    let cluster = json!({"headGroupSpec": group(1, 8)});
    let more = json!({"suspend": true, "managedBy": "kueue.x-k8s.io/multikueue"});
    let suspended = manifest(&ray_job(VERL, &cluster, &more));
    assert_eq!(suspended["spec"]["runPolicy"]["suspend"], true);
    assert_eq!(suspended["spec"]["managedBy"], "kueue.x-k8s.io/multikueue");
    let labels = "\"labels\":{\"kueue.x-k8s.io/queue-name\":\"gpus\"},\"name\":\"one\"";
    let queued = ray_job(VERL, &cluster, &more).replace("\"name\":\"one\"", labels);
    let queued = manifest(&queued);
    assert_eq!(queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "gpus");
    assert_eq!(queued["spec"]["runPolicy"]["suspend"], Value::Null);
}

/// Kubeflow's SDK writes a function of Python into a here-document, and starts torchrun with its file.
#[test]
fn a_train_job_of_the_sdk_of_kubeflow_is_read() {
    let program = "def train():\n    from trl import SFTConfig, SFTTrainer\n    args = SFTConfig(learning_rate=2e-5, \
                   max_steps=7, per_device_train_batch_size=2)\n    SFTTrainer(model=\"org/base\", args=args).train()\ntrain()";
    let script = format!(
        "read -r -d '' SCRIPT << EOM\n\n{program}\n\nEOM\nprintf \"%s\" \"$SCRIPT\" > \"train.py\"\ntorchrun \"train.py\""
    );
    let job = json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "one"},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "command": ["bash", "-c", script],
                "numNodes": 2,
                "resourcesPerNode": {"requests": {"nvidia.com/gpu": "4"}},
            },
        },
    });
    let conversion = conversion(&job.to_string());
    let manifest: Value = serde_saphyr::from_str(&conversion.manifest).unwrap();
    let spec = &manifest["spec"];
    assert_eq!((&spec["training"]["steps"], &spec["workers"]["count"]), (&json!(7), &json!(2)));
    assert_eq!(spec["training"]["promptsPerStep"], 2 * 2 * 4, "{}", conversion.manifest);
}

#[test]
fn torchrun_has_the_numbers_of_a_train_job() {
    let job = |numbers: &Value, command: &str| {
        let mut trainer = json!({"command": ["bash", "-lc", command]});
        trainer.as_object_mut().unwrap().extend(numbers.as_object().unwrap().clone());
        let job = json!({
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "one"},
            "spec": {"trainer": trainer},
        });
        let launch = launches(&job.to_string()).unwrap().remove(0);
        (launch.machines, launch.processes)
    };
    let pods = json!({"numNodes": 3, "numProcPerNode": 2});
    let flags = "--model_name_or_path org/base --dataset_name org/data";
    assert_eq!(job(&pods, &format!("torchrun trl/scripts/sft.py {flags}")), (Some(3), Some(6)));
    let said = format!("torchrun --nnodes=$PET_NNODES --nproc-per-node 4 trl/scripts/sft.py {flags}");
    assert_eq!(job(&pods, &said), (Some(3), Some(12)));
    let verl = "torchrun -m verl.trainer.sft_trainer model.partial_pretrain=org/base";
    assert_eq!(job(&pods, verl), (Some(3), Some(2)));
    assert_eq!(job(&json!({}), &format!("trl sft {flags}")), (None, None));
}

#[test]
fn words_and_values_of_a_train_job_refer_to_variables_as_in_a_pod() {
    let env = json!([
        {"name": "OWNER", "value": "org"},
        {"name": "MODEL", "value": "$(OWNER)/base"},
        {"name": "TAG", "value": "$$(OWNER)"},
    ]);
    let flags = ["--model_name_or_path", "$(MODEL)", "--dataset_name", "org/data", "--run_name", "$(TAG)"];
    let job = json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "one"},
        "spec": {"trainer": {"command": ["trl", "dpo"], "args": flags, "env": env}},
    });
    let launch = launches(&job.to_string()).unwrap().remove(0);
    let has = |argument: &str| launch.arguments.iter().any(|given| given == argument);
    assert!(has("org/base") && has("$(OWNER)"), "{:?}", launch.arguments);
}

#[test]
fn overrides_of_earlier_releases_of_trainer_are_patches_of_its_pods() {
    for field in ["podTemplateOverrides", "podSpecOverrides"] {
        let tolerations =
            json!([{"key": "gpu", "operator": "Equal", "value": "true", "effect": "NoSchedule"}]);
        let pod = json!({"nodeSelector": {"pool": "train"}, "tolerations": tolerations});
        let overrides = json!([{"targetJobs": [{"name": "node"}], "spec": pod}]);
        let command = "trl dpo --model_name_or_path org/base --dataset_name org/data";
        let job = json!({
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "one"},
            "spec": {"trainer": {"command": command.split(' ').collect::<Vec<_>>()}, field: overrides},
        });
        let workers = manifest(&job.to_string())["spec"]["workers"].clone();
        assert_eq!((&workers["nodeSelector"], &workers["tolerations"]), (&pod["nodeSelector"], &tolerations));
    }
}

#[test]
fn other_kinds_are_refused_with_their_name_and_those_that_are_read() {
    for (version, kind, hint) in [
        ("kubeflow.org/v1", "PyTorchJob", "workers.count"),
        ("ray.io/v1", "RayCluster", "the script that is submitted"),
        ("ray.io/v1alpha1", "RayJob", "other versions"),
        ("rltraining.dev/v1alpha1", "RLTrainingJob", "rlctl validate"),
        ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime", "names the runtime"),
        ("batch/v1", "Job", "the script that its pods run"),
    ] {
        let text = json!({"apiVersion": version, "kind": kind, "spec": {}}).to_string();
        let error = launches(&text).unwrap_err();
        let read = ["RayJob (ray.io/v1)", "TrainJob (trainer.kubeflow.org/v1alpha1)"];
        assert!(read.iter().all(|kind| error.contains(kind)) && error.contains(hint), "{error}");
        assert!(error.contains(&format!("kind {kind} ({version})")), "{error}");
    }
    let none =
        json!({"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": {"submissionMode": "InteractiveMode"}});
    let error = launches(&none.to_string()).unwrap_err();
    assert!(
        error.contains("spec.entrypoint of the RayJob: a command that starts a trainer is expected"),
        "{error}"
    );
}

#[test]
fn a_manifest_that_is_not_yaml_is_refused_and_settings_and_scripts_are_none() {
    let error = launches("# one\n---\napiVersion: ray.io/v1\nkind: RayJob\nspec: {\n").unwrap_err();
    assert!(error.starts_with("the manifest is not YAML: "), "{error}");
    let script = "kubectl apply -f - <<EOF\napiVersion: v1\nkind: ConfigMap\nEOF\n";
    for text in ["beta: 0.1\n", "apiVersion=1; kind=2\n", "[1]", "apiVersion: 1\n", script] {
        assert!(Manifest::read(text).unwrap().is_none(), "{text}");
    }
}

/// The page shows a manifest of another operator, and the result of its conversion.
#[test]
fn the_examples_of_the_page_are_what_the_conversion_writes() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/from-kuberay.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks: Vec<_> =
        page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let examples: Vec<_> = blocks.chunks_exact(2).collect();
    assert_eq!(examples.len(), 2, "a RayJob and a TrainJob");
    for example in examples {
        assert_eq!(conversion(example[0]).manifest, example[1]);
    }
}

#[test]
fn lost_fields_say_what_to_do() {
    for name in ["ray-job.yaml", "train-job.yaml"] {
        for outcome in conversion(&fixture(name)).lost() {
            let (Fate::Absent(reason) | Fate::Unknown(reason)) = &outcome.fate else { continue };
            assert!(reason.len() > 15 && reason != "this setting is not known", "{outcome:?}");
        }
    }
}
