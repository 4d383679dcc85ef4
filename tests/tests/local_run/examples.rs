//! The examples as they stand, run as their first lines say, from a folder of their own. The quickstart is `make
//! quickstart`'s.

use std::process::Command;

use serde_json::Value;

use crate::job::{Ended, Place};

/// Runs the example `name` as `rlctl run` in the folder of `place`; mean reward on held-out problems before and after.
fn run(place: &Place, name: &str) -> (f64, f64) {
    let job = rlt_tests::workspace_root().join("examples").join(name).join("job.yaml");
    let rlctl = |arguments: &[&str]| {
        let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
        Ended::of(command.args(arguments).arg(&job).current_dir(place.file("")).output().unwrap())
            .expect(0, &[])
    };
    rlctl(&["plan", "-f"]);
    rlctl(&["run"]);
    let result = std::fs::read_to_string(place.file("runs").join(name).join("result.json")).unwrap();
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
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        assert!(place.file("runs/lora-grpo/export/adapter").join(file).exists(), "{file}");
    }
}
