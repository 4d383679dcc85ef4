//! Checks of a model against a job: the table of conflicts, and whether the sizes of the model fit the
//! parallelism of the job.

use rlt_api::conflicts::{CONFLICTS, ChosenDevice, Refusal};
use rlt_api::degrees::{divides_heads, legal_degrees, tp_divides_layers, tp_divides_weights};
use rlt_api::resolved::ResolvedSpec;
use rlt_models::ModelConfig;

use super::refusal::ModelRefusal;

/// Returns all refusals of a job, in the order of the table. Whether sizes divide each other is not checked.
pub fn refusals(spec: &ResolvedSpec, model: &ModelConfig, device: ChosenDevice) -> Vec<Refusal> {
    let facts = model.facts().with_job(spec, device);
    let met = CONFLICTS.iter().filter(|conflict| conflict.is_met(&facts));
    met.filter_map(|conflict| conflict.refusal(spec, model.family, model.head_dim)).collect()
}

/// Checks that no part of the model conflicts with the job or its device, that the degrees of the job's mesh
/// divide the model's heads, and with `rolloutTp` its layers, and that its rotary embedding covers the job's
/// longest sequence. `device` replaces the one of `spec`, which may be `Auto`.
///
/// # Errors
/// [`ModelRefusal`], with the values that fit.
pub fn check_model(
    spec: &ResolvedSpec,
    model: &ModelConfig,
    device: ChosenDevice,
) -> Result<(), ModelRefusal> {
    model.clone().with_quantization(spec.model.quantization.as_ref()).map_err(ModelRefusal::Quantization)?;
    if let Some(refusal) = refusals(spec, model, device).into_iter().next() {
        return Err(ModelRefusal::Conflict(refusal));
    }
    check_tensor_parallel(spec, model)?;
    check_sequence_parallel(spec, model)?;
    check_experts(spec.workers.mesh.ep, model)?;
    check_unsharded_layers(spec, model)?;
    check_rollout(spec, model)?;
    let got = spec.max_sequence_tokens();
    match model.longest_sequence().filter(|longest| got > *longest) {
        Some(longest) => Err(ModelRefusal::TooLong { got, longest }),
        None => Ok(()),
    }
}

/// Numbers of query heads and of key heads.
fn heads_of(model: &ModelConfig) -> (u64, u64) {
    (model.num_heads as u64, model.num_kv_heads as u64)
}

/// Returns the feed-forward width that `tp` and `rolloutTp` must divide; with experts the greatest common
/// divisor of their width, the shared block's and that of dense layers.
fn tp_width(model: &ModelConfig) -> u64 {
    let dense = (0..model.num_layers).any(|layer_idx| model.experts_of(layer_idx).is_none());
    let experts = model.experts.as_ref();
    let widths = [
        dense.then_some(model.intermediate_size),
        experts.map(|experts| experts.intermediate_size),
        experts.and_then(|experts| experts.shared_intermediate_size),
    ];
    widths.into_iter().flatten().fold(0, |all, width| greatest_common_divisor(all, width as u64))
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

/// Checks that every sequence-parallel degree divides the heads that a rank has with tensor parallelism.
fn check_sequence_parallel(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), ModelRefusal> {
    let (mesh, heads) = (&spec.workers.mesh, heads_of(model));
    let of_heads = [
        ("spec.workers.mesh.sp", mesh.sp),
        ("spec.workers.mesh.logprobSp", mesh.sp_of_logprobs()),
        ("spec.workers.mesh.referenceSp", mesh.sp_of_reference()),
        ("spec.workers.mesh.criticSp", mesh.sp_of_critic()),
    ];
    let of_rank = (heads.0 / u64::from(mesh.tp), heads.1 / u64::from(mesh.tp));
    let Some((field, degree)) = of_heads.into_iter().find(|(_, sp)| !divides_heads(*sp, of_rank)) else {
        return Ok(());
    };
    let of_tp =
        if mesh.tp == 1 { String::new() } else { format!(", of which each rank has 1 / {}", mesh.tp) };
    let shared = format!("the heads of a model with {} query and {} key heads{of_tp}", heads.0, heads.1);
    let expected = legal_degrees(of_rank, |sp| divides_heads(sp, of_rank));
    Err(ModelRefusal::Degree { field, degree, shared, expected })
}

/// Checks that `rolloutTp` divides the heads and the feed-forward width of every layer.
fn check_rollout(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), ModelRefusal> {
    let (degree, heads, width) = (spec.workers.mesh.rollout_tp, heads_of(model), tp_width(model));
    if tp_divides_layers(degree, heads, width) {
        return Ok(());
    }
    let shared = format!(
        "the layers of a model with {} query and {} key heads and a feed-forward block {width} wide",
        heads.0, heads.1
    );
    let expected = legal_degrees(heads, |tp| tp_divides_layers(tp, heads, width));
    Err(ModelRefusal::Degree { field: "spec.workers.mesh.rolloutTp", degree, shared, expected })
}

/// Checks that `tp` ranks can have equal shards of every weight of a layer, and each a shard of the
/// vocabulary.
fn check_tensor_parallel(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), ModelRefusal> {
    let (field, tp) = ("spec.workers.mesh.tp", spec.workers.mesh.tp);
    if tp == 1 {
        return Ok(());
    }
    let refusal =
        |shared: String, expected: String| Err(ModelRefusal::Degree { field, degree: tp, shared, expected });
    let (heads, width) = (heads_of(model), tp_width(model));
    if !tp_divides_weights(tp, heads, width) {
        let shared = format!(
            "the layers of a model with {} query and {} key heads and a feed-forward block {width} wide",
            heads.0, heads.1
        );
        return refusal(shared, legal_degrees(heads, |tp| tp_divides_weights(tp, heads, width)));
    }
    // All ranks but the last have the same number of tokens; the last one must have at least one.
    let has_tokens = |tp: u32| {
        let tp = tp as usize;
        (tp - 1) * model.vocab_size.div_ceil(tp) < model.vocab_size
    };
    if !has_tokens(tp) {
        let fits = |tp: u32| has_tokens(tp) && tp_divides_weights(tp, heads, width);
        return refusal(format!("a vocabulary of {} tokens", model.vocab_size), legal_degrees(heads, fits));
    }
    Ok(())
}

/// Checks that `ep` divides the number of experts of a layer.
fn check_experts(ep: u32, model: &ModelConfig) -> Result<(), ModelRefusal> {
    let count = model.experts.as_ref().map_or(0, |experts| experts.num_experts as u64);
    if ep == 1 || count.is_multiple_of(ep.into()) {
        return Ok(());
    }
    let shared = format!("the {count} experts of a layer");
    let expected = legal_degrees((count, count), |ep| count.is_multiple_of(ep.into()));
    Err(ModelRefusal::Degree { field: "spec.workers.mesh.ep", degree: ep, shared, expected })
}

/// Checks that the model has at least as many layers as are to stay unsharded.
fn check_unsharded_layers(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), ModelRefusal> {
    let num_layers = model.num_layers;
    match spec.training.unsharded_layers.filter(|layers| *layers as usize > num_layers) {
        Some(got) => Err(ModelRefusal::UnshardedLayers { got, num_layers }),
        None => Ok(()),
    }
}
