//! The example as it is: its binary runs its job, and the reward rises while the loss falls.

use std::process::Command;

use serde_json::Value;

#[test]
fn a_recipe_of_another_crate_trains_with_the_parts_of_the_trainer() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let mut command = Command::new(env!("CARGO_BIN_EXE_expert-iteration"));
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/job.yaml");
    command.args(["launch", "--manifest", manifest, "--output"]).arg(&run);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let steps: Vec<Value> = lines.filter(|step| step["critic/rewards/mean"].is_number()).collect();
    assert_eq!(steps.len(), 12);
    let mean = |name: &str, steps: &[Value]| {
        steps.iter().map(|step| step[name].as_f64().unwrap()).sum::<f64>() / steps.len() as f64
    };
    let (first, last) = (&steps[..3], &steps[9..]);
    let (before, after) = (mean("critic/rewards/mean", first), mean("critic/rewards/mean", last));
    assert!(after > 1.2 * before, "reward {before} -> {after}");
    let (before, after) = (mean("sft/loss", first), mean("sft/loss", last));
    assert!(after < before, "loss {before} -> {after}");
    assert!(run.join("export/model.safetensors").exists());
}
