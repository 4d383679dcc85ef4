//! A mixture of experts in place of a layer's feed-forward block: a router chooses experts for each token,
//! their outputs are weighed and added up. Training and rollout call the same [`Mixture::route`]; what they
//! multiply with is theirs.
//!
//! ```text
//! normed [t, d] -> router -> softmax, top k -> Routes
//! normed [t, d] -> a row for each choice, sorted by expert -> gate, up -> down -> weighed sum [t, d]
//! ```
//! Shapes: t tokens, d hidden width, e experts, k experts a token, n = t k rows, i width of an expert.

use rlt_api::plan::model_config::{Experts, HiddenActivation, ModelConfig};
use rlt_torch::ExpertRows;
use tch::{Kind, Tensor, no_grad};

use super::error::ModelError;
use super::ops;
use super::expert_lora::{ExpertLora, ExpertTensor};
use super::projection::{Adapter, LoraPair};

/// How a layer's router chooses and weighs.
#[derive(Clone, Copy, Debug)]
pub struct Mixture {
    num_experts: usize,
    per_token: usize,
    normalises_weights: bool,
    rounds_weights: bool,
}

/// Which experts compute which tokens, and with what weight.
#[derive(Debug)]
pub struct Routes {
    /// Probabilities of all experts, f32 [t, e], with the router's graph behind them.
    pub probabilities_te: Tensor,
    /// Weights of the chosen ones, [t, k], likewise.
    pub weights_tk: Tensor,
    /// The chosen ones of each token, the likeliest first: t times k numbers.
    pub choices: Vec<i64>,
    /// Their rows, sorted by expert.
    pub rows: ExpertRows,
}

/// What a mixture of experts multiplies with.
pub trait ExpertProducts {
    /// Why ranks that have a slice each could not add up.
    type Error;
    /// How its router chooses.
    fn mixture(&self) -> Mixture;
    /// The router's scores [t, e] in the compute dtype.
    fn scores(&self, normed_td: &Tensor) -> Tensor;
    /// Is told each batch of routes once.
    fn observe(&self, routes: &Routes);
    /// The weighed sum of the experts' outputs, [t, d].
    ///
    /// # Errors
    /// [`Self::Error`].
    fn outputs(&self, normed_td: &Tensor, routes: &Routes) -> Result<Tensor, Self::Error>;
    /// The gate of the feed-forward block beside the experts, [t, 1]; `None` where there is none.
    fn shared_gate(&self, normed_td: &Tensor) -> Option<Tensor>;
}

impl Mixture {
    fn of(experts: &Experts) -> Self {
        Self {
            num_experts: experts.num_experts,
            per_token: experts.num_experts_per_token,
            normalises_weights: experts.normalises_weights,
            rounds_weights: experts.rounds_weights,
        }
    }

    /// Chooses experts by the router's `scores_te`, as transformers does: softmax in f32, the likeliest k.
    pub(crate) fn route(&self, scores_te: &Tensor) -> Routes {
        let probabilities_te = scores_te.softmax(-1, Kind::Float);
        let (chosen_tk, choices_tk) = probabilities_te.topk(self.per_token as i64, -1, true, true);
        let weights_tk = match self.normalises_weights {
            true => &chosen_tk / chosen_tk.sum_dim_intlist(-1, true, Kind::Float),
            false => chosen_tk,
        };
        let weights_tk = if self.rounds_weights { weights_tk.to_kind(scores_te.kind()) } else { weights_tk };
        let choices = numbers(&choices_tk);
        let rows = ExpertRows::new(&choices, self.per_token, self.num_experts, scores_te.device());
        Routes { probabilities_te, weights_tk, choices, rows }
    }
}

/// Integers of a tensor on the host.
fn numbers(tensor: &Tensor) -> Vec<i64> {
    let mut numbers = vec![0; tensor.numel()];
    let flat = no_grad(|| tensor.to_device(tch::Device::Cpu).contiguous().view(-1));
    flat.copy_data(&mut numbers, tensor.numel());
    numbers
}

