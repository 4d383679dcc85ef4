//! The table of conflicts against validation and the check of a model: every row is refused with its text,
//! and no rule outside of the table refuses a combination.

use serde_json::{Value, json};

use super::of_expert_parallelism::mixture;
use super::{manifest, of_vision_models, qwen, spec};
use crate::conflicts::{CONFLICTS, ChosenDevice, Conflict, Fact, refusals};
use crate::plan::model_config::{ExpertForm, ExpertGroups, Family, ModelConfig, NormKind, QkNorm};
use crate::rules::{self, Check, Rule};
use crate::spec::QuantizationSpec;
use crate::validate;

fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else { return into.clone_from(patch) };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in fields {
        merge(&mut into[name.as_str()], value);
    }
}

fn facts_of(conflict: &Conflict) -> Vec<Fact> {
    [&[conflict.fact][..], conflict.with].concat()
}

/// Settings of a manifest that give a job the fact; none for facts of a model.
fn settings(fact: Fact) -> Value {
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

/// Settings of a manifest that describe a part of a model, or give a job the fact.
fn described(fact: Fact) -> Value {
    let mut shape = json!({
        "family": "Llama", "hiddenSize": 64, "intermediateSize": 32, "numLayers": 2, "numHeads": 4
    });
    let parts = match fact {
        Fact::Experts => json!({"family": "Qwen3Moe", "experts": {"count": 8, "perToken": 2}}),
        Fact::VisionTower => json!({
            "family": "Qwen2Vl", "vision": {"hiddenSize": 32, "numLayers": 1, "numHeads": 2, "patchSize": 4}
        }),
        Fact::NoVisionTower => json!({}),
        Fact::Quantized => return json!({"model": {"quantization": {}}}),
        other => return settings(other),
    };
    merge(&mut shape, &parts);
    json!({"model": {"architecture": shape}})
}

fn latent() -> ModelConfig {
    ModelConfig::from_json(&json!({
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 129280,
        "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
        "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8,
        "first_k_dense_replace": 3, "norm_topk_prob": true, "moe_layer_freq": 1, "num_nextn_predict_layers": 1,
        "max_position_embeddings": 163840, "rope_theta": 10000
    }))
    .unwrap()
}

/// A model with the facts that are about models.
fn model_with(facts: &[Fact]) -> ModelConfig {
    let of_experts = [Fact::Experts, Fact::ExpertBiases, Fact::ExpertGroups, Fact::ManyExperts];
    let mut model = if facts.contains(&Fact::LatentAttention) {
        latent()
    } else if facts.contains(&Fact::VisionTower) {
        of_vision_models::model()
    } else if facts.iter().any(|fact| of_experts.contains(fact)) {
        mixture()
    } else {
        qwen()
    };
    for fact in facts {
        let experts = model.experts.as_mut();
        match fact {
            Fact::ExpertBiases => experts.unwrap().form = ExpertForm::Clamped,
            Fact::ExpertGroups => {
                experts.unwrap().routing.groups = Some(ExpertGroups { count: 2, chosen: 1, by_best: 1 });
            }
            Fact::ManyExperts => experts.unwrap().num_experts = 1025,
            Fact::AttentionSinks => model.attention_sinks = true,
            Fact::AttentionSoftcap => model.attention_softcap = Some(50.0),
            Fact::LogitSoftcap => model.logit_softcap = Some(30.0),
            Fact::LayerNorms => model.norm_kind = NormKind::Layer,
            Fact::ParallelBlocks => model.parallel_blocks = true,
            Fact::QkNormAllHeads => model.qk_norm = QkNorm::AllHeads,
            Fact::QkNormEachHead => model.qk_norm = QkNorm::EachHead,
            Fact::WideHeads => model.head_dim = 258,
            Fact::NoClassifier => model.family = Family::Cohere,
            Fact::Quantized => {
                let quantized = qwen().with_quantization(Some(&QuantizationSpec::default()));
                model.quantization = quantized.unwrap().quantization;
            }
            _ => {}
        }
    }
    model
}

/// Refusals of a job with these facts, or the problems of its manifest.
fn refused(facts: &[Fact]) -> Result<Vec<String>, Vec<String>> {
    let mut spec = spec();
    spec["workers"] = json!({"count": 2, "device": "Cpu"});
    facts.iter().for_each(|fact| merge(&mut spec, &settings(*fact)));
    let has_gpu = facts.contains(&Fact::OnGpu);
    let device = if has_gpu { ChosenDevice::Cuda } else { ChosenDevice::Cpu };
    match validate(&manifest(&spec)) {
        Ok(job) => {
            let refusals = refusals(job.spec(), &model_with(facts), device);
            Ok(refusals.iter().map(ToString::to_string).collect())
        }
        Err(problems) => Err(problems.iter().map(ToString::to_string).collect()),
    }
}

#[test]
fn every_conflict_that_a_manifest_shows_is_refused_by_validation_with_its_message() {
    let mut num_refused = 0;
    for conflict in CONFLICTS {
        let (Some(rule), facts) = (conflict.rule, facts_of(conflict)) else { continue };
        let mut spec = spec();
        facts.iter().for_each(|fact| merge(&mut spec, &described(*fact)));
        let problems = validate(&manifest(&spec)).unwrap_err();
        let path = format!("{}.{}", rule.scope, rule.at);
        let is_refused =
            problems.iter().any(|problem| problem.path == path && problem.message == rule.message);
        assert!(is_refused, "{facts:?} is not refused at {path}: {problems:?}");
        num_refused += 1;
    }
    assert!(num_refused > 20, "{num_refused} conflicts of manifests");
}

#[test]
fn every_conflict_of_a_model_or_a_device_is_refused_with_its_reason() {
    let mut num_refused = 0;
    for conflict in CONFLICTS {
        let (Some(texts), facts) = (&conflict.refused, facts_of(conflict)) else { continue };
        match refused(&facts) {
            // The manifest shows it already.
            Err(problems) => assert!(conflict.rule.is_some(), "{facts:?}: {problems:?}"),
            Ok(said) => {
                let because = texts.because.replace("<part>", texts.part);
                // Text and placeholders alternate.
                let fragments: Vec<_> = because.split(['<', '>']).step_by(2).collect();
                let (begin, end) =
                    (format!("{}: ", conflict.fact.field()), format!(": expected {}", texts.expected));
                let is_it = |said: &String| {
                    let has_reason = fragments.iter().all(|fragment| said.contains(fragment));
                    said.starts_with(&begin) && said.contains(&end) && has_reason
                };
                assert!(said.iter().any(is_it), "{facts:?}: {said:?}");
                num_refused += 1;
            }
        }
    }
    assert!(num_refused > 40, "{num_refused} conflicts of models and devices");
}

#[test]
fn a_refusal_names_the_field_the_values_of_the_job_and_what_is_supported() {
    for (facts, expected) in [
        (
            &[Fact::Tp, Fact::LatentAttention][..],
            "spec.workers.mesh.tp: 2 ranks cannot share the weights of a model with latent attention: expected 1",
        ),
        (
            &[Fact::OnGpu, Fact::LayerNorms][..],
            "spec.workers.device: Qwen2 has layer norms, which have no kernels for GPUs yet: expected Cpu, got Cuda",
        ),
        (
            &[Fact::OnGpu, Fact::WideHeads][..],
            "spec.workers.device: the heads of Qwen2 are 258 wide, and the rollout on GPUs reads heads of at most \
             256: expected Cpu, got Cuda",
        ),
        (
            &[Fact::RouterLoss][..],
            "spec.training.routerAuxLossCoef: Qwen2 has no experts whose router it could balance: expected 0, got \
             0.001",
        ),
        (
            &[Fact::ExpertAdapters, Fact::ExpertBiases][..],
            "spec.model.lora.targetParameters: Qwen3Moe has experts with biases: expected none, as experts with biases \
             have no adapters, got mlp.experts.down_proj",
        ),
        (
            &[Fact::UnmergedAdapter, Fact::Experts, Fact::OnGpu][..],
            "spec.model.lora.merge: with an unmerged adapter the rollout does not sample from experts on a \
             GPU, whose kernels take no unmerged adapter: expected true, got false",
        ),
    ] {
        assert_eq!(refused(facts), Ok(vec![expected.to_owned()]));
    }
    assert_eq!(refused(&[Fact::Sp, Fact::RolloutTp, Fact::OnGpu]), Ok(Vec::new()));
}

/// Preference training samples for the rewards of held-out prompts. Training of reward models has none.
#[test]
fn wide_heads_are_refused_on_gpus_where_an_evaluation_samples() {
    let num_refusals =
        |kind: Fact| refused(&[Fact::OnGpu, Fact::WideHeads, kind]).map(|refusals| refusals.len());
    assert_eq!(num_refusals(Fact::ScoredCompletions), Ok(1));
    assert_eq!(num_refusals(Fact::LabelHead), Ok(0));
}

/// Whether a rule reads the field of a fact, or a field below it.
fn reads(rule: &Rule, fact: Fact) -> bool {
    let field = fact.field();
    rule.reads.iter().any(|read| {
        let path = if read.is_empty() { rule.scope.to_owned() } else { format!("{}.{read}", rule.scope) };
        path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
}

/// A rule that reads all fields of a conflict decides about the combination beside the table.
#[test]
fn no_rule_outside_of_the_table_refuses_a_combination() {
    // A start from the quantization error needs a quantization, with which it does not conflict.
    let is_needed = |rule: &&Rule| rule.message.starts_with("init Loftq starts from");
    let (mut num_rules, mut num_needed) = (0, 0);
    for rule in rules::all() {
        if let Check::Conflict(own) = rule.holds {
            let of_rule = |conflict: &Conflict| conflict.rule.is_some_and(|rule| rule.message == own.message);
            assert!(CONFLICTS.iter().any(of_rule), "no conflict has the rule {:?}", own.message);
            num_rules += 1;
            continue;
        }
        for conflict in CONFLICTS {
            let facts = facts_of(conflict);
            let shown: Vec<_> = facts.into_iter().filter(|fact| !fact.field().is_empty()).collect();
            if shown.len() < 2 || !shown.iter().all(|fact| reads(rule, *fact)) {
                continue;
            }
            assert!(is_needed(&rule), "{:?} decides about {shown:?}, as the table does", rule.message);
            num_needed += 1;
        }
    }
    assert!(num_rules > 15 && num_needed > 0, "{num_rules} rules are of the table, {num_needed} are needed");
}
