//! Tests of `algorithm.preset`: a table has each default of verl and of TRL. Fields of the manifest override
//! them, and a kind for which the project has no defaults is refused.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a broken fixture should end the test")]

use crate::specifications::manifest;
use rlt_api::spec::{AlgorithmKind, PresetProject};
use serde_json::{Value, json};

/// The resolved specification of a manifest with these sections.
fn resolved(patch: &Value) -> Value {
    let yaml = serde_saphyr::to_string(&manifest(patch)).unwrap();
    let job = rlt_api::validate(&yaml).unwrap_or_else(|problems| panic!("{patch}: {problems:?}"));
    let again = rlt_api::validate(&job.to_yaml().unwrap()).unwrap();
    assert_eq!(job.spec(), again.spec(), "a resolved job resolves to itself");
    serde_json::to_value(job.spec()).unwrap()
}

/// Returns a job that sets no field for which a project has a default.
fn silent(kind: &str, project: &str) -> Value {
    let mut patch = json!({
        "algorithm": {"kind": kind, "preset": project, "coldStart": null, "advantage": null, "loss": null, "kl": null},
        "training": {"optimizer": null, "schedule": null},
    });
    match kind {
        "SFT" | "DPO" | "KTO" | "RewardModel" => {
            patch["rewards"] = Value::Null;
            patch["data"] = json!({"task": null, "train": ["rows.jsonl"], "heldOut": []});
        }
        "PPO" | "ReinforcePlusPlus" | "ReMax" => patch["rollout"] = json!({"samplesPerPrompt": 1}),
        _ => {}
    }
    patch
}

