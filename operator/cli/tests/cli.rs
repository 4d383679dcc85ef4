//! The command line from outside: texts, exit codes, and the arguments with which the trainer is started.

#![expect(clippy::unwrap_used, reason = "a broken fixture should end the test")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn rlctl(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rlctl"))
        .args(args)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .env_remove("RLT_TRAINER")
        .env("COLUMNS", "100")
        .env("HOME", "/nowhere")
        .env_remove("KUBECONFIG")
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A fixed manifest, seen from the root of the workspace.
const ARITHMETIC: &str = "crds/tests/fixtures/arithmetic.yaml";

/// A manifest with two things wrong, in a folder that lives as long as the test.
fn bad_manifest(folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join(ARITHMETIC)).unwrap();
    let path = folder.join("bad.yaml");
    let text =
        text.replace("numKvHeads: 2", "numKvHeads: 3").replace("    samplesPerPrompt:", "    samples:");
    fs::write(&path, text).unwrap();
    path
}

/// A fake trainer: prints its arguments and exits with `exit_code`.
fn fake_trainer(folder: &Path, exit_code: i32) -> PathBuf {
    let path = folder.join("rlt-trainer");
    fs::write(&path, format!("#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit {exit_code}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_closed_output_pipe_is_no_error() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for args in [["plan", "-f", ARITHMETIC, "-o", "json"], ["validate", "-f", ARITHMETIC, "-o", "json"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rlctl"));
        command.args(args).current_dir(&root).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn help_shows_commands_examples_and_exit_codes() {
    let output = rlctl(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(stdout(&output));
}

#[test]
fn a_local_run_names_what_was_set_for_a_cluster_only() {
    let folder = tempfile::tempdir().unwrap();
    let trainer = fake_trainer(folder.path(), 0);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let with = |sections: &str| {
        let path = folder.path().join("job.yaml");
        fs::write(&path, fs::read_to_string(root.join(ARITHMETIC)).unwrap() + sections).unwrap();
        stderr(&rlctl(&["run", path.to_str().unwrap(), "--trainer", trainer.to_str().unwrap()]))
    };
    let note = with(
        "  workers: {device: Cpu, nodeSelector: {a: b}, resources: {memory: 1Gi}}\n  \
         runPolicy: {suspend: true, activeDeadlineSeconds: 9, retries: {io: 9}}\n",
    );
    assert_eq!(
        note,
        "note: without effect here, on a cluster only: spec.workers.resources.memory, spec.workers.nodeSelector, \
         spec.runPolicy.suspend, spec.runPolicy.retries.io\n"
    );
    assert_eq!(with("  workers: {threads: 2}\n  runPolicy: {activeDeadlineSeconds: 9}\n"), "");
    let several = "  workers: {count: 2, device: Cpu, peerTimeoutSeconds: 9}\n  \
                   runPolicy: {terminationGracePeriodSeconds: 9, retries: {io: 9, crash: 9, failure: 9, checkpoint: 9}}\n";
    assert_eq!(with(several), "", "a launcher watches them here, too");
}

#[test]
fn a_valid_manifest_ends_with_0() {
    let output = rlctl(&["validate", "-f", ARITHMETIC]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stdout(&output).starts_with("crds/tests/fixtures/arithmetic.yaml: valid\n"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn a_job_without_storage_is_valid_with_a_warning() {
    const LOST: &str = "neither spec.workers.storage nor spec.checkpoint.uri is set: on a cluster the checkpoints, the \
                        metrics and the exported model are lost with the pod";
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.yaml");
    let job = path.to_str().unwrap();
    for (more, is_lost) in [
        ("", true),
        ("  workers: {storage: {claimName: runs}}\n", false),
        ("  workers: {storage: {size: 1Gi}}\n", false),
        ("    uri: s3://bucket/run\n", false),
    ] {
        fs::write(&path, fs::read_to_string(root.join(ARITHMETIC)).unwrap() + more).unwrap();
        let validated = rlctl(&["validate", "-f", job]);
        let warned = if is_lost { format!("  {job}: warning: {LOST}\n") } else { String::new() };
        assert_eq!(stdout(&validated), format!("{job}: valid\n{warned}"));
        assert_eq!(validated.status.code(), Some(0));
        let expected = if is_lost { json!([LOST]) } else { json!([]) };
        let report: Value =
            serde_json::from_str(&stdout(&rlctl(&["validate", "-o", "json", "-f", job]))).unwrap();
        assert_eq!((&report[0]["valid"], &report[0]["warnings"]), (&json!(true), &expected));
        let planned = stdout(&rlctl(&["plan", "-f", job]));
        assert_eq!(planned.ends_with(&format!("\nwarning: {LOST}\n")), is_lost, "{planned}");
        let plan: Value = serde_json::from_str(&stdout(&rlctl(&["plan", "-f", job, "-o", "json"]))).unwrap();
        assert_eq!(plan["warnings"], expected);
    }
}

#[test]
fn problems_are_listed_with_file_and_line_and_end_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let path = bad_manifest(folder.path());
    let output = rlctl(&["validate", "-f", ARITHMETIC, path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    insta::assert_snapshot!(stdout(&output).replace(folder.path().to_str().unwrap(), "FOLDER"));
}

#[test]
fn problems_come_as_json_for_programs() {
    let folder = tempfile::tempdir().unwrap();
    let path = bad_manifest(folder.path());
    let output = rlctl(&["validate", "-o", "json", "-f", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let verdicts: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(verdicts[0]["valid"], false);
    let problem = &verdicts[0]["problems"][0];
    assert_eq!(problem["path"], "spec.model.architecture.numKvHeads");
    assert_eq!(problem["value"], 3);
    assert_eq!(problem["allowed"], "one of 1, 2, 4");
    assert!(problem["line"].is_u64());
}

#[test]
fn a_missing_manifest_is_named() {
    let output = rlctl(&["plan", "-f", "/nowhere/job.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).starts_with("read manifest /nowhere/job.yaml: No such file"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_plan_is_one_page() {
    let output = rlctl(&["plan", "-f", ARITHMETIC]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(stdout(&output));
}

/// A 7B model on the hub, whose configuration is beside the manifest; `-f` with the manifest and the rest.
fn large_model(folder: &Path, workers: &str) -> [String; 4] {
    let (manifest, config) = (folder.join("job.yaml"), folder.join("config.json"));
    let job = format!(
        "apiVersion: rltraining.dev/v1alpha1\nkind: RLTrainingJob\nmetadata: {{name: large}}\nspec:\n  \
         model: {{hub: {{repo: a/b}}}}\n  data: {{train: [a.jsonl]}}\n  algorithm: {{kind: GRPO}}\n  \
         rewards: {{functions: [{{name: right, kind: Math}}]}}\n  workers: {workers}\n"
    );
    fs::write(&manifest, job).unwrap();
    let shape = r#"{"architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
        "max_position_embeddings": 32768, "tie_word_embeddings": false}"#;
    fs::write(&config, shape).unwrap();
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    ["-f".into(), text(manifest), "--model-config".into(), text(config)]
}

/// `rlctl plan` of [`large_model`] on a GPU.
fn planned_on(gpu: &str, workers: &str, more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let model = large_model(folder.path(), workers);
    let mut args = vec!["plan", "--gpu", gpu];
    args.extend(model.iter().map(String::as_str).chain(more.iter().copied()));
    rlctl(&args)
}

#[test]
fn the_plan_for_a_gpu_has_both_memories_and_the_times_of_a_step() {
    let output = planned_on("h100", "{count: 8, mesh: {dpShard: 8}, device: Cuda}", &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    insta::assert_snapshot!(text.split("\nOn a cluster").next().unwrap());
    let output = planned_on("h100", "{count: 8, mesh: {dpShard: 8}, device: Cuda}", &["-o", "json"]);
    let plan: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&plan["choices"]["precision"], &plan["fit"]["fits"]), (&"Bf16".into(), &true.into()));
    assert!(plan["speed"]["updateMfu"].as_f64() > Some(0.1), "{}", plan["speed"]);
    assert!(plan["memory"]["peakDeviceBytes"].as_u64() < plan["fit"]["availableBytes"].as_u64());
}

#[test]
fn a_job_that_cannot_fit_is_refused_with_what_would() {
    let output = planned_on("rtx-4090", "{count: 2, device: Cuda}", &[]);
    assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
    assert!(stdout(&output).contains("Memory of one rank's GPU: "), "what it needs is shown");
    let error = stderr(&output);
    assert!(error.starts_with("the job does not fit the GPU of a worker: "), "{error}");
    assert!(error.contains(" of 24.0 GiB (too large: ") && error.contains("\n  spec."), "{error}");
    assert!(error.contains("spec.workers.mesh.dpShard: "), "{error}");
}

#[test]
fn times_are_predicted_for_the_lengths_of_a_run_and_stand_beside_its_own() {
    let run = tempfile::tempdir().unwrap();
    let step = |phase: u32, step: u32, gen_seconds: f64, completion: f64| {
        format!(
            "{{\"step\": {step}, \"training/phase\": {phase}, \"timing_s/gen\": {gen_seconds}, \"timing_s/ref\": 0.5, \
             \"timing_s/old_log_prob\": 0.25, \"timing_s/update_actor\": 2, \"timing_s/step\": 7, \
             \"timing_s/testing\": 1.5, \"prompt_length/mean\": 20.4, \"response_length/mean\": {completion}}}\n"
        )
    };
    // The cold start, the evaluation before the first step and the step that warms up do not count.
    let lines = [
        step(0, 1, 9.0, 9.0),
        step(1, 0, 9.0, 9.0),
        step(1, 1, 9.0, 9.0),
        step(1, 2, 3.0, 30.0),
        step(1, 3, 4.0, 34.0),
    ];
    fs::write(run.path().join("metrics.jsonl"), lines.concat()).unwrap();
    let folder = run.path().to_str().unwrap();
    let workers = "{count: 8, mesh: {dpShard: 8}, device: Cuda}";
    let text = stdout(&planned_on("h100", workers, &["--run", folder]));
    assert!(text.contains("prompts of 20 and completions of 32 tokens"), "{text}");
    let row = |name: &str| {
        let mut lines = text.lines().skip_while(|line| !line.starts_with("Predicted on"));
        let line = lines.find(|line| line.trim_start().starts_with(name)).unwrap();
        line.trim_start()[name.len()..].split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(["rollout ", "update ", "step  "].map(row), ["3.500", "2.000", "5.500"]);
    let json = stdout(&planned_on("h100", workers, &["--run", folder, "-o", "json"]));
    let plan: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(plan["measured"]["phases"]["log-probs"], 0.75);
    assert_eq!(plan["speed"]["lengths"]["completionTokens"], 32);
    // A flag is stronger than the run; a mean that cannot be is refused.
    let text = stdout(&planned_on("h100", workers, &["--run", folder, "--completion-tokens", "8"]));
    assert!(text.contains("prompts of 20 and completions of 8 tokens"), "{text}");
    let refused = stderr(&planned_on("h100", workers, &["--prompt-tokens", "0"]));
    assert!(refused.contains("0 tokens of a prompt: expected 1 to "), "{refused}");
    fs::write(run.path().join("metrics.jsonl"), "").unwrap();
    let empty = stderr(&planned_on("h100", workers, &["--run", folder]));
    assert!(empty.contains("metrics.jsonl has no finished step"), "{empty}");
    let alone = rlctl(&["plan", "-f", ARITHMETIC, "--completion-tokens", "8"]);
    assert_eq!(alone.status.code(), Some(2), "lengths without a machine: {}", stderr(&alone));
}

#[test]
fn a_gpu_that_is_not_known_is_answered_with_those_that_are_and_none_is_planned_for_cpus() {
    let unknown = planned_on("h101", "{device: Cuda}", &[]);
    assert_eq!(unknown.status.code(), Some(1));
    let expected =
        "GPU \"h101\" is not known: expected one of a100-40gb, a100-80gb, l40s, h100-pcie, h100-nvl, gh200, ";
    assert!(stderr(&unknown).contains(expected), "{}", stderr(&unknown));
    let error = stderr(&planned_on("h100", "{device: Cpu}", &[]));
    assert!(error.contains("spec.workers.device is Cpu; expected Cuda or Auto"), "{error}");
}

#[test]
fn the_plan_shows_the_rollout_tp_degree_and_traffic_between_workers() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("job.yaml");
    let workers = "\n  workers: {count: 2, ranksPerWorker: 2, device: Cpu, mesh: {sp: 2, rolloutTp: 4}}\n";
    fs::write(&manifest, include_str!("../../../crds/tests/fixtures/arithmetic.yaml").to_owned() + workers)
        .unwrap();
    let plan = stdout(&rlctl(&["plan", "-f", manifest.to_str().unwrap()]));
    assert!(plan.contains("dp_replicate 2 x dp_shard 1 x sp 2, rollout tp 4"), "{plan}");
    assert!(plan.contains("2 x 2 ranks, Cpu"), "{plan}");
    assert!(plan.contains("mesh.rolloutTp 4 exchanges between workers"), "{plan}");
    assert!(!plan.contains("mesh.sp 2 exchanges"), "it stays within a worker: {plan}");
}

#[test]
fn the_plan_says_what_follows_from_failures() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("job.yaml");
    let rules = "\n  runPolicy: {failurePolicy: {maxRestarts: 5, rules: [\n    \
                 {name: licences, action: Restart, onExitCodes: {operator: In, values: [42, 43]}},\n    \
                 {action: Ignore, avoidNode: true, onCauses: [Signalled], onReasons: [Error]}]}}\n";
    fs::write(&manifest, include_str!("../../../crds/tests/fixtures/arithmetic.yaml").to_owned() + rules)
        .unwrap();
    let plan = stdout(&rlctl(&["plan", "-f", manifest.to_str().unwrap()]));
    let says = |name: &str, words: &str| {
        plan.lines().any(|line| line.trim_start().starts_with(name) && line.ends_with(words))
    };
    assert!(says("licences ", "exit code 42, 43 -> starts again, 5 times without a checkpoint"), "{plan}");
    let words =
        "reason Error and cause Signalled -> starts again, which counts for nothing, on other nodes first";
    assert!(says("rules[1] ", words), "{plan}");
}

#[test]
fn the_plan_for_programs_holds_the_resolved_specification() {
    let output = rlctl(&["plan", "-f", ARITHMETIC, "-o", "json"]);
    let plan: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(plan["batch"]["promptsPerStep"], plan["spec"]["training"]["promptsPerStep"]);
    assert_eq!(plan["spec"]["algorithm"]["loss"]["policy"], "Vanilla");
    assert!(plan["memory"]["peakBytes"].is_u64());
}

#[test]
fn the_objects_for_kubectl_are_those_that_the_plan_names() {
    let yaml = stdout(&rlctl(&["plan", "-f", ARITHMETIC, "-o", "yaml"]));
    let kinds: Vec<_> = yaml.lines().filter_map(|line| line.strip_prefix("kind: ")).collect();
    assert_eq!(kinds, ["ServiceAccount", "ConfigMap", "NetworkPolicy", "Pod"]);
    let plan: Value =
        serde_json::from_str(&stdout(&rlctl(&["plan", "-f", ARITHMETIC, "-o", "json"]))).unwrap();
    let named: Vec<_> =
        plan["objects"].as_array().unwrap().iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(named, kinds);
    assert_eq!(plan["objects"][3]["spec"]["containers"][0]["image"], "rlt.local/rlt-trainer:dev");
}

#[test]
fn without_a_cluster_the_error_names_the_searched_kubeconfigs() {
    let none = rlctl(&["status"]);
    assert_eq!(none.status.code(), Some(1));
    let error = stderr(&none);
    assert!(
        error.starts_with("rlctl: find a cluster: ") && error.contains("/nowhere/.kube/config"),
        "{error}"
    );
    assert!(error.contains("--kubeconfig or KUBECONFIG"), "{error}");
    let missing = stderr(&rlctl(&["why", "x", "--kubeconfig", "/nowhere/config"]));
    assert!(missing.contains("/nowhere/config"), "{missing}");
}

/// A kubeconfig for a server at this address.
fn kubeconfig(folder: &Path, server: &str) -> PathBuf {
    let path = folder.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\n\
         users: [{{name: u, user: {{}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u, namespace: team}}}}]\n"
    );
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_server_that_does_not_answer_is_named() {
    let folder = tempfile::tempdir().unwrap();
    // Bound and released: no server listens there.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = format!("http://127.0.0.1:{port}");
    let output = rlctl(&["status", "--kubeconfig", kubeconfig(folder.path(), &server).to_str().unwrap()]);
    let error = stderr(&output);
    assert!(error.starts_with(&format!("rlctl: reach the API server {server}: ")), "{error}");
    assert!(error.to_lowercase().contains("connection refused"), "{error}");
}

#[test]
fn a_cluster_without_the_definition_says_how_to_install_it() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).unwrap();
        let body = "404 page not found\n";
        let head = format!("HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\nConnection: close", body.len());
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    });
    let output = rlctl(&["status", "--kubeconfig", kubeconfig(folder.path(), &server).to_str().unwrap()]);
    answer.join().unwrap();
    let error = stderr(&output);
    assert!(
        error.contains("list jobs: this cluster knows no RLTrainingJob; install the operator"),
        "{error}"
    );
}

#[test]
fn as_a_kubectl_plug_in_it_shows_that_name() {
    let folder = tempfile::tempdir().unwrap();
    let called = |name: &str, args: &[&str]| {
        let link = folder.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_rlctl"), &link).unwrap();
        stdout(&Command::new(link).args(args).output().unwrap())
    };
    let help = called("kubectl-rlt", &["why", "--help"]);
    assert!(help.contains("Usage: kubectl rlt why"), "{help}");
    assert!(called("kubectl_complete-rlt", &["lo"]).starts_with("logs\t"));
}

#[test]
fn a_model_elsewhere_is_planned_from_its_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let (manifest, config) = (folder.path().join("job.yaml"), folder.path().join("config.json"));
    let job = "apiVersion: rltraining.dev/v1alpha1\nkind: RLTrainingJob\nmetadata: {name: hub}\nspec:\n  \
               model: {hub: {repo: a/b}}\n  data: {train: [a.jsonl]}\n  algorithm: {kind: SFT}\n";
    fs::write(&manifest, job).unwrap();
    let shape = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
        "tie_word_embeddings": true}"#;
    fs::write(&config, shape).unwrap();
    let without = rlctl(&["plan", "-f", manifest.to_str().unwrap()]);
    assert!(stdout(&without).contains("--model-config"));
    let with = rlctl(&["plan", "-f", manifest.to_str().unwrap(), "--model-config", config.to_str().unwrap()]);
    assert!(stdout(&with).contains("134515008 (134515008 trained)"), "{}", stdout(&with));
}

#[test]
fn a_classifier_is_planned_as_the_model_of_a_job_that_trains_one_and_as_a_reward_model() {
    let folder = tempfile::tempdir().unwrap();
    let (policy, classifier) = (folder.path().join("policy"), folder.path().join("classifier"));
    let write = |model: &Path, class: &str, labels: &str| {
        let shape = r#""hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
            "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152"#;
        fs::create_dir_all(model).unwrap();
        fs::write(
            model.join("config.json"),
            format!(r#"{{"architectures": ["{class}"], {labels} {shape}}}"#),
        )
        .unwrap();
    };
    write(&policy, "LlamaForCausalLM", "\"tie_word_embeddings\": true,");
    let two = r#""id2label": {"0": "LABEL_0", "1": "LABEL_1"},"#;
    let plan = |model: &Path, class: &str, algorithm: &str, rewards: &str| {
        let labels = if class.contains("Token") { two } else { r#""id2label": {"0": "LABEL_0"},"# };
        write(&classifier, class, labels);
        let manifest = folder.path().join("job.yaml");
        let (model, judge) = (model.display(), classifier.display());
        let rewards = rewards.replace("JUDGE", &judge.to_string());
        let job = format!(
            "apiVersion: rltraining.dev/v1alpha1\nkind: RLTrainingJob\nmetadata: {{name: judges}}\nspec:\n  \
             model: {{path: \"{model}\"}}\n  data: {{train: [a.jsonl]}}\n  algorithm: {{kind: {algorithm}}}\n{rewards}"
        );
        fs::write(&manifest, job).unwrap();
        rlctl(&["plan", "-f", manifest.to_str().unwrap()])
    };
    let (whole, by_steps) = ("LlamaForSequenceClassification", "LlamaForTokenClassification");
    for (class, algorithm, count) in [
        // The body of 134515008 parameters, and a head of one row, or of two and their biases.
        (whole, "RewardModel", "134515584 (134515584 trained)"),
        (by_steps, "ProcessReward", "134516162 (134516162 trained)"),
    ] {
        for model in [&classifier, &policy] {
            let planned = plan(model, class, algorithm, "");
            assert!(stdout(&planned).contains(count), "{} {}", stdout(&planned), stderr(&planned));
        }
        let judged = "  rewards: {functions: [{name: judge, kind: Model, model: {path: \"JUDGE\"}}]}\n";
        let planned = plan(&policy, class, "PPO", judged);
        assert_eq!(planned.status.code(), Some(0), "{}", stderr(&planned));
        assert!(stdout(&planned).contains("reward model"), "{}", stdout(&planned));
    }
    for (class, algorithm) in [(whole, "SFT"), (by_steps, "RewardModel")] {
        let refused = plan(&classifier, class, algorithm, "");
        assert_ne!(refused.status.code(), Some(0));
        assert!(stderr(&refused).contains(class), "{}", stderr(&refused));
    }
}

#[test]
fn run_executes_the_trainer_and_exits_with_its_code() {
    let folder = tempfile::tempdir().unwrap();
    let trainer = fake_trainer(folder.path(), 80);
    let output = rlctl(&["run", ARITHMETIC, "--trainer", trainer.to_str().unwrap(), "--overwrite"]);
    assert_eq!(output.status.code(), Some(80));
    let expected =
        "launch\n--manifest\ncrds/tests/fixtures/arithmetic.yaml\n--output\nruns/arithmetic\n--overwrite\n";
    assert_eq!(stdout(&output), expected);
}

#[test]
fn run_starts_nothing_for_a_bad_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let trainer = fake_trainer(folder.path(), 0);
    let path = bad_manifest(folder.path());
    let output = rlctl(&["run", path.to_str().unwrap(), "--trainer", trainer.to_str().unwrap()]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""));
    assert!(stderr(&output).contains("numKvHeads must divide numHeads"), "{}", stderr(&output));
}

#[test]
fn a_missing_trainer_is_answered_with_the_places_searched() {
    let output = rlctl(&["run", ARITHMETIC, "--trainer", "/nowhere/rlt-trainer"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "rlctl: find the trainer: /nowhere/rlt-trainer is not a file\n");
}

#[test]
fn completions_are_written_for_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let output = rlctl(&["completion", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(stdout(&output).contains("validate"), "{shell}");
    }
}
