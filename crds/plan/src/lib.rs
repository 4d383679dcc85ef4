//! Plan of a validated job and its models: worker groups, batches, memory, speed and refusals. All of it is
//! pure functions, without I/O.
//!
//! ```text
//! ValidatedJob -> Mesh, WorkerGroup, rank environment
//!              -> BatchPlan: prompts, samples, updates, micro-batches
//!   ModelConfig -> MemoryPlan: named terms by phase
//!       Machine -> Choices, Fit, SpeedPlan: choices by device, whether it fits, how long it takes
//! ```
//! The operator builds pods from the plan, the trainer checks itself against it, `rlctl plan` prints it.

mod batch;
mod choices;
mod constants;
mod fit;
mod machine;
mod memory;
mod mesh;
mod model_check;
mod pictures;
mod refusal;
mod speed;
mod weight_sync;
mod workers;

use rlt_api::ValidatedJob;
use rlt_api::conflicts::ChosenDevice;
use rlt_api::resolved::{Choices, ModelSource, ResolvedSpec, TokenizerSource};
use rlt_api::spec::FailurePolicySpec;
use rlt_models::{ModelConfig, ModelConfigError, VISION_TOKENS, VisionTokens};
use serde::Serialize;

pub use batch::{BatchPlan, concurrent_sequences};
pub use choices::choices_for;
pub use constants::{HEAD_CHUNK_TOKENS, KV_BLOCK_TOKENS};
pub use fit::{Fit, OverfullPhase, Remedy};
pub use machine::{Flops, MEMORY_LABEL, Machine, PRODUCT_LABEL, UnknownGpu};
pub use memory::{MemoryPlan, MemoryTerm, Phase, PhaseMemory, Place};
pub use mesh::Mesh;
pub use model_check::{check_model, refusals};
pub use refusal::ModelRefusal;
pub use speed::{Bound, MeanLengths, PhaseSpeed, SpeedPlan, UnfitLength};
pub use weight_sync::WeightSync;
pub use workers::{EnvironmentVariable, RENDEZVOUS_PORT, SPARE_GROUP, TRAINER_GROUP, WorkerGroup};

/// Number of tokens of a character tokenizer besides its alphabet: padding, begin, end, unknown.
const NUM_SPECIAL_CHARACTER_TOKENS: usize = 4;

/// Plan of a job: everything that follows from its specification before it runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Name of the job.
    pub job: String,
    /// Device mesh: the degree of each parallelism axis.
    pub mesh: Mesh,
    /// Groups of workers; on a cluster each worker is one pod.
    pub worker_groups: Vec<WorkerGroup>,
    /// Batch arithmetic of a step.
    pub batch: BatchPlan,
    /// Parameter counts of the model; `None` without its configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Parameters>,
    /// Values of the fields whose defaults depend on the device.
    pub choices: Choices,
    /// Memory of one rank; `None` without the configurations of all models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryPlan>,
    /// Data that the weight sync of a step moves to the rollout; `None` without an adapter or without the
    /// model's configuration, and for jobs that do not sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_sync: Option<WeightSync>,
    /// Whether the job fits the device; `None` where the device's memory is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<Fit>,
    /// Predicted time of a step; `None` where the machine is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<SpeedPlan>,
    /// The job's rules for failures, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicySpec>,
}

/// Parameter counts of a job's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Parameters {
    /// Parameters of the model, its vision tower and its adapter.
    pub total: u64,
    /// Parameters that are trained.
    pub trainable: u64,
}

/// Configurations of a job's models, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Models {
    /// The trained model; see [`planned_model`] for one that needs no file.
    pub policy: Option<ModelConfig>,
    /// Reward models: those of the reward functions of kind `Model`.
    pub reward: Vec<ModelConfig>,
}

impl Models {
    /// Returns the policy's configuration if the configurations of all reward models are known too.
    fn policy_beside_all_others(&self, spec: &ResolvedSpec) -> Option<&ModelConfig> {
        let num_judges = spec.rewards.functions.iter().filter(|function| function.model.is_some()).count();
        self.policy.as_ref().filter(|_| self.reward.len() == num_judges)
    }
}

/// Plans a job. Memory is estimated only if all of its `models` are known.
///
/// A job whose device is left open is planned for the CPU.
pub fn plan(job: &ValidatedJob, models: &Models) -> Plan {
    plan_for(job, models, ChosenDevice::without_machine(job.spec().workers.device), None)
}