/// verl 0.9.1: `actor/actor.yaml`, `ppo_trainer.yaml`, `optim/fsdp.yaml`.
const OF_VERL: [(&str, &str); 11] = [
    ("/algorithm/loss/policy", r#""Vanilla""#),
    ("/algorithm/loss/clipLow", "0.2"),
    ("/algorithm/loss/clipHigh", "0.2"),
    ("/algorithm/loss/dualClip", "3.0"),
    ("/algorithm/loss/aggregation", r#""TokenMean""#),
    ("/algorithm/loss/entropyCoefficient", "0.0"),
    ("/algorithm/kl", r#"{"placement":"None"}"#),
    ("/training/optimizer", r#"{"betas":[0.9,0.999],"learningRate":1e-6,"weightDecay":0.01}"#),
    ("/training/schedule", r#"{"kind":"Constant","minRatio":0.0,"warmupSteps":0}"#),
    ("/training/maxGradNorm", "1.0"),
    ("/training/epochsPerBatch", "1"),
];

#[test]
fn each_default_of_verl_is_taken_for_each_of_its_algorithms() {
    for (kind, advantage) in [
        ("PPO", json!({"estimator": "Gae", "gamma": 1.0, "lambda": 1.0})),
        ("GRPO", json!({"estimator": "Grpo", "normalizeByStd": true})),
        ("RLOO", json!({"estimator": "Rloo"})),
        ("ReinforcePlusPlus", json!({"estimator": "ReinforcePlusPlus", "gamma": 1.0})),
        ("ReMax", json!({"estimator": "ReMax"})),
    ] {
        let spec = resolved(&silent(kind, "verl"));
        assert_eq!(spec["algorithm"]["advantage"], advantage, "{kind}");
        for (field, value) in OF_VERL {
            let expected: Value = serde_json::from_str(value).unwrap();
            assert_eq!(spec.pointer(field), Some(&expected), "{kind} {field}");
        }
        let critic = json!({"learningRate": 1e-5, "warmupSteps": 0, "valueClip": 0.5});
        assert_eq!(spec["algorithm"].get("critic"), (kind == "PPO").then_some(&critic), "{kind}");
        assert_eq!(spec["algorithm"].get("importanceCorrection"), None, "{kind}");
    }
}

#[test]
fn a_kl_or_a_loss_that_the_manifest_adds_has_verls_constants() {
    let mut job = silent("GRPO", "verl");
    job["algorithm"]["kl"] = json!({"placement": "Loss"});
    let kl = json!({"placement": "Loss", "estimator": "K3", "coefficient": 0.001});
    assert_eq!(resolved(&job)["algorithm"]["kl"], kl);
    job["algorithm"]["kl"] = json!({"placement": "Reward"});
    let kl = json!({"placement": "Reward", "estimator": "K1", "coefficient": 0.001});
    assert_eq!(resolved(&job)["algorithm"]["kl"], kl);
    job["algorithm"]["loss"] = json!({"policy": "Gspo"});
    let loss = resolved(&job)["algorithm"]["loss"].clone();
    assert_eq!((&loss["clipLow"], &loss["clipHigh"]), (&json!(0.2), &json!(0.2)));
    job["algorithm"]["loss"] = json!({"policy": "KlCov"});
    assert_eq!(resolved(&job)["algorithm"]["loss"]["penalty"], 0.1);
}

#[test]
fn each_default_of_trl_is_taken_for_each_of_its_algorithms() {
    for (kind, learning_rate) in
        [("SFT", 2e-5), ("GRPO", 1e-6), ("DPO", 1e-6), ("KTO", 1e-6), ("RewardModel", 1e-4)]
    {
        let spec = resolved(&silent(kind, "trl"));
        let optimizer = json!({"betas": [0.9, 0.999], "learningRate": learning_rate, "weightDecay": 0.0});
        assert_eq!(spec["training"]["optimizer"], optimizer, "{kind}");
        let schedule = json!({"kind": "Linear", "minRatio": 0.0, "warmupSteps": 0});
        assert_eq!(spec["training"]["schedule"], schedule, "{kind}");
        assert_eq!(spec["training"]["maxGradNorm"], 1.0, "{kind}");
    }
    let algorithm = |kind: &str, field: &str| {
        resolved(&silent(kind, "trl")).pointer(&format!("/algorithm/{field}")).cloned()
    };
    for (kind, field, expected) in [
        ("GRPO", "advantage", Some(json!({"estimator": "Grpo", "normalizeByStd": true}))),
        ("GRPO", "loss/policy", Some(json!("Vanilla"))),
        ("GRPO", "loss/clipLow", Some(json!(0.2))),
        ("GRPO", "loss/clipHigh", Some(json!(0.2))),
        ("GRPO", "loss/dualClip", None),
        ("GRPO", "loss/aggregation", Some(json!("TokenMean"))),
        ("GRPO", "loss/entropyCoefficient", Some(json!(0.0))),
        ("GRPO", "kl", Some(json!({"placement": "None"}))),
        ("GRPO", "importanceCorrection", None),
        ("DPO", "preference/loss", Some(json!("Sigmoid"))),
        ("DPO", "preference/beta", Some(json!(0.1))),
        // An absent value means no smoothing.
        ("DPO", "preference/labelSmoothing", None),
        ("DPO", "preference/divergence", Some(json!("ReverseKl"))),
        ("DPO", "preference/lengthDesensitization", None),
        ("DPO", "preference/weighByPolicy", Some(json!(false))),
        ("DPO", "preference/sftWeight", Some(json!(0.0))),
        ("KTO", "preference/beta", Some(json!(0.1))),
        ("KTO", "preference/desirableWeight", Some(json!(1.0))),
        ("KTO", "preference/undesirableWeight", Some(json!(1.0))),
        ("KTO", "preference/referencePoint", Some(json!(true))),
        ("RewardModel", "rewardModel/centeringCoefficient", Some(json!(0.0))),
    ] {
        assert_eq!(algorithm(kind, field), expected, "{kind} {field}");
    }
}

#[test]
fn the_manifest_overrides_the_projects_defaults() {
    for project in ["verl", "trl"] {
        let mut job = silent("GRPO", project);
        job["algorithm"]["loss"] =
            json!({"clipLow": 0.1, "clipHigh": 0.3, "dualClip": 7.0, "aggregation": "TokenSum"});
        job["algorithm"]["kl"] = json!({"placement": "Loss", "estimator": "K2", "coefficient": 0.5});
        job["training"] = json!({
            "optimizer": {"learningRate": 3e-4, "betas": [0.8, 0.9], "weightDecay": 0.2},
            "schedule": {"kind": "Cosine", "minRatio": 0.1}, "maxGradNorm": 2.0,
        });
        let spec = resolved(&job);
        for (field, expected) in [
            ("/algorithm/loss/clipLow", json!(0.1)),
            ("/algorithm/loss/clipHigh", json!(0.3)),
            ("/algorithm/loss/dualClip", json!(7.0)),
            ("/algorithm/loss/aggregation", json!("TokenSum")),
            ("/algorithm/kl", json!({"placement": "Loss", "estimator": "K2", "coefficient": 0.5})),
            ("/training/optimizer/learningRate", json!(3e-4)),
            ("/training/optimizer/betas", json!([0.8, 0.9])),
            ("/training/optimizer/weightDecay", json!(0.2)),
            ("/training/schedule/kind", json!("Cosine")),
            ("/training/schedule/minRatio", json!(0.1)),
            ("/training/maxGradNorm", json!(2.0)),
        ] {
            assert_eq!(spec.pointer(field), Some(&expected), "{project} {field}");
        }
    }
}

#[test]
fn without_a_project_the_defaults_are_those_of_the_papers() {
    let mut job = silent("GRPO", "verl");
    job["algorithm"]["preset"] = Value::Null;
    let spec = resolved(&job);
    let optimizer = json!({"betas": [0.9, 0.999], "learningRate": 1e-6, "weightDecay": 0.01});
    assert_eq!(spec["training"]["optimizer"], optimizer);
    assert_eq!(spec["training"]["schedule"]["kind"], "Constant");
    let kl = json!({"placement": "Loss", "estimator": "K3StraightThrough", "coefficient": 0.04});
    assert_eq!(spec["algorithm"]["kl"], kl);
    assert_eq!(spec["algorithm"]["loss"]["aggregation"], "SequenceMeanTokenMean");
}

#[test]
fn a_kind_without_defaults_of_the_project_is_refused_by_name_with_what_is_allowed() {
    for project in PresetProject::ALL {
        for kind in AlgorithmKind::ALL {
            let yaml = serde_saphyr::to_string(&manifest(&silent(kind.name(), project.name()))).unwrap();
            let problems = rlt_api::validate(&yaml).err().unwrap_or_default();
            let refused = problems.iter().find(|problem| problem.path == "spec.algorithm.preset");
            assert_eq!(refused.is_none(), project.kinds().contains(&kind), "{project:?} {kind:?}");
            let Some(refused) = refused else { continue };
            assert_eq!(refused.value, Some(json!(project.name())));
            let others: Vec<_> =
                PresetProject::ALL.into_iter().filter(|other| other.kinds().contains(&kind)).collect();
            let allowed = others.iter().map(|other| other.name()).collect::<Vec<_>>().join(", ");
            let allowed = if allowed.is_empty() { "no preset".to_owned() } else { allowed };
            assert_eq!(refused.allowed, Some(allowed), "{kind:?}");
            assert!(project.kinds().iter().all(|kind| refused.message.contains(kind.name())));
        }
    }
}

/// The high learning rate of a new model would destroy what a pretrained model has learned.
#[test]
fn the_rate_of_a_cold_start_follows_the_model() {
    let trained = json!({"architecture": null, "tokenizer": null, "path": "/model"});
    let adapted = json!({"architecture": null, "tokenizer": null, "path": "/model", "lora": {}});
    for (model, expected) in [(json!({}), 1e-3), (adapted, 2e-4), (trained, 2e-5)] {
        let silent = json!({"algorithm": {"coldStart": {"learningRate": null}}, "model": model});
        let spec = resolved(&silent);
        assert_eq!(spec["algorithm"]["coldStart"]["learningRate"], expected, "{silent}");
    }
    let given = resolved(&json!({"algorithm": {"coldStart": {"learningRate": 0.25}}}));
    assert_eq!(given["algorithm"]["coldStart"]["learningRate"], 0.25);
}
