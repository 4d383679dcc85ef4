//! Runs the checks of `gpu-check` that run by name only on emulated devices.

use std::collections::BTreeSet;

use rlt_devices::StandIn;
use rlt_tests::workspace_root;
use serde_json::Value;

use crate::gpu_check::{assert_predicted, check};

/// Returns the findings of a check, all of which must have passed.
#[track_caller]
fn passed(name: &str) -> Vec<Value> {
    let (output, lines) = check(&[name], StandIn::build().unwrap().env());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{lines:#?} {stderr}");
    assert!(!lines.is_empty() && lines.iter().all(|line| line["status"] == "passed"), "{lines:#?}");
    lines
}

#[test]
fn packed_attention_with_shared_prefixes_equals_dense_attention() {
    let lines = passed("packed");
    assert_eq!(lines.len(), 12, "three shapes, two dtypes, with and without a window: {lines:#?}");
    for line in &lines {
        for input in ["q", "k", "v"] {
            assert!(line["errorOfGradients"][input].is_f64(), "{line:#}");
        }
    }
}

/// Kernels that are launched in a case with another name, by prefixes of their names.
const PARTS_OF_CASES: [(&str, &str); 5] = [
    ("paged_decode_attention_g", "paged_decode_attention"),
    ("quantized_linear_r", "quantized_linear, nf4"),
    ("sample_", "sample"),
    ("squares", "grad_norm"),
    ("norm_of_squares", "grad_norm"),
];

/// Names of all kernels, as their sources list them.
fn kernels() -> Vec<String> {
    let folder = workspace_root().join("trainer/torch/csrc/cuda");
    let mut names = Vec::new();
    for file in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "cu") {
            let source = std::fs::read_to_string(&file).unwrap();
            let listed = source.lines().filter_map(|line| {
                let arguments =
                    line.strip_prefix("RLT_KERNELS(").or_else(|| line.strip_prefix("RLT_KERNEL("));
                arguments?.split(',').next()
            });
            names.extend(listed.map(str::to_owned));
        }
    }
    names
}

#[test]
fn every_kernel_has_an_error_and_a_time_beside_libtorchs_operators() {
    let lines = passed("kernels");
    // The name of a case may be followed by a comma and its format or direction.
    let has_case = |name: &str| {
        let mut cases = lines.iter().filter_map(|line| line["kernel"].as_str());
        cases.any(|case| case == name || case.split(',').next() == Some(name))
    };
    let kernels = kernels();
    assert!(kernels.len() > 30, "{kernels:?}");
    for kernel in &kernels {
        let part = PARTS_OF_CASES.iter().find(|(part, _)| kernel.starts_with(part));
        assert!(has_case(part.map_or(kernel.as_str(), |(_, case)| *case)), "{kernel}: {lines:#?}");
    }
    for backward in ["gated_rows, backward", "rope_rows, backward"] {
        assert!(lines.iter().any(|line| line["kernel"] == backward), "{backward}: {lines:#?}");
    }
    assert!(lines.iter().all(|line| line["microseconds"].as_f64().unwrap() > 0.0), "{lines:#?}");
    // libtorch has no operator that dequantizes codes of 4 bits.
    for line in lines.iter().filter(|line| line["kernel"] != "dequantize, nf4") {
        assert!(line["libtorchMicroseconds"].as_f64().is_some_and(|time| time > 0.0), "{line:#}");
    }
}

#[test]
fn graphs_of_models_of_every_kind_give_the_bits_of_single_launches_and_the_cpus_tokens() {
    let lines = passed("graph-models");
    let mut models: Vec<&str> = lines.iter().filter_map(|line| line["model"].as_str()).collect();
    models.dedup();
    assert_eq!(
        models,
        ["qwen2 with biases", "qwen3", "gemma", "mixture of experts", "nf4", "unmerged adapter"]
    );
    // Graphs are compared with launches in two dtypes, and with the CPU.
    assert_eq!(lines.len(), 3 * models.len(), "{lines:#?}");
}

#[test]
fn a_tail_and_memory_are_measured() {
    let lines = passed("decode-tail");
    let contexts: Vec<u64> = lines.iter().filter_map(|line| line["contextTokens"].as_u64()).collect();
    assert_eq!(contexts.len(), 6, "{lines:#?}");
    lines[..6].iter().for_each(|line| assert_predicted(line, &["stepMilliseconds"]));
    // The check passes only if its first calls reserve memory, and later ones reserve less than half of that.
    let memory = lines.last().unwrap();
    assert!(memory["reservedGigabytes"].as_f64().unwrap() > 0.0, "{lines:#?}");
    assert!(memory["allowedBytes"].as_i64().unwrap() < 64 << 20, "{lines:#?}");
}

