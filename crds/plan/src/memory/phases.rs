//! The memory terms of each phase of a step, from the sizes that all phases share.

use rlt_api::resolved::ResolvedSpec;
use rlt_api::spec::OffloadSpec;
use rlt_models::ModelConfig;

use super::activations::Activations;
use super::passes::{self, Pass, cast_of_layer, larger, normed_weight};
use super::shards::Shards;
use super::trained::{LocalCount, Trained, trained, trains_head};
use super::{
    FP32, MemoryTerm, Phase, frozen_width, has_critic, is_gathered_by_unit, on_gpu, on_host, resident_term,
    roles, rollout, rollout_width, term, vision,
};
use crate::batch::{BatchPlan, TokenBudget};

/// Host memory of the process besides tensors, measured on x86-64 with libtorch 2.11: tables of libtorch,
/// tokenizer and threads (the peak of a job with a few thousand parameters) and 16 MiB for the code of matrix
/// products. Pages of the program and its libraries (60 to 150 MiB, which the kernel reclaims under
/// pressure) are not counted.
const HOST_BASE_BYTES: u64 = 92 << 20;

/// GPU memory of a process besides tensors: the CUDA context with libtorch's kernels and cuBLAS' workspace,
/// as `nvidia-smi` shows for a process that has multiplied two small matrices (PyTorch issues report 400 to
/// 600 MiB on sm_80 to sm_100).
const CUDA_CONTEXT_BYTES: u64 = 640 << 20;

/// Host bytes of one token of the step's batch: token id, mask and six per-token f64 values, twice because
/// batches are copied when they are split.
const BATCH_BYTES_PER_TOKEN: u64 = 2 * (4 + 1 + 6 * 8);

/// Function that returns the memory terms of a role's pass, given the role's offload settings.
type PassTerms<'a> = dyn Fn(&Pass, OffloadSpec) -> Vec<MemoryTerm> + 'a;

/// Sizes of a job from which the terms of all phases are computed.
pub(super) struct PhaseTerms<'a> {
    spec: &'a ResolvedSpec,
    batch: &'a BatchPlan,
    reward_models: &'a [ModelConfig],
    /// The policy in full: weight sync and rollout handle full layers.
    full: &'a ModelConfig,
    /// The tensor-parallel shard of the policy that a rank trains.
    local: &'a ModelConfig,
    /// Trained parameters of `local`.
    trained: Trained,
    /// Bytes of an element in the actor's compute dtype.
    width: u64,
    /// Bytes of an element in the critic's compute dtype; `None` without a critic.
    critic_width: Option<u64>,
    /// FSDP shards of the actor.
    shards: Shards,
    /// FSDP shards of the critic.
    critic_shards: Shards,
    /// FSDP shards of the full policy, which weight sync gathers.
    sync_shards: Shards,
}

impl<'a> PhaseTerms<'a> {
    /// Collects the sizes of a job; `full` is its policy and `local` the tensor-parallel shard of it that a
    /// rank trains.
    pub(super) fn new(
        spec: &'a ResolvedSpec,
        full: &'a ModelConfig,
        local: &'a ModelConfig,
        reward_models: &'a [ModelConfig],
        batch: &'a BatchPlan,
    ) -> Self {
        let width = spec.training.precision.width();
        let (local_count, full_count) = (LocalCount::trained(spec, full), LocalCount::full(spec, full));
        let trained_locally = trained(spec, local, &local_count);
        let shards = Shards::new(spec, local, &local_count, &trained_locally, width);
        Self {
            critic_width: has_critic(spec).then(|| spec.training.critic_precision().width()),
            critic_shards: shards.of_degree(spec.workers.mesh.dp_shard_of_critic()),
            sync_shards: Shards::new(spec, full, &full_count, &trained(spec, full, &full_count), width),
            trained: trained_locally,
            spec,
            batch,
            reward_models,
            full,
            local,
            width,
            shards,
        }
    }

    /// Terms that are resident for the whole run.
    pub(super) fn resident(&self) -> Vec<MemoryTerm> {
        let Self { spec, local, .. } = *self;
        let mut terms = self.policy_and_critic();
        let width = self.reward_model_width();
        terms.push(roles::reward_models(spec, self.reward_models, width, &self.shards));
        terms.extend(vision::resident_terms(spec, local));
        terms
    }

