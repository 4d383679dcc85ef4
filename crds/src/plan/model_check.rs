//! Checks whether a model fits the parallelism and the device of a job, and what the job does with its
//! weights.

use super::degrees::{divides_heads, legal_degrees, tp_divides_layers, tp_divides_weights, tp_width};
use super::memory;
use super::misfit::Misfit;
use super::model_config::{ModelConfig, OutputHead, QkNorm};
use super::weight_sync::unmerged_refusal;
use crate::resolved::ResolvedSpec;
use crate::spec::{Device, LoraSpec, VisionTraining};

/// Checks that the degrees of the job's mesh divide the model's heads, and with `rolloutTp` its layers, and
/// that its rotary embedding covers the job's longest sequence.
///
/// The device of `spec` must not be `Auto`, for which no rule of GPUs applies: see
/// [`ValidatedJob::on_device`](crate::ValidatedJob::on_device).
///
/// # Errors
/// [`Misfit`], with the values that fit.
pub fn check_model(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), Misfit> {
    let (mesh, heads) = (&spec.workers.mesh, (model.num_heads as u64, model.num_kv_heads as u64));
    let of_heads = [
        ("spec.workers.mesh.sp", mesh.sp),
        ("spec.workers.mesh.logprobSp", mesh.sp_of_logprobs()),
        ("spec.workers.mesh.referenceSp", mesh.sp_of_reference()),
        ("spec.workers.mesh.criticSp", mesh.sp_of_critic()),
    ];
    check_tensor_parallel(spec, model)?;
    // Heads of one rank.
    let own = (heads.0 / u64::from(mesh.tp), heads.1 / u64::from(mesh.tp));
    if let Some((field, degree)) = of_heads.into_iter().find(|(_, sp)| !divides_heads(*sp, own)) {
        let of_tp =
            if mesh.tp == 1 { String::new() } else { format!(", of which each rank has 1 / {}", mesh.tp) };
        let shared = format!("the heads of a model with {} query and {} key heads{of_tp}", heads.0, heads.1);
        let expected = legal_degrees(own, |sp| divides_heads(sp, own));
        return Err(Misfit::Degree { field, degree, shared, expected });
    }
    if let Some((field, degree)) = of_heads.into_iter().find(|(_, sp)| *sp > 1 && model.attention_sinks) {
        let shared = "the attention of a model with a sink for each head".to_owned();
        return Err(Misfit::Degree { field, degree, shared, expected: "1".to_owned() });
    }
    check_experts(mesh.ep, model)?;
    check_device(spec.workers.device, mesh.ep, model)?;
    check_sampled_heads(spec, model)?;
    check_unsharded_layers(spec, model)?;
    check_quantization(spec, model)?;
    check_unmerged(spec, model)?;
    check_vision(spec, model)?;
    let coefficient = spec.training.router_aux_loss_coef;
    if coefficient != 0.0 && model.experts.is_none() {
        return Err(Misfit::NoRouters { family: model.family, got: coefficient.to_string() });
    }
    if spec.algorithm.head() != OutputHead::Vocabulary && !model.family.has_classifier() {
        return Err(Misfit::NoClassifier { family: model.family });
    }
    check_rollout_layers(spec, model)?;
    let got = spec.max_sequence_tokens();
    match model.longest_sequence().filter(|longest| got > *longest) {
        Some(longest) => Err(Misfit::TooLong { got, longest }),
        None => Ok(()),
    }
}

/// Checks that `rolloutTp` ranks can share every layer of the rollout.
fn check_rollout_layers(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), Misfit> {
    let (mesh, heads) = (&spec.workers.mesh, (model.num_heads as u64, model.num_kv_heads as u64));
    let field = "spec.workers.mesh.rolloutTp";
    let unshared = match model.qk_norm {
        _ if model.attention_sinks => Some("has a sink for each head and experts with biases"),
        QkNorm::None | QkNorm::Head => None,
        QkNorm::AllHeads => Some("normalises queries and keys over all heads"),
        QkNorm::EachHead => Some("normalises each head of queries and keys by weights of its own"),
    };
    if let Some(what) = unshared.filter(|_| mesh.rollout_tp > 1) {
        let shared = format!("the layers of a model that {what}");
        return Err(Misfit::Degree { field, degree: mesh.rollout_tp, shared, expected: "1".to_owned() });
    }
    let width = tp_width(model);
    if !tp_divides_layers(mesh.rollout_tp, heads, width) {
        let shared = format!(
            "the layers of a model with {} query and {} key heads and a feed-forward block {width} wide",
            heads.0, heads.1
        );
        let expected = legal_degrees(heads, |tp| tp_divides_layers(tp, heads, width));
        return Err(Misfit::Degree { field, degree: mesh.rollout_tp, shared, expected });
    }
    Ok(())
}

