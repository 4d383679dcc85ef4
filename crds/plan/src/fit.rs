//! Whether a job fits the memory of a device, and if not, which single changes of the manifest would make it
//! fit. Changes that alter the training's result are not considered.

use rlt_api::conflicts::ChosenDevice;
use rlt_api::resolved::ResolvedSpec;
use rlt_api::spec::RolesSpec;
use rlt_models::ModelConfig;
use serde::Serialize;

use super::batch::BatchPlan;
use super::memory::{MemoryPlan, Phase};
use super::{Models, model_check};

/// Comparison of a device's memory with the job's need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fit {
    /// Memory of the device in bytes.
    pub available_bytes: u64,
    /// Whether every phase fits.
    pub fits: bool,
    /// Phases that do not fit, the largest first.
    pub misfits: Vec<OverfullPhase>,
    /// Changes that would make the job fit, each on its own if possible.
    pub remedies: Vec<Remedy>,
}

/// A phase that needs more memory than the device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OverfullPhase {
    /// Phase of a step that does not fit.
    pub phase: Phase,
    /// Device memory that the phase needs, in bytes.
    pub needed_bytes: u64,
}

/// A change of fields with which the job fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Remedy {
    /// Fields below `spec` with their values, such as `training.offload.optimizer: true`.
    pub fields: Vec<String>,
    /// Device memory that the job then needs, in bytes.
    pub needed_bytes: u64,
}

/// Function that returns changed specifications, each with the field and value that changed; empty where it
/// changes nothing or may not be made.
type Change = fn(&ResolvedSpec, &ModelConfig) -> Vec<(String, ResolvedSpec)>;

/// Changes in the order of their cost: more passes, recomputation, fewer concurrent sequences, copies to the
/// host, more ranks.
const CHANGES: [Change; 7] = [
    fewer_tokens,
    checkpointing,
    fewer_sequences,
    |spec, _| offloaded(spec, "training.offload.optimizer", |spec| &mut spec.training.offload.optimizer),
    |spec, _| offloaded(spec, "training.offload.parameters", |spec| &mut spec.training.offload.parameters),
    sharded,
    tensor_parallel_rollout,
];

impl Fit {
    /// Compares a specification without open choices with the memory of a device.
    pub(super) fn new(spec: &ResolvedSpec, models: &Models, memory: &MemoryPlan, available: u64) -> Self {
        let mut misfits: Vec<OverfullPhase> = memory
            .phases
            .iter()
            .filter(|phase| phase.device_bytes > available)
            .map(|phase| OverfullPhase { phase: phase.phase, needed_bytes: phase.device_bytes })
            .collect();
        misfits.sort_by_key(|misfit| std::cmp::Reverse(misfit.needed_bytes));
        let fits = misfits.is_empty();
        let remedies = match &models.policy {
            Some(policy) if !fits => remedies(spec, policy, models, available),
            _ => Vec::new(),
        };
        Self { available_bytes: available, fits, misfits, remedies }
    }
}

fn needed(spec: &ResolvedSpec, policy: &ModelConfig, models: &Models, available: u64) -> u64 {
    let batch = BatchPlan::new(spec);
    MemoryPlan::new(spec, policy, &models.reward, &batch, Some(available)).peak_device_bytes
}

/// Returns every kind of change that suffices alone, with its first value that does. If none does, returns a
/// combination of changes.
fn remedies(spec: &ResolvedSpec, policy: &ModelConfig, models: &Models, available: u64) -> Vec<Remedy> {
    let alone = CHANGES.iter().filter_map(|change| {
        change(spec, policy).into_iter().find_map(|(field, changed)| {
            let needed_bytes = needed(&changed, policy, models, available);
            (needed_bytes <= available).then(|| Remedy { fields: vec![field], needed_bytes })
        })
    });
    let alone: Vec<Remedy> = alone.collect();
    if alone.is_empty() { together(spec, policy, models, available).into_iter().collect() } else { alone }
}

/// One change of a combination: its index in [`CHANGES`], and the index of its value.
#[derive(Clone, Copy)]
struct Choice {
    change: usize,
    value: usize,
}

/// Returns the fields and the specification of a combination; `None` if one of its values is not legal.
fn combined(
    spec: &ResolvedSpec,
    policy: &ModelConfig,
    choices: &[Choice],
) -> Option<(Vec<String>, ResolvedSpec)> {
    choices.iter().try_fold((Vec::new(), spec.clone()), |(mut fields, spec), choice| {
        let (field, spec) = CHANGES.get(choice.change)?(&spec, policy).into_iter().nth(choice.value)?;
        fields.push(field);
        Some((fields, spec))
    })
}

