//! The report on devices that are found, and on devices that cannot be used.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rlt_api::FailureCause;
use rlt_devices::StandIn;
use rlt_tests::{fresh_binary, tiny_job};
use serde_json::{Value, json};

type Variables = Vec<(String, String)>;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn with(mut variables: Variables, name: &str, value: &str) -> Variables {
    variables.push((name.into(), value.into()));
    variables
}

/// Output of `rlt-trainer device` as JSON.
fn reported_devices(variables: &Variables) -> Value {
    let mut command = Command::new(fresh_binary("rlt-trainer"));
    let output = command.args(["device", "--output", "json"]).envs(variables.clone()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs the tiny job with these workers.
fn train(folder: &Path, workers: &Value, variables: &Variables) -> Output {
    let mut manifest = tiny_job();
    manifest["spec"]["workers"] = workers.clone();
    let path = folder.join("job.yaml");
    fs::write(&path, manifest.to_string()).unwrap();
    let mut command = Command::new(fresh_binary("rlt-trainer"));
    command.args(["launch", "--manifest"]).arg(path).arg("--output").arg(folder.join("run"));
    command.envs(variables.clone()).output().unwrap()
}

/// Runs a job that requests GPUs, and returns its exit code and error output.
fn refused(workers: &Value, variables: &Variables) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let output = train(folder.path(), workers, variables);
    (output.status.code(), text(&output.stderr))
}

/// Returns the variables of a machine on which two libraries are missing: `libtorch_cuda.so` needs one of
/// them directly, and the other one through another library.
fn without_two_libraries() -> Variables {
    let folder = StandIn::build().unwrap().incomplete_folder();
    let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    vec![("LD_LIBRARY_PATH".into(), format!("{}:{path}", folder.display()))]
}

#[test]
fn a_machine_without_a_gpu_says_so_and_is_no_failure() {
    let answer = reported_devices(&Vec::new());
    assert_eq!((&answer["usable"], &answer["gpus"]), (&json!(false), &json!([])), "{answer:#}");
    let output = Command::new(fresh_binary("rlt-trainer")).arg("device").output().unwrap();
    assert!(output.status.success() && text(&output.stdout).contains("Jobs compute on the CPU here."));
}

#[test]
fn devices_are_shown_with_memory_links_and_whether_our_kernels_run_on_them() {
    let answer =
        reported_devices(&with(StandIn::build().unwrap().with_devices(2), "RLT_STAND_IN_TAKEN", "1048576"));
    assert_eq!((&answer["usable"], &answer["driver"]), (&json!(true), &json!("13.0")), "{answer:#}");
    let gpus = answer["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), 2);
    let memory = |name: &str| gpus[1][name].as_u64().unwrap();
    assert_eq!(memory("memoryBytes") - memory("freeBytes"), 1 << 20, "{answer:#}");
    assert_eq!((&gpus[0]["computeCapability"], &gpus[0]["kernels"]["loaded"]), (&json!("9.0"), &json!(true)));
    assert_eq!(answer["links"], json!([{ "between": [0, 1], "kind": "PCIe" }]));
    let libraries = answer["libraries"].as_array().unwrap();
    let torch = libraries.iter().find(|library| library["name"] == "libtorch_cuda").unwrap();
    let path = torch["path"].as_str().unwrap();
    assert!(path.starts_with(StandIn::build().unwrap().folder().to_str().unwrap()), "{path}");

    let old = with(StandIn::build().unwrap().env(), "RLT_STAND_IN_ARCH", "70");
    let kernels = reported_devices(&old)["gpus"][0]["kernels"].clone();
    let problem = kernels["problem"].as_str().unwrap();
    assert!(problem.contains("7.0") && problem.contains("sm_80"), "the list of what is built: {problem}");
}

#[test]
fn a_driver_that_is_too_old_is_named_with_both_versions() {
    let old = with(StandIn::build().unwrap().env(), "RLT_STAND_IN_DRIVER", "12080");
    let (code, said) = refused(&json!({ "device": "Cuda" }), &old);
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("serves CUDA up to 12.8") && said.contains("built with CUDA 13.0"), "{said}");
    let answer = reported_devices(&old);
    assert_eq!((&answer["usable"], &answer["hasUnusableGpu"]), (&json!(false), &json!(true)));
    assert_eq!(answer["driver"], json!("12.8"));
}

#[test]
fn all_missing_libraries_fail_with_cuda_and_warn_everywhere_with_auto() {
    let broken = without_two_libraries();
    let (code, said) = refused(&json!({ "device": "Cuda" }), &broken);
    assert_eq!(code, Some(78), "{said}");
    let all = "libcublas.so.13, libcusparse.so.12 do not load";
    assert!(said.contains(all), "{said}");

    let trained = tempfile::tempdir().unwrap();
    let output = train(trained.path(), &json!({ "device": "Auto" }), &broken);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let warning = "THE CPU, although this machine has a GPU";
    assert!(said.matches(warning).count() >= 2, "at the start and in the end: {said}");
    for name in ["run/report.html", "run/result.json"] {
        let page = fs::read_to_string(trained.path().join(name)).unwrap();
        assert!(page.contains(warning) && page.contains(all), "{name}");
    }

    let quiet = tempfile::tempdir().unwrap();
    let output = train(quiet.path(), &json!({ "device": "Cpu" }), &broken);
    assert!(output.status.success() && !text(&output.stderr).contains(warning));
}

#[test]
fn three_devices_are_too_few_for_four_ranks() {
    let three = StandIn::build().unwrap().with_devices(3);
    let (code, said) = refused(&json!({ "device": "Cuda", "count": 4 }), &three);
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("each of the 4 ranks on this machine") && said.contains("sees 3"), "{said}");
}

