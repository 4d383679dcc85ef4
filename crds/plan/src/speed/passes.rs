//! Counts of FLOP, memory access and communication of the passes over a step's tokens: log-probs, updates,
//! the critic, and the weight sync.
//!
//! Legend: P trained parameters, W weights of all layers' projections, H weights of the head, L layers, q
//! width of all query heads, t tokens of a pass, c completion tokens, l tokens that attention reads.
//!
//! ```text
//! forward   2 W t + 2 H c + 4 L q l t      FLOP; attention sees half of a segment's tokens, and its prompt
//! backward  twice that; once with an adapter, whose frozen weights have no gradient
//! recompute one more forward pass of the layers with activation checkpointing
//! AdamW     32 P / s bytes: weight and both moments read and written, gradient read and cleared
//! ```

use rlt_api::resolved::{Preference, ResolvedSpec};
use rlt_api::spec::{Device, OffloadSpec, Precision};
use rlt_models::ModelConfig;

use super::sharing::Sharing;
use super::work::{ComputePrecision, Work};
use crate::batch::{BatchPlan, FullPass, TokenBudget, scored_share};
use crate::machine::Machine;
use crate::weight_sync::{WeightSync, sent_in_sync};

/// Number of libtorch operations in a layer's forward pass; a backward pass has twice as many.
const OPERATIONS_OF_LAYER: f64 = 24.0;
/// Bytes that AdamW reads and writes for each parameter that a rank updates.
const OPTIMIZER_BYTES: f64 = 32.0;
/// Number of reads and writes in a forward pass for each activation that a layer keeps.
const ACTIVATION_PASSES: f64 = 2.0;
/// Cost of page faults on a CPU in memory that an earlier phase has freed, as a multiple of the bytes
/// written.
const FRESH_MEMORY: f64 = 25.0;

/// Host seconds for each token of a forward pass on a CPU: packing, targets, losses in f64, metrics; a
/// backward pass takes twice as many. Measured on the quickstart's job, like the seconds of sampling.
const HOST_SECONDS_OF_TOKEN: f64 = 4e-6;

/// The passes of one step on the busiest rank.
#[derive(Clone, Copy)]
pub(super) struct Passes<'a> {
    spec: &'a ResolvedSpec,
    /// The rank's tensor-parallel shard of the model.
    model: &'a ModelConfig,
    /// The full model.
    whole: &'a ModelConfig,
    batch: &'a BatchPlan,
    trained: f64,
    numbers: ComputePrecision,
    /// FSDP degree of the role: ranks that together hold one copy of its model.
    dp_shard: f64,
}

/// The work of the updates of a step.
pub(super) struct Update {
    pub(super) work: Work,
    /// FLOP of forward and backward passes, without recomputation.
    pub(super) model_flop: f64,
    /// Tokens of all passes of the busiest sequence-parallel group.
    pub(super) tokens: f64,
}

impl Update {
    /// Peak FLOP/s of the machine in the update's dtype.
    pub(super) fn peak(&self, machine: &Machine) -> f64 {
        machine.flops(self.work.numbers.dtype, self.work.numbers.matmul)
    }
}

/// Token counts of passes on one rank: computed tokens and those with a log-prob.
#[derive(Clone, Copy, Debug)]
struct Tokens {
    computed: f64,
    predicted: f64,
    num_passes: f64,
    sp: f64,
}

impl<'a> Passes<'a> {
    pub(super) fn new(
        spec: &'a ResolvedSpec,
        model: &'a ModelConfig,
        whole: &'a ModelConfig,
        batch: &'a BatchPlan,
        num_trained: u64,
    ) -> Self {
        let training = &spec.training;
        let numbers = ComputePrecision { dtype: training.precision, matmul: training.matmul_precision };
        let dp_shard = spec.workers.mesh.dp_shard.into();
        Self { spec, model, whole, batch, trained: num_trained as f64, numbers, dp_shard }
    }

    /// Returns the passes of a role with its own compute dtype and FSDP degree.
    fn of_role(&self, precision: Precision, dp_shard: u32) -> Self {
        let numbers = ComputePrecision { dtype: precision, ..self.numbers };
        Self { numbers, dp_shard: dp_shard.into(), ..*self }
    }

    fn width(&self) -> f64 {
        self.numbers.dtype.width() as f64
    }

    fn body(&self) -> f64 {
        self.model.matrices_of_layers() as f64
    }

    /// Elements of the layers' matrices by which one token is multiplied.
    fn active_body(&self) -> f64 {
        self.model.active_matrices_of_layers() as f64
    }

