//! A mixture of experts as kernels that write into given buffers: seven launches, however rows are
//! distributed over experts, and four more with a shared expert.
//!
//! ```text
//! router, choice, rows sorted by expert, gate and up of rows, gate, down of rows, sum with shared expert
//! ```
//! With tensor parallelism ranks have shards of each expert; the caller all-reduces the sums. Shapes: k
//! experts a token, n = rows * k.

use rlt_models::ModelConfig;
use rlt_torch::cuda::{CombineRows, GroupedLinear, Kernels, RouteExperts, SortRows, SwiGlu};
use rlt_torch::{Activation, Error};
use tch::{Device, Kind, Tensor};

use crate::experts::PackedExperts;
use crate::product::Workspace;
use crate::weights::PackedBlock;

/// Output buffers of the layers with experts, for a number of rows.
#[derive(Debug)]
pub(super) struct ExpertBuffers {
    /// Logits of the router, `[rows, e]`.
    logits: Tensor,
    /// Chosen experts, i32 `[rows, k]`.
    choices: Tensor,
    /// Weights of the chosen experts, f32 `[rows, k]`.
    weights: Tensor,
    /// The (token, choice) pair of each row sorted by expert, i32 `[n]`; `inverse` is the row of each pair.
    order: Tensor,
    inverse: Tensor,
    /// End of each expert's rows in `order`, i32 `[e]`.
    ends: Tensor,
    /// Gate and up of the sorted rows, `[n, 2 i]`.
    gate_up: Tensor,
    /// Activations of the sorted rows, `[n, i]`.
    activated: Tensor,
    /// Outputs of the sorted rows, `[n, d]`.
    outputs: Tensor,
    shared_expert: Option<SharedExpertBuffers>,
}

/// Output buffers of the shared expert.
#[derive(Debug)]
struct SharedExpertBuffers {
    gate_up: Tensor,
    activated: Tensor,
    /// Output of the shared expert, `[rows, d]`.
    output: Tensor,
    /// Gate logits of the shared expert, `[rows, 1]`.
    gate: Tensor,
}

impl ExpertBuffers {
    /// Allocates buffers for at most `rows` rows of a model with the widths of `shard`; `None` without
    /// experts.
    pub(super) fn new(rows: usize, shard: &ModelConfig, (kind, device): (Kind, Device)) -> Option<Self> {
        let experts = shard.experts.as_ref()?;
        let (hidden, width) = (shard.hidden_size, experts.intermediate_size);
        let (count, per_token) = (experts.num_experts, experts.num_experts_per_token);
        let n = rows * per_token;
        let empty = |size: [usize; 2]| Tensor::empty(size.map(|len| len as i64), (kind, device));
        let ints = |len: usize| Tensor::empty([len as i64], (Kind::Int, device));
        let of_choices = [rows as i64, per_token as i64];
        Some(Self {
            logits: empty([rows, count]),
            choices: Tensor::empty(of_choices, (Kind::Int, device)),
            weights: Tensor::empty(of_choices, (Kind::Float, device)),
            order: ints(n),
            inverse: ints(n),
            ends: ints(count),
            gate_up: empty([n, 2 * width]),
            activated: empty([n, width]),
            outputs: empty([n, hidden]),
            shared_expert: experts.shared_intermediate_size.map(|width| SharedExpertBuffers {
                gate_up: empty([rows, 2 * width]),
                activated: empty([rows, width]),
                output: empty([rows, hidden]),
                gate: empty([rows, 1]),
            }),
        })
    }

    /// Views of the buffers for fewer rows.
    pub(super) fn of_rows(&self, rows: usize) -> Self {
        let first = |tensor: &Tensor, len: usize| tensor.narrow(0, 0, len as i64);
        let n = rows * self.choices.size()[1] as usize;
        Self {
            logits: first(&self.logits, rows),
            choices: first(&self.choices, rows),
            weights: first(&self.weights, rows),
            order: first(&self.order, n),
            inverse: first(&self.inverse, n),
            ends: self.ends.shallow_clone(),
            gate_up: first(&self.gate_up, n),
            activated: first(&self.activated, n),
            outputs: first(&self.outputs, n),
            shared_expert: self.shared_expert.as_ref().map(|shared_expert| SharedExpertBuffers {
                gate_up: first(&shared_expert.gate_up, rows),
                activated: first(&shared_expert.activated, rows),
                output: first(&shared_expert.output, rows),
                gate: first(&shared_expert.gate, rows),
            }),
        }
    }
}

/// The packed weights of a layer with experts, and the settings of its kernels.
pub(super) struct MoeLaunch<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) activation: Activation,
    pub(super) experts: &'a PackedExperts,
    /// The shared expert; `None` without one.
    pub(super) block: Option<&'a PackedBlock>,
    /// Buffers of products with unmerged adapters.
    pub(super) scratch: &'a Workspace,
}

impl MoeLaunch<'_> {
    /// Writes the output of the experts for `input`, `[rows, d]`, including the shared expert, to `out`, and
    /// digests of the choices to `digests`, i32 `[rows]`.
    pub(super) fn launch(
        &self,
        input: &Tensor,
        buffers: &ExpertBuffers,
        digests: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<(), Error> {
        let Self { kernels, activation, experts, block, scratch } = *self;
        let ExpertBuffers { logits, choices, weights, order, inverse, ends, .. } = buffers;
        experts.router().forward_into(input, logits)?;
        let (rule, bias) = (experts.mixture().rule(), experts.choice_bias());
        RouteExperts { logits, bias, rule, choices, weights, digests }.launch(kernels)?;
        SortRows { choices: &choices.view(-1), order, inverse, ends }.launch(kernels)?;
        let stacked = experts.stacked()?;
        let (gate_up, places) = (&buffers.gate_up, Some(order));
        GroupedLinear { rows: input, places, weight: &stacked.gate_up, ends, out: gate_up }
            .launch(kernels)?;
        SwiGlu { gate_up, activation, out: &buffers.activated }.launch(kernels)?;
        let (rows, outputs) = (&buffers.activated, &buffers.outputs);
        GroupedLinear { rows, places: None, weight: &stacked.down, ends, out: outputs }.launch(kernels)?;
        let mut combine =
            CombineRows { rows: outputs, weights, inverse, shared_expert: None, gate: None, out };
        if let Some((block, buffers)) = block.zip(buffers.shared_expert.as_ref()) {
            let SharedExpertBuffers { gate_up, activated, output, gate } = buffers;
            block.gate_up.forward_into(input, gate_up, kernels, scratch)?;
            SwiGlu { gate_up, activation, out: activated }.launch(kernels)?;
            block.down.forward_into(activated, output, kernels, scratch)?;
            combine.shared_expert = Some(output);
            if let Some(product) = &experts.shared_gate {
                product.forward_into(input, gate, kernels, scratch)?;
                combine.gate = Some(gate);
            }
        }
        combine.launch(kernels)
    }
}
