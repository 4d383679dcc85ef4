//! Roles with a precision of their own: each gives the same bits as in a job of that precision, whatever the
//! actor's precision, sharded or not.

use serde_json::{Value, json};

use crate::job::{Place, merge};
use crate::preference::cached_logprobs;
use crate::ranks;
use crate::resume::assert_same_run;
use crate::reward_model::make_reward_model;

/// The precisions of a job: the actor's, and those of roles.
fn precisions(actor: &str, roles: &Value) -> Value {
    json!({ "training": { "precision": actor, "roles": roles } })
}

/// One step of all roles, on samples that do not depend on the precision of the training.
fn first_step(count: u32, precisions: Value) -> Value {
    let mut changes = json!({
        "algorithm": { "kind": "PPO", "critic": { "learningRate": 0.01 } },
        "rollout": { "precision": "Bf16" }, "training": { "steps": 1 },
        "workers": { "mesh": { "dpShard": count } }
    });
    merge(&mut changes, precisions);
    ranks::train(count, &changes).steps().remove(0)
}

#[test]
fn a_role_that_is_given_the_precision_of_the_actor_changes_no_bit() {
    let algorithm = json!({ "kind": "PPO", "kl": { "placement": "Loss", "coefficient": 0.1 } });
    let train = |roles: &Value| {
        let mut changes = precisions("Bf16", roles);
        merge(&mut changes, json!({ "algorithm": algorithm }));
        ranks::train(1, &changes)
    };
    let roles = json!({ "critic": { "precision": "Bf16" }, "reference": { "precision": "Auto" } });
    assert_same_run(&train(&json!({})), &train(&roles));
}

#[test]
fn a_critic_learns_in_its_own_precision_as_beside_an_actor_of_that_precision() {
    for count in [1, 2] {
        let shared = |precision: &str| first_step(count, precisions(precision, &json!({})));
        let own = |actor: &str, critic: &str| {
            first_step(count, precisions(actor, &json!({ "critic": { "precision": critic } })))
        };
        let (narrow, wide) = (shared("Bf16"), shared("Fp32"));
        let norm = "critic/grad_norm";
        assert_ne!(narrow[norm], wide[norm], "the precision can be seen");
        for (actor, critic, expected) in [("Fp32", "Bf16", &narrow), ("Bf16", "Fp32", &wide)] {
            let step = own(actor, critic);
            assert_eq!(step[norm], expected[norm], "{count} ranks, {critic} beside {actor}");
            assert_eq!(step["actor/grad_norm"], shared(actor)["actor/grad_norm"], "values are 0 at first");
        }
    }
}

#[test]
fn a_reference_scores_in_its_own_precision_as_beside_an_actor_of_that_precision() {
    for count in [1, 2] {
        let train = |actor: &str, roles: &Value| {
            let mut changes = precisions(actor, roles);
            let more = json!({
                "algorithm": { "kind": "DPO" }, "training": { "steps": 2 },
                "workers": { "mesh": { "dpShard": count } }
            });
            merge(&mut changes, more);
            cached_logprobs(&ranks::train(count, &changes))
        };
        let (narrow, wide) = (train("Bf16", &json!({})), train("Fp32", &json!({})));
        assert_ne!(narrow, wide, "the precision can be seen");
        assert_eq!(train("Fp32", &json!({ "reference": { "precision": "Bf16" } })), narrow, "{count} ranks");
        assert_eq!(train("Bf16", &json!({ "reference": { "precision": "Fp32" } })), wide, "{count} ranks");
    }
}

#[test]
fn a_reward_model_judges_in_its_own_precision_as_beside_an_actor_of_that_precision() {
    let place = Place::new();
    let model = place.file("reward-model");
    make_reward_model(&model);
    let mean = |actor: &str, roles: &Value| {
        let taste = json!({ "name": "taste", "kind": "Model", "model": { "path": model } });
        let mut changes = precisions(actor, roles);
        let more = json!({
            "rewards": { "functions": [taste] }, "rollout": { "precision": "Bf16" }, "training": { "steps": 1 }
        });
        merge(&mut changes, more);
        ranks::train(1, &changes).steps().remove(0)["reward/taste/mean"].clone()
    };
    let (narrow, wide) = (mean("Bf16", &json!({})), mean("Fp32", &json!({})));
    assert_ne!(narrow, wide, "the precision can be seen");
    assert_eq!(mean("Fp32", &json!({ "rewardModels": { "precision": "Bf16" } })), narrow);
    assert_eq!(mean("Bf16", &json!({ "rewardModels": { "precision": "Fp32" } })), wide);
}