    fn head(&self) -> f64 {
        (self.model.head_rows() * self.model.hidden_size) as f64
    }

    fn layers(&self) -> f64 {
        self.model.num_layers as f64
    }

    /// Counts the tokens of `num_prompts` groups in passes under a token budget. A group's prompt is computed
    /// once in each pass that has samples of it.
    fn tokens(&self, num_prompts: u64, budget: TokenBudget) -> Tokens {
        let share = scored_share(self.spec, num_prompts, budget.sp);
        let samples = self.batch.samples_per_prompt;
        let full = FullPass::new(self.spec, share, samples, budget);
        let (prompt, completion) =
            (f64::from(self.spec.data.max_prompt_tokens), f64::from(self.spec.rollout.max_completion_tokens));
        let passes_of_group = (full.num_passes as f64 / share as f64).max(1.0);
        let (share, sp) = (share as f64, f64::from(budget.sp));
        let computed = share * (passes_of_group * prompt + samples as f64 * (completion - 1.0));
        let predicted = share * samples as f64 * completion;
        Tokens { computed: computed / sp, predicted: predicted / sp, num_passes: full.num_passes as f64, sp }
    }

    /// FLOP of the layers in one forward pass over all tokens.
    fn layers_flop(&self, tokens: Tokens) -> f64 {
        let (prompt, completion) =
            (f64::from(self.spec.data.max_prompt_tokens), f64::from(self.spec.rollout.max_completion_tokens));
        let queries = (self.model.num_heads * self.model.head_dim) as f64;
        let attention = 4.0 * self.layers() * queries * (prompt + completion / 2.0);
        tokens.computed * (2.0 * self.active_body() + attention)
    }

    fn head_flop(&self, tokens: Tokens) -> f64 {
        2.0 * self.head() * tokens.predicted
    }

    /// Bytes of weights and activations that a forward pass over all tokens reads and writes.
    fn forward_bytes(&self, tokens: Tokens) -> f64 {
        let (hidden, wide) = (self.model.hidden_size as f64, self.model.active_width() as f64);
        let of_token = self.layers() * ACTIVATION_PASSES * (6.0 * hidden + 3.0 * wide);
        let weights = tokens.num_passes * (self.body() + self.head());
        self.width() * (tokens.computed * of_token + weights)
            // Logits are written in the compute dtype and read twice.
            + 3.0 * self.width() * tokens.predicted * self.model.head_rows() as f64
    }

    /// Bytes that a rank sends in one pass over the model: all-gathers of shards, and with sequence
    /// parallelism two all-to-alls a layer.
    fn exchanged(&self, tokens: Tokens, gathers: f64) -> f64 {
        let sharing = self.sharing();
        let gathered = tokens.num_passes * gathers * self.width() * sharing.sent(self.body() + self.head());
        let heads = ((self.model.num_heads + 2 * self.model.num_kv_heads) * self.model.head_dim) as f64;
        let of_token =
            self.layers() * self.width() * (heads + (self.model.num_heads * self.model.head_dim) as f64);
        gathered + tokens.computed * of_token * (tokens.sp - 1.0) / tokens.sp
    }

    /// Forward passes without gradients: the actor's log-probs where updates are off-policy or need the
    /// log-probs of full completions first, and the reference's, as a separate item if it computes in another
    /// dtype. For a data set they are computed in the first epoch only.
    pub(super) fn scoring(&self) -> Vec<Work> {
        let mesh = &self.spec.workers.mesh;
        let passes =
            |tokens: u32, sp: u32| self.tokens(self.batch.prompts_per_step, TokenBudget { tokens, sp });
        let is_off_policy = self.batch.updates_per_step > 1;
        let algorithm = &self.spec.algorithm;
        let own = match &algorithm.preference {
            // KTO also scores mismatched completions.
            Some(Preference::Labels(kto)) => 1 + u8::from(kto.reference_point),
            Some(Preference::Pairs(_)) => 1,
            // The label values are needed before their gradient is computed.
            None if algorithm.kind.learns_from().trains_reward_model() => 1,
            None => u8::from(is_off_policy),
        };
        let training = &self.spec.training;
        let offloaded = training.offload.parameters;
        let tokens = passes(training.max_logprob_tokens, mesh.sp_of_logprobs());
        let actor = self.forward(tokens, own.into(), offloaded);
        let tokens = passes(training.reference_forward_tokens(), mesh.sp_of_reference());
        let times = f64::from(u8::from(algorithm.reads_reference()));
        let of_reference = self.of_role(training.reference_precision(), mesh.dp_shard_of_reference());
        let reference = of_reference.forward(tokens, times, training.reference_is_offloaded());
        if reference.numbers == actor.numbers { vec![actor.and(reference)] } else { vec![actor, reference] }
    }

