//! The examples as they stand, run as their first lines say, from a folder of their own. The quickstart is `make
//! quickstart`'s.

use std::process::Command;

use serde_json::Value;

use crate::job::{Ended, Place};
use crate::memory;

/// Runs the example `name` as `rlctl run` in the folder of `place`, in the memory that its plan says; mean reward on
/// held-out problems before and after.
fn run(place: &Place, name: &str) -> (f64, f64) {
    let job = rlt_tests::workspace_root().join("examples").join(name).join("job.yaml");
    let estimate = memory::estimate(&job, &place.file(""));
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    Ended::of(command.arg("run").arg(&job).current_dir(place.file("")).output().unwrap()).expect(0, &[]);
    let folder = place.file("runs").join(name);
    memory::assert_taken(name, estimate, &folder);
    let result = std::fs::read_to_string(folder.join("result.json")).unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    let reward = |when: &str| result[format!("held_out_reward_{when}")].as_f64().unwrap();
    (reward("before"), reward("after"))
}

#[test]
fn supervised_training_teaches_and_reinforcement_corrects_what_it_taught() {
    let place = Place::new();
    let (before, taught) = run(&place, "sft");
    assert!(before < 0.05 && taught > 0.3, "{before} -> {taught}");
    for name in ["lora-grpo", "sharded", "dapo", "ppo"] {
        let (before, corrected) = run(&place, name);
        assert!(corrected > 1.5 * before, "{name}: {before} -> {corrected}");
    }
    let adapter = place.file("runs/lora-grpo/export/adapter");
    assert!(adapter.join("adapter_model.safetensors").exists());
    let config = std::fs::read_to_string(adapter.join("adapter_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["base_model_name_or_path"], "runs/sft/export");
}