    /// Terms of the process, the policy, the reference and the critic that are resident for the whole run.
    fn policy_and_critic(&self) -> Vec<MemoryTerm> {
        let Self { spec, local, ref trained, ref shards, .. } = *self;
        let offload = spec.training.offload;
        let quantized = local.quantized();
        // Two moments of 4 bytes each.
        let moments = 2 * FP32 * shards.shard_of_trained(trained.num_parameters);
        let mut terms = vec![
            on_host("host base", HOST_BASE_BYTES),
            term("CUDA context", if on_gpu(spec) { CUDA_CONTEXT_BYTES } else { 0 }),
            resident_term(spec, "weights", offload.parameters, self.weight_bytes()),
            resident_term(spec, "quantized weights", offload.parameters, shards.shard_of(quantized.bytes)),
            roles::reference_kept(spec, local, shards),
            resident_term(spec, "optimizer state", offload.optimizer, moments),
        ];
        terms.extend(roles::critic(spec, local, trained, shards));
        terms.push(on_host("batch on the host", BATCH_BYTES_PER_TOKEN * self.batch.max_tokens_per_step));
        terms
    }

    /// Bytes of the policy's weights that are not quantized: 4 P / s, or with an adapter b P / s and the
    /// adapter's 4. Quantized weights take their stored bytes.
    fn weight_bytes(&self) -> u64 {
        let Self { spec, local, ref shards, .. } = *self;
        let num_parameters = shards.all_parameters() + vision::parameters(spec, local);
        let adapter = if spec.model.lora.is_some() { self.trained.num_parameters } else { 0 };
        let dense = num_parameters - local.quantized().numbers;
        match spec.model.lora {
            Some(_) if frozen_width(spec) != FP32 => {
                frozen_width(spec) * shards.shard_of_model(dense) + FP32 * shards.shard_of(adapter)
            }
            _ => FP32 * shards.shard_of_model(dense + adapter),
        }
    }

    /// Terms of loading alone, without resident terms.
    pub(super) fn loading(&self) -> Vec<MemoryTerm> {
        roles::loading(self.spec, self.local, &self.trained, &self.shards)
    }

    /// Terms that are resident from the first weight sync on.
    pub(super) fn resident_in_rollout(&self) -> Vec<MemoryTerm> {
        rollout::base(self.spec, self.full, &self.sync_shards)
    }

    /// Terms of the phases from weight sync until rewards are known, without resident terms; `memory` is the
    /// bytes of the device, where known.
    pub(super) fn sampling(&self, memory: Option<u64>) -> Vec<(Phase, Vec<MemoryTerm>)> {
        let Self { spec, batch, full, sync_shards: ref shards, .. } = *self;
        let (mut phases, mut num_cached) = (Vec::new(), 0);
        let until_scored = || rollout::terms_until_scored(spec, memory, full, batch, shards);
        if spec.samples() {
            // Every rank samples full sequences, even where it holds only a shard of each layer.
            let activations =
                Activations { model: full, width: rollout_width(spec), ..self.activations(1, self.width) };
            let sync = rollout::taking_over(spec, full, activations.width, shards);
            let decoding = rollout::terms(spec, memory, full, batch, &activations, shards);
            let decoding = [decoding, vision::sampling(spec, full)].concat();
            let freed_by_sync = rollout::freed_bytes(&sync, &decoding);
            num_cached = freed_by_sync + rollout::freed_bytes(&decoding, &until_scored());
            phases.push((Phase::WeightSync, sync));
            phases.push((Phase::Rollout, [decoding, vec![rollout::cached(spec, freed_by_sync)]].concat()));
        }
        if !self.reward_models.is_empty() {
            let width = self.reward_model_width();
            let judging = roles::judging(spec, self.reward_models, batch, width, &self.shards);
            phases.push((
                Phase::Reward,
                [until_scored(), judging, vec![rollout::cached(spec, num_cached)]].concat(),
            ));
        }
        phases
    }

    /// Terms of the log-prob passes alone; `None` for algorithms without them.
    pub(super) fn logprob(&self) -> Option<Vec<MemoryTerm>> {
        let Self { spec, batch, local, width, ref shards, .. } = *self;
        if spec.algorithm.is_supervised() {
            return None;
        }
        let (training, mesh) = (&spec.training, &spec.workers.mesh);
        let scored = |pass: &Pass, _: OffloadSpec| {
            passes::logprob(spec, batch, pass.budget, &self.activations(pass.budget.sp, pass.width))
        };
        // Reference and actor score one after the other.
        let of_actor = Pass {
            budget: TokenBudget { tokens: training.max_logprob_tokens, sp: mesh.sp_of_logprobs() },
            width,
        };
        let of_reference = Pass {
            budget: TokenBudget { tokens: training.reference_forward_tokens(), sp: mesh.sp_of_reference() },
            width: roles::reference_width(spec),
        };
        let by_both = larger(scored(&of_actor, training.offload), scored(&of_reference, training.offload));
        let scored = self.larger_with_critic(by_both, training.critic_forward_tokens(), &scored);
        let widest = self.widest().max(of_reference.width);
        let gathered = |shards: &Shards| shards.gathered(widest).to_vec();
        let by_reference = gathered(&shards.of_degree(mesh.dp_shard_of_reference()));
        let gathered = larger(self.larger_of_shards(&gathered), by_reference);
        let reference = roles::reference_read(spec, local, shards);
        Some([gathered, vec![reference], scored, vision::scoring(spec, local)].concat())
    }