#[test]
fn a_device_filled_by_another_process_is_reported_with_its_free_memory() {
    let env = with(StandIn::build().unwrap().env(), "RLT_STAND_IN_MEMORY", &(1 << 30).to_string());
    let taken = with(env, "RLT_STAND_IN_TAKEN", &((1_u64 << 30) - 4096).to_string());
    let (code, said) = refused(&json!({ "device": "Cuda" }), &taken);
    assert_eq!(code, Some(81), "another node may do: {said}");
    assert!(said.contains("GPU 0 has 0.0 of 1.0 GiB free") && said.contains("another process"), "{said}");
}

#[test]
fn a_device_that_no_kernel_is_built_for_is_refused_with_the_list_before_any_work() {
    let old = with(StandIn::build().unwrap().env(), "RLT_STAND_IN_ARCH", "75");
    let (code, said) = refused(&json!({ "device": "Cuda" }), &old);
    assert_eq!(code, Some(78), "starting again cannot help: {said}");
    assert!(said.contains("compute capability 7.5") && said.contains("sm_80, sm_90, sm_100"), "{said}");

    let trained = tempfile::tempdir().unwrap();
    let output = train(trained.path(), &json!({ "device": "Auto" }), &old);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("THE CPU, although this machine has a GPU"), "{said}");
    assert!(said.contains("sm_80, sm_90, sm_100"), "{said}");
}

/// The driver also logs these errors as Xid: an ECC error, and a launch failure that the program did not
/// cause.
#[test]
fn a_device_that_fails_ends_the_run_with_a_cause_that_avoids_its_node() {
    for (failure, words) in [("300:214", "uncorrectable ECC error"), ("40:719", "launch failure")] {
        let failing = with(StandIn::build().unwrap().env(), "RLT_STAND_IN_FAILURE", failure);
        let (code, said) = refused(&json!({ "device": "Cuda" }), &failing);
        let cause = FailureCause::from_exit_code(code.unwrap()).unwrap();
        assert_eq!(cause, FailureCause::DeviceFailed, "{said}");
        assert!(cause.may_be_the_nodes() && said.contains("the GPU failed in phase"), "{said}");
        assert!(said.contains(words), "{said}");
    }
}
