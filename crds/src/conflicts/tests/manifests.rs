//! Manifests of jobs that have facts of the table of conflicts. Tests of `rlt-plan` use this file too.

use serde_json::{Value, json};

use super::{API_VERSION, Conflict, Fact, KIND};

pub(crate) fn manifest(spec: &Value) -> String {
    let manifest = json!({
        "apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "planned"}, "spec": spec
    });
    serde_saphyr::to_string(&manifest).unwrap()
}

/// A Qwen2.5-0.5B with full training, 8 prompts of 8 samples, 512 + 512 tokens.
pub(crate) fn spec() -> Value {
    json!({
        "model": {"path": "/models/qwen"},
        "data": {"train": ["train.parquet"]},
        "rewards": {"functions": [{"name": "answer", "kind": "Math"}]},
        "algorithm": {"kind": "DrGRPO"},
        "training": {"promptsPerStep": 8, "steps": 10},
    })
}

/// Merges the fields of `patch` into a value.
pub(crate) fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else { return into.clone_from(patch) };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in fields {
        merge(&mut into[name.as_str()], value);
    }
}

/// Returns the facts of a conflict: the one to change, and those that rule it out.
pub(crate) fn facts_of(conflict: &Conflict) -> Vec<Fact> {
    [&[conflict.fact][..], conflict.with].concat()
}

/// Settings of a manifest that give a job the fact; none for facts of a model.
pub(crate) fn settings(fact: Fact) -> Value {
    let lora = |fields: Value| json!({"model": {"lora": fields}});
    let mesh = |fields: Value| json!({"workers": {"mesh": fields}});
    match fact {
        Fact::Tp => mesh(json!({"tp": 2})),
        Fact::Sp => mesh(json!({"sp": 2})),
        Fact::LogprobSp => mesh(json!({"logprobSp": 2})),
        Fact::ReferenceSp => mesh(json!({"referenceSp": 2})),
        Fact::CriticSp => json!({"workers": {"mesh": {"criticSp": 2}}, "algorithm": {"kind": "PPO"}}),
        Fact::Ep => mesh(json!({"dpShard": 2, "ep": 2})),
        Fact::RolloutTp => mesh(json!({"rolloutTp": 2})),
        Fact::OnGpu => json!({"workers": {"device": "Cuda"}}),
        Fact::Adapter | Fact::NewAdapter => lora(json!({})),
        Fact::Dora => lora(json!({"dora": true})),
        Fact::ExpertAdapters => lora(json!({"targetParameters": ["mlp.experts.down_proj"]})),
        Fact::ModulesToSave => lora(json!({"modulesToSave": ["lm_head"]})),
        Fact::AdapterDropout => lora(json!({"dropout": 0.1})),
        Fact::DropoutAfter => lora(json!({"dropoutPosition": "After"})),
        Fact::OrthogonalInit => lora(json!({"init": "Orthogonal"})),
        Fact::StartingAdapter => lora(json!({"adapterPath": "/adapters/first"})),
        Fact::ResizedAdapter => lora(json!({"resizeAdapter": true})),
        Fact::UnmergedAdapter => lora(json!({"merge": false})),
        Fact::MergedAdapter => lora(json!({"merge": true})),
        Fact::AdaptedTower => lora(json!({"vlmLora": "Both"})),
        Fact::TrainedTower => json!({"model": {"visionTower": "Trained"}}),
        Fact::Quantization => json!({"model": {"quantization": {}, "lora": {}}}),
        Fact::ScoredCompletions => json!({"algorithm": {"kind": "DPO"}}),
        Fact::LabelHead => json!({"algorithm": {"kind": "RewardModel"}, "rewards": {"functions": []}}),
        Fact::RouterLoss => json!({"training": {"routerAuxLossCoef": 0.001}}),
        Fact::Streaming => json!({"data": {"streaming": {}}}),
        Fact::ReferenceSync => json!({"algorithm": {"referenceSync": {}}}),
        Fact::ReferenceOffload => json!({"training": {"roles": {"reference": {"offloadParameters": true}}}}),
        Fact::ReferencePrecision => json!({"training": {"roles": {"reference": {"precision": "Bf16"}}}}),
        Fact::CriticPrecision => json!({"training": {"roles": {"critic": {"precision": "Bf16"}}}}),
        Fact::ReferenceShards => mesh(json!({"referenceDpShard": 1})),
        Fact::CriticShards => mesh(json!({"criticDpShard": 1})),
        Fact::NoReference => json!({"algorithm": {"kind": "SFT"}}),
        Fact::MaxTrainPrompts => json!({"data": {"maxTrainPrompts": 5}}),
        _ => json!({}),
    }
}