    /// Work of `times` forward passes over the same tokens, for a role whose weights may be offloaded.
    fn forward(&self, tokens: Tokens, times: f64, is_offloaded: bool) -> Work {
        Work {
            products: times * (self.layers_flop(tokens) + self.head_flop(tokens)),
            bytes: times * self.forward_bytes(tokens),
            operations: times * tokens.num_passes * self.layers() * OPERATIONS_OF_LAYER,
            exchanged: times
                * (self.exchanged(tokens, 1.0) + self.rows_exchanged(tokens) + self.sums_exchanged(tokens)),
            moved: if is_offloaded { times * self.moved_weights(tokens) } else { 0.0 },
            host_seconds: times * self.host_seconds(tokens),
            ..Work::in_numbers(self.numbers)
        }
    }

    /// Host seconds of a forward pass; 0 on a GPU, which computes meanwhile.
    fn host_seconds(&self, tokens: Tokens) -> f64 {
        let is_gpu = self.spec.workers.device == Device::Cuda;
        if is_gpu { 0.0 } else { HOST_SECONDS_OF_TOKEN * tokens.computed }
    }

    /// Bytes of offloaded weights, which are fetched from the host once a pass.
    fn moved_weights(&self, tokens: Tokens) -> f64 {
        let part = (self.body() + self.head()) / self.dp_shard;
        tokens.num_passes * 4.0 * part
    }

    /// Work of all updates of a step.
    pub(super) fn update(&self) -> Update {
        let budget = TokenBudget {
            tokens: self.spec.training.max_tokens_per_micro_batch,
            sp: self.spec.workers.mesh.sp,
        };
        self.update_under(budget, self.spec.training.offload)
    }

    /// Work of all updates of a step in micro-batches under `budget`.
    fn update_under(&self, budget: TokenBudget, offload: OffloadSpec) -> Update {
        let num_updates = self.batch.updates_per_step as f64;
        let tokens = self.tokens(self.spec.training.prompts_per_update.into(), budget);
        let (layers, head) = (self.layers_flop(tokens), self.head_flop(tokens));
        let backward = if self.spec.model.lora.is_some() { 1.0 } else { 2.0 };
        let again = f64::from(u8::from(self.spec.training.activation_checkpointing == Some(true)));
        let own_part = self.sharing().updated_parameters(self.trained);
        let forward = self.forward(tokens, 1.0, offload.parameters);
        let inputs = tokens.computed * self.layers() * self.model.hidden_size as f64 * self.width();
        let gathers = self.gathers_of_update();
        let work = Work {
            products: num_updates * ((1.0 + backward + again) * layers + (1.0 + backward) * head),
            bytes: num_updates * ((1.0 + backward + again) * forward.bytes + OPTIMIZER_BYTES * own_part),
            operations: num_updates * (3.0 + again) * forward.operations,
            exchanged: num_updates
                * (self.exchanged(tokens, gathers)
                    + (2.0 + again) * (self.rows_exchanged(tokens) + self.sums_exchanged(tokens))
                    + self.summed()),
            moved: num_updates
                * (gathers * forward.moved
                    + if offload.optimizer { 16.0 * own_part } else { 0.0 }
                    + if offload.activations { 2.0 * inputs } else { 0.0 }),
            host_seconds: num_updates * 3.0 * forward.host_seconds,
            ..Work::in_numbers(self.numbers)
        };
        let model_flop = num_updates * (1.0 + backward) * (layers + head);
        Update { work, model_flop, tokens: num_updates * tokens.computed * tokens.sp }
    }

    /// Number of times that an update gathers the weights: once, and those of resharded layers a second time
    /// for their backward pass. The unit outside of the layers stays unsharded for the whole pass.
    fn gathers_of_update(&self) -> f64 {
        let kept = self.spec.training.layers_kept_unsharded(self.model.num_layers) as f64;
        let again = self.body() * (self.layers() - kept) / self.layers();
        1.0 + again / (self.body() + self.head())
    }

    /// Bytes of fp32 gradients that a rank sends so that all ranks have the sum.
    fn summed(&self) -> f64 {
        // Gradients are reduced over the ranks with the same tensor-parallel index.
        let count = f64::from(self.spec.workers.num_ranks() / self.spec.workers.mesh.tp);
        4.0 * self.sharing().summed(self.trained, count)
    }