/// Combines the changes. First adds each change with its last value, if that lowers the memory needed. Then,
/// the costliest change first, removes each change or lowers it to the first value with which the combination
/// still suffices.
fn together(spec: &ResolvedSpec, policy: &ModelConfig, models: &Models, available: u64) -> Option<Remedy> {
    let remedy = |choices: &[Choice]| {
        let (fields, spec) = combined(spec, policy, choices)?;
        Some(Remedy { fields, needed_bytes: needed(&spec, policy, models, available) })
    };
    let suffices = |choices: &Vec<Choice>| remedy(choices).is_some_and(|all| all.needed_bytes <= available);
    let mut choices = Vec::new();
    for (change, values) in CHANGES.iter().enumerate() {
        let (_, spec) = combined(spec, policy, &choices)?;
        let last = values(&spec, policy).len().checked_sub(1).map(|value| Choice { change, value });
        let more: Vec<Choice> = choices.iter().copied().chain(last).collect();
        if remedy(&more)?.needed_bytes < remedy(&choices)?.needed_bytes {
            choices = more;
        }
    }
    if !suffices(&choices) {
        return None;
    }
    for index in (0..choices.len()).rev() {
        let without = [&choices[..index], &choices[index + 1..]].concat();
        let smaller = (0..choices[index].value).map(|value| {
            let mut choices = choices.clone();
            choices[index].value = value;
            choices
        });
        if let Some(fewer) = std::iter::once(without).chain(smaller).find(suffices) {
            choices = fewer;
        }
    }
    remedy(&choices)
}

fn changed(
    spec: &ResolvedSpec,
    field: String,
    change: impl FnOnce(&mut ResolvedSpec),
) -> (String, ResolvedSpec) {
    let mut spec = spec.clone();
    change(&mut spec);
    (field, spec)
}

/// Returns `from` halved until `least`, without `from` itself.
fn halves(from: u32, least: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(from), move |tokens| (*tokens > least).then(|| (tokens / 2).max(least)))
        .skip(1)
}

/// Lowers both token budgets, down to the longest sequence.
fn fewer_tokens(spec: &ResolvedSpec, _: &ModelConfig) -> Vec<(String, ResolvedSpec)> {
    let mesh = &spec.workers.mesh;
    let sp = mesh.sp.min(mesh.sp_of_logprobs()).min(mesh.sp_of_reference()).min(mesh.sp_of_critic());
    let least = u32::try_from(spec.max_sequence_tokens().div_ceil(sp.into())).unwrap_or(u32::MAX);
    let budget = spec.training.max_tokens_per_micro_batch;
    // A role with its own budget would still exceed the memory.
    let roles = if spec.training.roles.is_some() { " and without the budgets of training.roles" } else { "" };
    let with = |tokens: u32| {
        let field = format!(
            "training.maxTokensPerMicroBatch: {tokens} with training.maxLogprobTokens: {tokens}{roles}"
        );
        changed(spec, field, |spec| {
            spec.training.max_tokens_per_micro_batch = tokens;
            spec.training.max_logprob_tokens = spec.training.max_logprob_tokens.min(tokens);
            spec.training.roles = spec.training.roles.map(RolesSpec::without_budgets);
        })
    };
    halves(budget, least).map(with).collect()
}

fn checkpointing(spec: &ResolvedSpec, _: &ModelConfig) -> Vec<(String, ResolvedSpec)> {
    let on = || {
        changed(spec, "training.activationCheckpointing: true".into(), |spec| {
            spec.training.activation_checkpointing = Some(true);
        })
    };
    if spec.training.activation_checkpointing == Some(true) { Vec::new() } else { vec![on()] }
}

fn fewer_sequences(spec: &ResolvedSpec, _: &ModelConfig) -> Vec<(String, ResolvedSpec)> {
    let from = u32::try_from(super::concurrent_sequences(spec)).unwrap_or(u32::MAX);
    let with = |sequences: u32| {
        changed(spec, format!("rollout.maxConcurrentSequences: {sequences}"), |spec| {
            spec.rollout.max_concurrent_sequences = sequences;
        })
    };
    halves(from, 1).map(with).collect()
}

fn offloaded(
    spec: &ResolvedSpec,
    field: &str,
    of: fn(&mut ResolvedSpec) -> &mut bool,
) -> Vec<(String, ResolvedSpec)> {
    let (field, with) = changed(spec, format!("{field}: true"), |spec| *of(spec) = true);
    if with == *spec { Vec::new() } else { vec![(field, with)] }
}

/// Whether the model can be trained as `spec` asks, on the device for which it is planned.
fn suits(spec: &ResolvedSpec, model: &ModelConfig) -> bool {
    let device = ChosenDevice::without_machine(spec.workers.device);
    model_check::check_model(spec, model, device).is_ok()
}