    /// Terms of an update's forward and backward passes alone.
    pub(super) fn update(&self) -> Vec<MemoryTerm> {
        let Self { spec, local, width, .. } = *self;
        let (training, mesh) = (&spec.training, &spec.workers.mesh);
        let of_actor =
            Pass { budget: TokenBudget { tokens: training.max_tokens_per_micro_batch, sp: mesh.sp }, width };
        let by_actor = self.updated(&of_actor, training.offload, &self.shards);
        let by_critic = |pass: &Pass, offload: OffloadSpec| self.updated(pass, offload, &self.critic_shards);
        let update = self.larger_with_critic(by_actor, training.critic_micro_batch_tokens(), &by_critic);
        let gathered = self.larger_of_shards(&|shards| shards.gathered_in_update(self.widest()).to_vec());
        [gathered, update, vision::training(spec, local)].concat()
    }

    /// Terms of one role's update.
    fn updated(&self, pass: &Pass, offload: OffloadSpec, shards: &Shards) -> Vec<MemoryTerm> {
        let activations = self.activations(pass.budget.sp, pass.width);
        let (offloads, num_trained) = (offload.activations, self.trained.num_parameters);
        passes::update(self.spec, self.batch, pass.budget, offloads, &activations, shards, num_trained)
    }

    /// Terms of the optimizer's step alone.
    pub(super) fn optimizer(&self) -> Vec<MemoryTerm> {
        let training = &self.spec.training;
        let by_critic = self.critic_width.is_some() && training.critic_offload().optimizer;
        let offloads_moments = training.offload.optimizer || by_critic;
        // 4 bytes for each trained parameter, or for this rank's shard of them. Between updates no gradients
        // exist.
        let num_trained = self.trained.num_parameters;
        let gradients = self
            .larger_of_shards(&|shards| vec![term("gradients", FP32 * shards.shard_of_trained(num_trained))]);
        let moved = self.larger_of_shards(&|shards| shards.updated(offloads_moments));
        [gradients, moved].concat()
    }

    /// Sizes of the activations of a pass with the sequence-parallel degree `sp` and elements of `width`
    /// bytes.
    fn activations(&self, sp: u32, width: u64) -> Activations<'_> {
        let Self { spec, local: model, ref trained, .. } = *self;
        Activations {
            model,
            width,
            adapter_width: trained.adapter_width,
            normed_weight: normed_weight(spec, model),
            sp,
            cast_of_layer: cast_of_layer(spec, model, trained, width),
            casts_head: !is_gathered_by_unit(spec) && trains_head(spec, model),
            largest_trained: trained.largest_of_layer,
        }
    }

    /// Returns the larger of the actor's terms and the critic's `terms` of a pass. The critic processes the
    /// same tokens with its own budget of `max_tokens` and its own compute dtype.
    fn larger_with_critic(
        &self,
        by_actor: Vec<MemoryTerm>,
        max_tokens: u32,
        terms: &PassTerms<'_>,
    ) -> Vec<MemoryTerm> {
        let Some(width) = self.critic_width else { return by_actor };
        let budget = TokenBudget { tokens: max_tokens, sp: self.spec.workers.mesh.sp_of_critic() };
        let pass = Pass { budget, width };
        larger(by_actor, terms(&pass, self.spec.training.critic_offload()))
    }

    /// Returns the larger of the actor's and the critic's terms of FSDP units.
    fn larger_of_shards(&self, terms: &dyn Fn(&Shards) -> Vec<MemoryTerm>) -> Vec<MemoryTerm> {
        match self.critic_width {
            None => terms(&self.shards),
            Some(_) => larger(terms(&self.shards), terms(&self.critic_shards)),
        }
    }

    /// Bytes of an element in the wider compute dtype of actor and critic.
    fn widest(&self) -> u64 {
        self.width.max(self.critic_width.unwrap_or(0))
    }

    /// Bytes of an element in the compute dtype of the reward models.
    fn reward_model_width(&self) -> u64 {
        self.spec.training.reward_model_precision().width()
    }
}
