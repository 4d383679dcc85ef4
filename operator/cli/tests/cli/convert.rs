//! Options of `rlctl convert`. The conversion itself has tests in `operator/convert`.

use crate::{rlctl, stderr};

#[test]
fn an_unknown_trainer_is_refused() {
    for (project, trainer, expected) in [
        ("trl", "SFT", "--trainer: expected grpo, sft, dpo"),
        ("verl", "grpo", "--trainer: expected main_ppo, sft_trainer for verl"),
        ("open-instruct", "sft", "--trainer: expected grpo_fast, finetune"),
    ] {
        let output = rlctl(&["convert", "--from", project, "--trainer", trainer, "--", "a=1"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}