/// Ranks of a worker up to which more of them are proposed before more workers: usual nodes have eight GPUs.
const RANKS_OF_FULL_WORKER: u32 = 8;
/// Most ranks of a job.
const MAX_RANKS: u32 = 1024;

/// Returns the specification with workers whose ranks form groups of `group` ranks: first with more ranks in
/// each worker, then with more workers; `None` if a job has not as many ranks.
fn with_ranks(spec: &ResolvedSpec, group: u32) -> Option<ResolvedSpec> {
    let workers = &spec.workers;
    let full = workers.ranks_per_worker.max(RANKS_OF_FULL_WORKER);
    let of_each = (workers.ranks_per_worker..=full).map(|ranks| (workers.count, ranks));
    let of_more = (workers.count..=MAX_RANKS).map(|count| (count, full));
    let is_divided = |&(count, ranks): &(u32, u32)| (count * ranks).is_multiple_of(group);
    let (count, ranks) =
        of_each.chain(of_more).find(is_divided).filter(|(count, ranks)| count * ranks <= MAX_RANKS)?;
    let mut spec = spec.clone();
    (spec.workers.count, spec.workers.ranks_per_worker) = (count, ranks);
    Some(spec)
}

/// Raises the FSDP degree: first over the existing ranks, then with more ranks in a worker, then with more
/// workers.
fn sharded(spec: &ResolvedSpec, model: &ModelConfig) -> Vec<(String, ResolvedSpec)> {
    let (workers, mesh) = (&spec.workers, &spec.workers.mesh);
    let degrees = std::iter::successors(Some(mesh.dp_shard), |degree| degree.checked_mul(2)).skip(1);
    let with = |degree: u32| {
        let mut spec = with_ranks(spec, degree.checked_mul(mesh.sp * mesh.tp)?)?;
        spec.workers.mesh.dp_shard = degree;
        let numbers = [
            ("ranksPerWorker", workers.ranks_per_worker, spec.workers.ranks_per_worker),
            ("count", workers.count, spec.workers.count),
        ];
        let more = numbers.iter().filter(|(_, from, to)| from != to);
        let more: Vec<_> = more.map(|(name, _, to)| format!("workers.{name}: {to}")).collect();
        let more = if more.is_empty() { String::new() } else { format!(" with {}", more.join(" and ")) };
        Some((format!("workers.mesh.dpShard: {degree}{more}"), spec))
    };
    let possible = degrees.take_while(|degree| *degree <= MAX_RANKS).filter_map(with);
    possible.filter(|(_, spec)| suits(spec, model)).collect()
}

/// Raises the rollout tensor-parallel degree.
fn tensor_parallel_rollout(spec: &ResolvedSpec, model: &ModelConfig) -> Vec<(String, ResolvedSpec)> {
    let num_ranks = spec.workers.num_ranks();
    let from = spec.workers.mesh.rollout_tp;
    let degrees = std::iter::successors(Some(from), |degree| degree.checked_mul(2)).skip(1);
    let with = |degree: u32| {
        changed(spec, format!("workers.mesh.rolloutTp: {degree}"), |spec| {
            spec.workers.mesh.rollout_tp = degree;
        })
    };
    let degrees =
        degrees.take_while(|degree| *degree <= num_ranks).filter(|degree| num_ranks.is_multiple_of(*degree));
    degrees.map(with).filter(|(_, spec)| suits(spec, model)).collect()
}

#[cfg(test)]
mod tests {
    use super::with_ranks;

    #[test]
    fn ranks_are_added_to_workers_up_to_eight_and_then_in_more_workers() {
        let job = rlt_api::validate(include_str!("../../tests/fixtures/arithmetic.yaml")).unwrap();
        let workers = |from: [u32; 2], group: u32| {
            let mut spec = job.spec().clone();
            [spec.workers.count, spec.workers.ranks_per_worker] = from;
            with_ranks(&spec, group).map(|spec| [spec.workers.count, spec.workers.ranks_per_worker])
        };
        for (from, group, expected) in [
            ([1, 1], 1, Some([1, 1])),
            ([1, 1], 6, Some([1, 6])),
            ([1, 1], 8, Some([1, 8])),
            ([1, 1], 16, Some([2, 8])),
            ([2, 1], 16, Some([2, 8])),
            ([3, 1], 16, Some([4, 8])),
            ([4, 2], 8, Some([4, 2])),
            ([2, 16], 64, Some([4, 16])),
            ([1, 1], 1024, Some([128, 8])),
            ([1, 1], 2048, None),
        ] {
            assert_eq!(workers(from, group), expected, "{from:?}, {group}");
        }
    }
}