/// Plans a job whose ranks each have `machine`, ignoring the manifest's device: open choices are made for
/// that machine, and the plan says whether the job fits and how long a step takes with sequences of maximal
/// length.
pub fn plan_on(job: &ValidatedJob, models: &Models, machine: &Machine) -> Plan {
    let device = ChosenDevice::without_machine(machine.device);
    plan_for(job, models, device, Some((machine, MeanLengths::longest(job.spec()))))
}

/// Like [`plan_on`], but predicts times for steps with these sequence lengths. Memory is planned for the
/// longest.
pub fn plan_for_lengths(
    job: &ValidatedJob,
    models: &Models,
    machine: &Machine,
    lengths: MeanLengths,
) -> Plan {
    plan_for(job, models, ChosenDevice::without_machine(machine.device), Some((machine, lengths)))
}

/// Estimates the memory of a job on GPUs with `memory_bytes` each, ignoring the manifest's device; `None`
/// unless all of its `models` are known.
pub fn memory_on_gpu(job: &ValidatedJob, models: &Models, memory_bytes: u64) -> Option<MemoryPlan> {
    let (device, memory) = (ChosenDevice::Cuda, Some(memory_bytes));
    let policy = models.policy_beside_all_others(job.spec())?;
    let mut spec = choices_for(job.spec(), Some(policy), device, memory).made_in(job.spec());
    spec.workers.device = device.into();
    Some(MemoryPlan::new(&spec, policy, &models.reward, &BatchPlan::new(&spec), memory))
}

fn plan_for(
    job: &ValidatedJob,
    models: &Models,
    device: ChosenDevice,
    machine: Option<(&Machine, MeanLengths)>,
) -> Plan {
    let available = machine.and_then(|(machine, _)| machine.memory_bytes);
    let choices = choices_for(job.spec(), models.policy.as_ref(), device, available);
    let mut spec = choices.made_in(job.spec());
    spec.workers.device = device.into();
    let spec = &spec;
    let mesh = Mesh::new(&spec.workers);
    let batch = BatchPlan::new(spec);
    let policy = models.policy_beside_all_others(spec);
    let memory = policy.map(|policy| MemoryPlan::new(spec, policy, &models.reward, &batch, available));
    let fit =
        memory.as_ref().zip(available).map(|(memory, available)| Fit::new(spec, models, memory, available));
    let speed = policy.zip(machine);
    let speed = speed.map(|(policy, (machine, lengths))| SpeedPlan::new(spec, policy, machine, lengths));
    let parameters = models.policy.as_ref().map(|model| {
        let model = &model.clone().with_head(spec.algorithm.head());
        let trained = memory::trained(spec, model, &memory::LocalCount::full(spec, model));
        let adapter = if spec.model.lora.is_some() { trained.num_parameters } else { 0 };
        let total = model.parameter_count().total() + model.num_vision_parameters() + adapter;
        Parameters { total, trainable: trained.num_parameters }
    });
    let adapted = models.policy.as_ref().filter(|_| spec.model.lora.is_some() && spec.algorithm.samples());
    let weight_sync = adapted.map(|model| WeightSync::new(spec, model));
    let trainer = WorkerGroup::trainer(job.name(), &spec.workers, device.into());
    let spares = WorkerGroup::spares(job.name(), &spec.workers, device.into());
    let worker_groups = [trainer].into_iter().chain(spares).collect();
    let (job, failure_policy) = (job.name().to_owned(), spec.run_policy.failure_policy.clone());
    Plan {
        job,
        mesh,
        worker_groups,
        batch,
        parameters,
        choices,
        memory,
        weight_sync,
        fit,
        speed,
        failure_policy,
    }
}

/// Returns the configuration of a model that the manifest itself describes; `None` when it is in a file.
///
/// # Errors
/// When the architecture's sizes do not fit together.
pub fn planned_model(job: &ValidatedJob) -> Result<Option<ModelConfig>, ModelConfigError> {
    let spec = &job.spec().model;
    match (&spec.source, &spec.tokenizer) {
        (ModelSource::Architecture(architecture), Some(TokenizerSource::Characters(characters))) => {
            let of_images = architecture.vision.map_or(0, |_| VISION_TOKENS.len());
            let vocab_size = characters.chars().count() + NUM_SPECIAL_CHARACTER_TOKENS + of_images;
            let vision_tokens = architecture.vision.map(|_| VisionTokens::at_the_end_of(vocab_size));
            ModelConfig::from_architecture(architecture, vocab_size, &[], vision_tokens).map(Some)
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests;
