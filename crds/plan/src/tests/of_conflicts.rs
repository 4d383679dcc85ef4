//! Tests of the table of conflicts against the check of a model: a conflict that depends on the model or the
//! device is refused with its text.

use rlt_api::conflicts::{CONFLICTS, ChosenDevice, Fact};
use rlt_api::spec::QuantizationSpec;
use rlt_api::validate;
use rlt_models::{ExpertForm, ExpertGroups, Family, ModelConfig, NormKind, QkNorm};
use serde_json::json;

use super::of_expert_parallelism::mixture;
use super::{facts_of, manifest, merge, of_vision_models, qwen, settings, spec};
use crate::refusals;

fn latent() -> ModelConfig {
    let deepseek_v3 = include_str!("../../../models/tests/fixtures/deepseek_v3.json");
    ModelConfig::from_json(&serde_json::from_str(deepseek_v3).unwrap()).unwrap()
}

/// Returns a model that has those of the facts that are about models.
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

/// Returns the refusals of a job with these facts, or the problems of its manifest.
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
fn every_conflict_of_a_model_or_a_device_is_refused_with_its_reason() {
    let mut num_refused = 0;
    for conflict in CONFLICTS {
        let (Some(texts), facts) = (&conflict.refused, facts_of(conflict)) else { continue };
        match refused(&facts) {
            // Validation refuses the manifest already.
            Err(problems) => assert!(conflict.has_rule(), "{facts:?}: {problems:?}"),
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

/// Preference training samples only to compute rewards of held-out prompts.
#[test]
fn wide_heads_are_refused_on_gpus_where_an_evaluation_samples() {
    let num_refusals = |held_out: &[&str], algorithm: Fact| {
        let mut spec = spec();
        spec["data"]["heldOut"] = json!(held_out);
        merge(&mut spec, &settings(algorithm));
        let job = validate(&manifest(&spec)).unwrap();
        refusals(job.spec(), &model_with(&[Fact::WideHeads]), ChosenDevice::Cuda).len()
    };
    assert_eq!(num_refusals(&["held.parquet"], Fact::ScoredCompletions), 1);
    assert_eq!(num_refusals(&[], Fact::ScoredCompletions), 0);
    // Training of reward models does not sample for rewards.
    assert_eq!(num_refusals(&["held.parquet"], Fact::LabelHead), 0);
}