/// Checks that a model can be computed on a device, with its experts on `ep` ranks.
///
/// # Errors
/// [`Misfit::ExpertParallelOnGpu`] and [`Misfit::PartOnGpu`].
pub fn check_device(device: Device, ep: u32, model: &ModelConfig) -> Result<(), Misfit> {
    if let (Device::Cuda, Some(part)) = (device, model.cpu_part()) {
        return Err(Misfit::PartOnGpu { family: model.family, part });
    }
    match device {
        Device::Cuda if ep > 1 => Err(Misfit::ExpertParallelOnGpu { ep }),
        _ => Ok(()),
    }
}

/// Widest head that the rollout's attention kernel for GPUs reads. Others are padded to a multiple of 8.
const WIDEST_HEAD: usize = 256;

/// Checks that the rollout's attention kernel on a GPU reads the model's heads. Algorithms that do not sample
/// have no rollout.
fn check_sampled_heads(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), Misfit> {
    let head_dim = model.head_dim;
    if spec.workers.device == Device::Cuda && spec.algorithm.samples() && head_dim > WIDEST_HEAD {
        return Err(Misfit::HeadOnGpu { family: model.family, head_dim });
    }
    Ok(())
}

/// Checks that `tp` ranks can have equal shards of every weight of a layer, and each a part of the
/// vocabulary.
fn check_tensor_parallel(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), Misfit> {
    let (field, tp) = ("spec.workers.mesh.tp", spec.workers.mesh.tp);
    let uncut = match model.qk_norm {
        _ if tp == 1 => return Ok(()),
        _ if model.experts.is_some() => Some("with experts, which ep distributes"),
        _ if model.latent.is_some() => Some("with latent attention"),
        _ if model.vision.is_some() => Some("with a vision tower"),
        _ if model.quantization.is_some() => Some("with quantized weights"),
        _ if model.attention_sinks => Some("with a sink for each head"),
        QkNorm::None | QkNorm::Head => None,
        QkNorm::AllHeads => Some("that normalises queries and keys over all heads"),
        QkNorm::EachHead => Some("that normalises each head of queries and keys by weights of its own"),
    };
    let misfit =
        |shared: String, expected: String| Err(Misfit::Degree { field, degree: tp, shared, expected });
    if let Some(what) = uncut {
        return misfit(format!("the weights of a model {what}"), "1".to_owned());
    }
    let (heads, width) =
        ((model.num_heads as u64, model.num_kv_heads as u64), model.intermediate_size as u64);
    if !tp_divides_weights(tp, heads, width) {
        let shared = format!(
            "the layers of a model with {} query and {} key heads and a feed-forward block {width} wide",
            heads.0, heads.1
        );
        return misfit(shared, legal_degrees(heads, |tp| tp_divides_weights(tp, heads, width)));
    }
    // All ranks but the last have the same number of tokens; the last one must have at least one.
    let has_tokens = |tp: u32| {
        let tp = tp as usize;
        (tp - 1) * model.vocab_size.div_ceil(tp) < model.vocab_size
    };
    if !has_tokens(tp) {
        let fits = |tp: u32| has_tokens(tp) && tp_divides_weights(tp, heads, width);
        return misfit(format!("a vocabulary of {} tokens", model.vocab_size), legal_degrees(heads, fits));
    }
    Ok(())
}

/// Checks that the model has experts, and that `ep` divides their number.
fn check_experts(ep: u32, model: &ModelConfig) -> Result<(), Misfit> {
    let num_experts = model.experts.as_ref().map_or(0, |experts| experts.num_experts as u64);
    if ep == 1 || (num_experts > 0 && num_experts.is_multiple_of(ep.into())) {
        return Ok(());
    }
    let (shared, expected) = match num_experts {
        0 => (format!("the experts of {:?}, which has none", model.family), "1".to_owned()),
        count => (
            format!("the {count} experts of a layer"),
            legal_degrees((count, count), |ep| count.is_multiple_of(ep.into())),
        ),
    };
    Err(Misfit::Degree { field: "spec.workers.mesh.ep", degree: ep, shared, expected })
}