#[test]
fn every_load_with_a_published_figure_is_measured_and_predicted() {
    let lines = passed("published");
    let loads: Vec<&str> = lines.iter().filter_map(|line| line["load"].as_str()).collect();
    assert_eq!(loads, ["grpo-step", "generation", "training-16k", "sft-8k"], "{lines:#?}");
    let page = std::fs::read_to_string(workspace_root().join("trainer/gpu-report-page.py")).unwrap();
    for load in loads {
        assert!(page.contains(&format!("\"{load}\": (")), "the page of a report has no figure of {load}");
    }
    assert_predicted(&lines[0], &["stepSeconds"]);
    assert_predicted(&lines[1], &["generationSeconds"]);
    lines[2..].iter().for_each(|line| assert_predicted(line, &["updateSeconds"]));
}

#[test]
fn decoding_and_an_update_are_traced_to_files() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().to_str().unwrap();
    let (output, lines) = check(&["--trace-folder", to, "trace"], StandIn::build().unwrap().env());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{lines:#?} {stderr}");
    assert_eq!(lines.len(), 2, "{lines:#?}");
    for (line, file) in lines.iter().zip(["trace-decode.json", "trace-update.json"]) {
        assert_eq!((&line["status"], &line["file"]), (&"passed".into(), &file.into()), "{lines:#?}");
        let trace: Value = serde_json::from_slice(&std::fs::read(folder.path().join(file)).unwrap()).unwrap();
        assert!(!trace["traceEvents"].as_array().unwrap().is_empty(), "{file}");
    }
}

#[test]
fn gradients_are_compared_in_two_dtypes_and_repeated() {
    let lines = passed("training");
    let runs: Vec<&str> = lines.iter().filter_map(|line| line["run"].as_str()).collect();
    assert_eq!(
        runs,
        [
            "gradients at fixed tokens",
            "gradients at fixed tokens",
            "gradients twice, with deterministic operators",
            "gradients twice, with deterministic operators",
            "on the GPU",
            "rollout and actor",
            "twice, with deterministic operators",
        ],
        "{lines:#?}"
    );
    for line in &lines[..2] {
        let num_compared = line["distancesNormsAndBounds"].as_object().map(|all| all.len() as u64);
        assert_eq!(num_compared, line["parameters"].as_u64(), "{line:#}");
        assert!(line["fractionOfBound"].as_f64().is_some_and(|fraction| fraction <= 1.0), "{line:#}");
        // The CPU's error in bf16 bounds that of the GPU; in fp32 no CPU error is reported.
        assert_eq!(line["errorOfCpu"].is_f64(), line["dtype"] == "bf16", "{line:#}");
    }
}

/// Names of the checks that `trainer/gpu-report.sh` runs as stages, some of them under a tool of NVIDIA.
fn stages_of_report() -> BTreeSet<String> {
    let script = std::fs::read_to_string(workspace_root().join("trainer/gpu-report.sh")).unwrap();
    let table = script.split("STAGES='").nth(1).unwrap().split('\'').next().unwrap();
    let stages = table.lines().filter_map(|line| line.split_whitespace().next());
    let checks = stages.flat_map(|stage| stage.split('+')).map(|stage| stage.rsplit(':').next().unwrap());
    checks.filter(|name| !["environment", "reruns"].contains(name)).map(str::to_owned).collect()
}

#[test]
fn every_check_is_skipped_without_a_gpu_and_a_report_runs_those_of_one_gpu() {
    let (output, lines) = check(&["--all"], Vec::new());
    assert!(output.status.success());
    assert!(lines.len() == 24 && lines.iter().all(|line| line["status"] == "skipped"), "{lines:#?}");
    let mut checks: BTreeSet<String> =
        lines.iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect();
    // Collectives need two GPUs, and `decode` needs the counts that only emulated devices have.
    assert!(checks.remove("nccl") && checks.remove("decode"), "{checks:?}");
    assert_eq!(stages_of_report(), checks);
}

#[test]
fn a_peer_alone_is_measured_or_missing() {
    let mut variables = StandIn::build().unwrap().env();
    variables.push(("RLT_PEER_PYTHON".into(), "no-such-python".into()));
    let (output, lines) = check(&["peer-small"], variables.clone());
    assert!(output.status.success());
    assert!(lines[0]["reason"].as_str().unwrap().contains("no-such-python"), "{lines:#?}");
    // Without its peer a step is one line.
    let (output, lines) = check(&["--no-peer", "grpo-step-small"], variables);
    assert!(output.status.success());
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert_predicted(&lines[0], &["stepSeconds", "rolloutSeconds", "referenceSeconds", "updateSeconds"]);
}