    /// How the role's weights are sharded over ranks. An adapter has no trained expert weights.
    fn sharing(&self) -> Sharing {
        let is_trained = self.spec.model.lora.is_none();
        Sharing::new(&self.spec.workers.mesh, self.dp_shard, self.model, is_trained)
    }

    /// Bytes of hidden states that a rank sends to the ranks of their experts, or returns, in a forward or
    /// backward pass with equally busy experts.
    fn rows_exchanged(&self, tokens: Tokens) -> f64 {
        let Some(experts) = &self.model.experts else { return 0.0 };
        let layers = experts.layers.iter().filter(|has_experts| **has_experts).count();
        let of_token = 2 * layers * experts.num_experts_per_token * self.model.hidden_size;
        let ep = f64::from(self.spec.workers.mesh.ep);
        tokens.computed * self.width() * of_token as f64 * (ep - 1.0) / ep
    }

    /// Bytes that a rank sends for the all-reduces of a tensor-parallel group, two a layer: of the outputs of
    /// both blocks in a forward pass, or of the gradients of their inputs in a backward pass.
    fn sums_exchanged(&self, tokens: Tokens) -> f64 {
        let tp = f64::from(self.spec.workers.mesh.tp);
        let of_token = 2.0 * self.layers() * self.model.hidden_size as f64 * self.width();
        tokens.computed * of_token * 2.0 * (tp - 1.0) / tp
    }

    /// Work of the critic: one pass for values, and its updates, on a trunk like the actor's.
    pub(super) fn critic(&self) -> Work {
        let (training, sp) = (&self.spec.training, self.spec.workers.mesh.sp_of_critic());
        let forward = TokenBudget { tokens: training.critic_forward_tokens(), sp };
        let tokens = self.tokens(self.batch.prompts_per_step, forward);
        // Without its own micro-batch budget the critic's updates take as long as the actor's.
        let offload = training.critic_offload();
        let budget = match training.roles.and_then(|roles| roles.critic?.max_tokens_per_micro_batch) {
            Some(tokens) => TokenBudget { tokens, sp },
            None => {
                TokenBudget { tokens: training.max_tokens_per_micro_batch, sp: self.spec.workers.mesh.sp }
            }
        };
        let own = self.of_role(training.critic_precision(), self.spec.workers.mesh.dp_shard_of_critic());
        let update = own.update_under(budget, offload).work;
        let values = own.forward(tokens, 1.0, offload.parameters);
        Work {
            products: values.products - self.head_flop(tokens) + update.products,
            bytes: values.bytes + update.bytes,
            operations: values.operations + update.operations,
            exchanged: values.exchanged + update.exchanged,
            moved: values.moved + update.moved,
            host_seconds: values.host_seconds + update.host_seconds,
            ..update
        }
    }

    /// Work of weight sync: weights are read twice, to pack them and to verify their digest, and the packed
    /// copy is written, on a CPU into fresh memory.
    pub(super) fn weight_sync(&self) -> Work {
        if self.spec.model.lora.as_ref().is_some_and(|lora| lora.merge == Some(false)) {
            return self.adapter_sync();
        }
        let whole = Self { model: self.whole, ..*self };
        let weights = whole.body() + whole.head();
        let is_gpu = self.spec.workers.device == Device::Cuda;
        let packed = self.spec.rollout.precision.unwrap_or_default().width() as f64 * weights
            / f64::from(self.spec.workers.mesh.rollout_tp);
        let kept = if self.spec.model.lora.is_some() && is_gpu { self.width() } else { 4.0 };
        // An adapter is merged into a copy of each weight first.
        let folded = if self.spec.model.lora.is_some() { kept * whole.body() } else { 0.0 };
        Work {
            bytes: 2.0 * kept * weights + (packed + folded) * if is_gpu { 1.0 } else { FRESH_MEMORY },
            operations: self.layers() * OPERATIONS_OF_LAYER,
            exchanged: kept * sent_in_sync(self.spec, self.whole, weights as u64) as f64,
            ..Work::in_numbers(self.numbers)
        }
    }

    /// Work of weight sync with an unmerged adapter: its parameters are read twice and written once.
    fn adapter_sync(&self) -> Work {
        let is_gpu = self.spec.workers.device == Device::Cuda;
        let WeightSync { bytes, sent_bytes } = WeightSync::new(self.spec, self.whole);
        Work {
            bytes: bytes as f64 * (2.0 + if is_gpu { 1.0 } else { FRESH_MEMORY }),
            operations: self.layers() * OPERATIONS_OF_LAYER,
            exchanged: sent_bytes as f64,
            ..Work::in_numbers(self.numbers)
        }
    }
}