/// Checks that the model has at least as many layers as are to stay unsharded.
fn check_unsharded_layers(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), Misfit> {
    let num_layers = model.num_layers;
    match spec.training.unsharded_layers.filter(|layers| *layers as usize > num_layers) {
        Some(got) => Err(Misfit::UnshardedLayers { got, num_layers }),
        None => Ok(()),
    }
}

/// Checks that an adapter that is requested unmerged can stay unmerged.
fn check_unmerged(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), Misfit> {
    let lora = spec.model.lora.as_ref().filter(|lora| lora.merge == Some(false));
    let refusal = |lora: &LoraSpec| unmerged_refusal(lora.parts(), model, spec.workers.device);
    match lora.and_then(refusal) {
        Some(part) => Err(Misfit::UnmergedAdapter { part }),
        None => Ok(()),
    }
}

/// Checks the settings that a vision tower restricts, and that settings for a tower find one.
fn check_vision(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), Misfit> {
    if model.vision.is_none() {
        let refused = |field, expected, got| Misfit::NoTower { field, family: model.family, expected, got };
        let adapted = spec.model.lora.as_ref().map(|lora| lora.vlm_lora);
        if let Some(parts) = adapted.filter(|parts| parts.adapts_vision()) {
            return Err(refused("spec.model.lora.vlmLora", "Text", format!("{parts:?}")));
        }
        if spec.model.vision_tower == VisionTraining::Trained {
            return Err(refused("spec.model.visionTower", "Frozen", "Trained".to_owned()));
        }
        return Ok(());
    }
    let (mesh, family) = (&spec.workers.mesh, model.family);
    let not_shared = "1, as the tokens of images are not shared among ranks yet";
    let alone = "1, as each rank samples alone";
    let critic = memory::has_critic(spec).then(|| mesh.sp_of_critic());
    let degrees = [
        ("spec.workers.mesh.sp", mesh.sp, not_shared),
        ("spec.workers.mesh.logprobSp", mesh.sp_of_logprobs(), not_shared),
        ("spec.workers.mesh.referenceSp", mesh.sp_of_reference(), not_shared),
        ("spec.workers.mesh.criticSp", critic.unwrap_or(1), not_shared),
        ("spec.workers.mesh.rolloutTp", mesh.rollout_tp, alone),
    ];
    if let Some((field, degree, expected)) = degrees.into_iter().find(|(_, degree, _)| *degree > 1) {
        return Err(Misfit::Vision { field, family, expected, got: degree.to_string() });
    }
    let refused =
        |field, expected, got: &str| Misfit::Vision { field, family, expected, got: got.to_owned() };
    if spec.model.quantization.is_some() {
        return Err(refused("spec.model.quantization", "none", "a quantization"));
    }
    if spec.algorithm.head() != OutputHead::Vocabulary {
        let expected = "an algorithm that trains a policy, as reward models read text alone";
        return Err(refused("spec.algorithm", expected, "a reward model"));
    }
    Ok(())
}

/// Checks the settings that quantized weights restrict, whether the job or the model's files quantize them.
fn check_quantization(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), Misfit> {
    let quantized = model.clone().with_quantization(spec.model.quantization.as_ref());
    if quantized.map_err(Misfit::Quantization)?.quantization.is_none() {
        return Ok(());
    }
    if spec.model.lora.is_none() {
        let (field, expected) = ("spec.model.lora", "an adapter, as such weights are frozen");
        return Err(Misfit::Quantized { field, expected, got: "none".to_owned() });
    }
    if spec.model.lora.as_ref().is_some_and(|lora| lora.dora) {
        let (field, expected) =
            ("spec.model.lora.dora", "false, as the rollout has no magnitudes beside codes");
        return Err(Misfit::Quantized { field, expected, got: "true".to_owned() });
    }
    if spec.model.lora.as_ref().is_some_and(|lora| lora.merge == Some(true)) {
        let (field, expected) = ("spec.model.lora.merge", "false, as the rollout folds nothing into codes");
        return Err(Misfit::Quantized { field, expected, got: "true".to_owned() });
    }
    let tp = spec.workers.mesh.rollout_tp;
    if tp > 1 {
        let (field, expected) = ("spec.workers.mesh.rolloutTp", "1, as each rank samples alone");
        return Err(Misfit::Quantized { field, expected, got: tp.to_string() });
    }
    Ok(())
}
