//! One manifest of each recipe trains as a process. Tests of the trainer (`run/train/tests/every_choice.rs`)
//! train every preset, estimator, loss and family that a manifest can name, in one process.

use serde_json::{Value, json};

use crate::job::{Place, tiny, tiny_with};

/// Presets whose loss is of pairs, or of completions with labels.
const PREFERENCES: [&str; 3] = ["DPO", "KTO", "OnlineDPO"];

/// Trains two steps of two updates each, so that not all ratios are 1. If a step is one update, trains two
/// such steps.
fn train(mut changes: Value) -> Place {
    let is_supervised = changes["algorithm"]["kind"] == "SFT";
    let is_reward_model = changes["algorithm"]["kind"] == "RewardModel";
    let is_preference = PREFERENCES.iter().any(|kind| changes["algorithm"]["kind"] == *kind);
    crate::job::merge(&mut changes, json!({ "training": { "steps": 2 } }));
    if is_reward_model {
        changes["rewards"] = Value::Null;
    } else if is_supervised {
        crate::job::merge(&mut changes, json!({ "rewards": null }));
    } else if !is_preference {
        crate::job::merge(&mut changes, json!({ "training": { "promptsPerUpdate": 1 } }));
    }
    let place = Place::new();
    place.train(&tiny_with(changes.clone())).expect(0, &[]);
    let steps = place.steps();
    assert_eq!(steps.len(), 2, "{changes}");
    // During its warm-up, only the critic is trained.
    let num_warmup_steps = changes["algorithm"]["critic"]["warmupSteps"].as_u64().unwrap_or(0);
    for (step, num_before) in steps.iter().zip(0..) {
        let loss = match is_supervised {
            true => &step["sft/loss"],
            false if is_reward_model => &step["reward_model/loss"],
            false if is_preference => &step["preference/loss"],
            false if num_before < num_warmup_steps => &step["critic/vf_loss"],
            false => &step["actor/pg_loss"],
        };
        assert!(loss.is_number(), "{changes}: {step}");
        assert_eq!(step["training/num_skipped_updates"], 0.0, "{changes}: {step}");
    }
    assert!(place.run("export/model.safetensors").exists());
    place
}

/// GRPO is the preset of the tiny job, and so of most local runs; presets with a critic are below.
#[test]
fn one_preset_of_each_recipe_trains() {
    for kind in ["GRPO", "SFT", "DPO", "KTO", "OnlineDPO", "RewardModel"] {
        train(json!({ "algorithm": { "kind": kind } }));
    }
}

#[test]
fn a_critic_learns_alone_before_the_actor_moves() {
    let place = train(
        json!({ "algorithm": { "kind": "PPO", "critic": { "learningRate": 0.01, "warmupSteps": 1 } } }),
    );
    let steps = place.steps();
    assert!(steps[0]["actor/pg_loss"].is_null() && steps[0]["critic/vf_loss"].is_number(), "{}", steps[0]);
    assert!(steps[1..].iter().all(|step| step["actor/pg_loss"].is_number()));
    // A head of zeros predicts 0; the effect of the first update is visible in the second step.
    assert_eq!(steps[0]["critic/values/max"], 0.0);
    assert_ne!(steps[1]["critic/values/mean"], 0.0);
}

#[test]
fn vapo_learns_from_positive_examples_and_pf_ppo_from_samples_drawn_anew() {
    let critic = json!({ "learningRate": 0.01, "warmupSteps": 1 });
    let vapo = train(json!({ "algorithm": { "kind": "VAPO", "critic": critic.clone() } })).steps();
    assert!(vapo[0]["actor/positive_loss"].is_null() && vapo[1]["actor/positive_loss"].is_number());
    let without = json!({ "kind": "VAPO", "critic": critic, "loss": { "positiveCoefficient": 0.0 } });
    let without = train(json!({ "algorithm": without })).steps();
    assert!(without[1]["actor/positive_loss"].is_null(), "{}", without[1]);
    let drawn = train(json!({ "algorithm": { "kind": "PFPPO" } })).steps();
    for step in &drawn {
        let ratio = step["reweighting/distinct_ratio"].as_f64().unwrap();
        assert!(ratio > 0.0 && ratio < 1.0, "draws with replacement repeat some samples: {ratio}");
    }
}

#[test]
fn a_role_with_a_token_budget_of_its_own_learns_the_same_in_more_passes() {
    let ppo = json!({ "kind": "PPO", "kl": { "placement": "Reward" } });
    let roles = json!({ "critic": { "maxTokensPerMicroBatch": 12, "maxForwardTokens": 13 },
                        "reference": { "maxForwardTokens": 12 } });
    let one = train(json!({ "algorithm": ppo.clone() })).steps();
    let own = train(json!({ "algorithm": ppo, "training": { "roles": roles } })).steps();
    for (one, own) in one.iter().zip(&own) {
        let number = |step: &Value, name: &str| step[name].as_f64().unwrap();
        for name in ["critic/vf_loss", "critic/grad_norm", "actor/pg_loss", "actor/reward_kl_penalty"] {
            let difference = (number(one, name) - number(own, name)).abs();
            assert!(difference < 1e-4, "{name} differs by {difference}");
        }
        assert!(number(own, "critic/num_micro_batches") > number(one, "critic/num_micro_batches"));
        assert_eq!(own["training/num_micro_batches"], one["training/num_micro_batches"]);
    }
}

#[test]
fn an_adapter_is_exported_beside_the_merged_model() {
    let place = train(json!({ "model": { "lora": { "rank": 4, "alpha": 8 } } }));
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        assert!(place.run("export/adapter").join(file).exists(), "{file}");
    }
    assert!(!train(json!({})).run("export/adapter").exists());
}

#[test]
fn half_precision_and_recomputed_activations_train() {
    train(json!({ "training": { "precision": "Bf16", "activationCheckpointing": true } }));
}

#[test]
fn the_tiny_job_is_valid_as_it_stands() {
    rlt_api::validate(&tiny().to_string()).unwrap();
}