/// Router and experts of one layer.
#[derive(Debug)]
pub(crate) struct ExpertWeights {
    /// Module name of the mixture, for example `model.layers.0.mlp`.
    pub(crate) module: String,
    pub(crate) mixture: Mixture,
    /// How many layers before this one have experts.
    pub(super) place: usize,
    /// [e, d].
    pub(crate) router: Tensor,
    /// Gate above up, [e, 2 i, d].
    pub(crate) gate_up: Tensor,
    /// [e, d, i].
    pub(crate) down: Tensor,
    /// Adapters of `gate_up` and `down`.
    pub(super) lora: [Option<ExpertLora>; 2],
    /// The adapter of `router`.
    pub(super) router_lora: Option<LoraPair>,
}

impl ExpertWeights {
    /// Those of a layer, its weights by `of` from name and shape.
    pub(super) fn new(
        config: &ModelConfig,
        layer_idx: usize,
        of: impl Fn(&str, &[i64]) -> Result<Tensor, ModelError>,
    ) -> Result<Option<Self>, ModelError> {
        let Some(experts) = config.experts_of(layer_idx) else { return Ok(None) };
        let [num, width, hidden] =
            [experts.num_experts, experts.intermediate_size, config.hidden_size].map(|size| size as i64);
        let module = format!("model.layers.{layer_idx}.mlp");
        Ok(Some(Self {
            router: of(&format!("{module}.gate.weight"), &[num, hidden])?,
            gate_up: of(&format!("{module}.experts.gate_up_proj"), &[num, 2 * width, hidden])?,
            down: of(&format!("{module}.experts.down_proj"), &[num, hidden, width])?,
            mixture: Mixture::of(experts),
            place: experts.layers[..layer_idx].iter().filter(|has_experts| **has_experts).count(),
            lora: [None, None],
            router_lora: None,
            module,
        }))
    }

    /// Every parameter by its name, in checkpoint order.
    pub(super) fn parameters(&self) -> [(String, &Tensor); 3] {
        let Self { module, router, gate_up, down, .. } = self;
        [
            (format!("{module}.gate.weight"), router),
            (format!("{module}.experts.gate_up_proj"), gate_up),
            (format!("{module}.experts.down_proj"), down),
        ]
    }

    /// The same, to be replaced.
    pub(super) fn parameters_mut(&mut self) -> [&mut Tensor; 3] {
        let Self { router, gate_up, down, .. } = self;
        [router, gate_up, down]
    }

    /// The same experts with other weights.
    pub(super) fn map(&self, of: &impl Fn(&Tensor) -> Tensor) -> Self {
        Self {
            module: self.module.clone(),
            mixture: self.mixture,
            place: self.place,
            router: of(&self.router),
            gate_up: of(&self.gate_up),
            down: of(&self.down),
            lora: [None, None],
            router_lora: None,
        }
    }

    /// The router's scores [t, e]. Its weight is folded before it is multiplied with: where rollout and actor
    /// added up in another order, they would choose other experts.
    pub(super) fn scores(&self, normed_td: &Tensor, adapter: Adapter) -> Tensor {
        let router = match (&self.router_lora, adapter) {
            (Some(lora), Adapter::On) => lora.folded_into(&self.router),
            _ => self.router.shallow_clone(),
        };
        normed_td.linear(&router.to_kind(normed_td.kind()), None::<Tensor>)
    }

    /// The weighed sum of the experts' outputs, [t, d].
    pub(super) fn outputs(
        &self,
        normed_td: &Tensor,
        routes: &Routes,
        (activation, adapter): (HiddenActivation, Adapter),
    ) -> Tensor {
        let product = |tensor: ExpertTensor, x_ni: &Tensor| {
            let base = routes.rows.linear(x_ni, &self.tensor(tensor).to_kind(x_ni.kind()));
            match (self.lora_of(tensor), adapter) {
                (Some(lora), Adapter::On) => lora.add_to(base, x_ni, routes),
                _ => base,
            }
        };
        let gate_up = product(ExpertTensor::GateUp, &routes.rows.gather(normed_td));
        let activated = ops::gated_activation_packed(&gate_up, activation);
        routes.rows.combine(&product(ExpertTensor::Down, &activated), &routes.weights_tk)
    }
}
