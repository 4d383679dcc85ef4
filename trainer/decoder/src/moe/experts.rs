//! A mixture of experts instead of a layer's feed-forward block: a router chooses experts for each token, and
//! their outputs are summed with weights. Training and rollout call the same [`Router::route`], with
//! products of their own.
//!
//! ```text
//! normed [t, d] -> router -> softmax, top k -> RoutedTokens
//! normed [t, d] -> a row for each choice, sorted by expert -> gate, up -> down -> weighed sum [t, d]
//! ```
//! Shapes: t tokens, d hidden width, e experts, k experts a token, n = t k rows, i width of an expert.

use rlt_layout::AxisPlace;
use rlt_models::{ExpertForm, ExpertGroups, Experts, HiddenActivation, ModelConfig, RouterScores, Routing};
use rlt_torch::cuda::{ExpertScores, RouteRule};
use rlt_torch::{DeviceRoutes, ExpertRows};
use tch::{Kind, Tensor, no_grad};

use super::super::error::ModelError;
use super::super::ops;
use super::super::projection::{Adapter, LoraPair};
use super::expert_lora::{ExpertLora, ExpertTensor};

/// Constant that is added to the sum of sigmoid scores before they are divided by it, as in transformers.
const SIGMOID_SUM_EPS: f64 = 1e-20;

/// Rule by which a layer's router chooses experts and weights them.
#[derive(Clone, Copy, Debug)]
pub struct Router {
    num_experts: usize,
    per_token: usize,
    normalises_weights: bool,
    rounds_weights: bool,
    routing: Routing,
}

/// Chosen experts of each token, with their weights.
#[derive(Debug)]
pub struct RoutedTokens {
    /// Probabilities of all experts, f32 [t, e], with the router's autograd graph. Sigmoid scores are divided
    /// by their sum.
    pub probabilities_te: Tensor,
    /// Weights of the chosen experts, [t, k], with the router's autograd graph.
    pub weights_tk: Tensor,
    /// The chosen experts.
    pub choices: ExpertIds,
    /// Rows of tokens by chosen expert, sorted by expert.
    pub rows: ExpertRows,
}

/// Chosen experts of each token, the likeliest first; of equally likely ones the lower index first.
#[derive(Debug)]
pub enum ExpertIds {
    /// Expert indices on the host, t times k.
    Host(Vec<i64>),
    /// Expert indices on a GPU; the host does not wait for them.
    Device(DeviceRoutes),
}

/// The products of a mixture of experts.
pub trait ExpertProducts {
    /// Failure of an exchange between tensor-parallel ranks, as in [`super::super::Projections::Error`].
    type Error;
    /// The rule of the router.
    fn mixture(&self) -> Router;
    /// The router's logits [t, e], in the compute dtype or a wider one.
    fn scores(&self, normed_td: &Tensor) -> Tensor;
    /// Bias that is added to scores only for the choice of experts, `f32 [e]`.
    fn choice_bias(&self) -> Option<&Tensor>;
    /// Observes the routes of a batch; called once for each.
    fn observe(&self, routes: &RoutedTokens);
    /// The weighted sum of the chosen experts' outputs, [t, d].
    ///
    /// # Errors
    /// [`Self::Error`].
    fn outputs(&self, normed_td: &Tensor, routes: &RoutedTokens) -> Result<Tensor, Self::Error>;
    /// The gate logits of the shared expert, [t, 1]; `None` if it has no gate.
    fn shared_gate(&self, normed_td: &Tensor) -> Option<Tensor>;
}

impl Router {
    fn of(experts: &Experts) -> Self {
        Self {
            num_experts: experts.num_experts,
            per_token: experts.num_experts_per_token,
            normalises_weights: experts.normalises_weights,
            rounds_weights: experts.rounds_weights,
            routing: experts.routing,
        }
    }

    /// Chooses experts by the router's `logits_te`, as transformers does: the best k by their f32 scores.
    pub(crate) fn route(&self, logits_te: &Tensor, choice_bias: Option<&Tensor>) -> RoutedTokens {
        let scores_te = match self.routing.scores {
            RouterScores::Softmax => logits_te.softmax(-1, Kind::Float),
            RouterScores::Sigmoid => row_by_row_sigmoid(&logits_te.to_kind(Kind::Float)),
        };
        let (choices_tk, choices, rows) = match logits_te.device().is_cuda() {
            true => self.chosen_on_device(logits_te, choice_bias),
            false => self.chosen(&scores_te, choice_bias),
        };
        let chosen_tk = scores_te.gather(-1, &choices_tk, false);
        let weights_tk = match (self.normalises_weights, self.routing.scores) {
            (false, _) => chosen_tk,
            (true, RouterScores::Softmax) => &chosen_tk / chosen_tk.sum_dim_intlist(-1, true, Kind::Float),
            (true, RouterScores::Sigmoid) => {
                &chosen_tk / (chosen_tk.sum_dim_intlist(-1, true, Kind::Float) + SIGMOID_SUM_EPS)
            }
        };
        let weights_tk = if self.routing.scale == 1.0 { weights_tk } else { weights_tk * self.routing.scale };
        let weights_tk = if self.rounds_weights { weights_tk.to_kind(logits_te.kind()) } else { weights_tk };
        let probabilities_te = match self.routing.scores {
            RouterScores::Softmax => scores_te,
            RouterScores::Sigmoid => &scores_te / scores_te.sum_dim_intlist(-1, true, Kind::Float),
        };
        RoutedTokens { probabilities_te, weights_tk, choices, rows }
    }

    /// Chooses the best experts by their scores on the host; the first result is i64 [t, k].
    fn chosen(&self, scores_te: &Tensor, choice_bias: Option<&Tensor>) -> (Tensor, ExpertIds, ExpertRows) {
        let compared_te = self.choice(scores_te, choice_bias).unwrap_or_else(|| scores_te.detach());
        let (_, order_te) = compared_te.sort_stable(true, -1, true);
        let choices_tk = order_te.narrow(-1, 0, self.per_token as i64);
        let choices = numbers(&choices_tk);
        let rows = ExpertRows::new(&choices, self.per_token, self.num_experts, scores_te.device());
        (choices_tk, ExpertIds::Host(choices), rows)
    }

    /// Chooses experts on a GPU, in three launches whatever the choice is. Models with groups of experts run
    /// only on CPUs (`rlt_api::conflicts`).
    fn chosen_on_device(
        &self,
        logits_te: &Tensor,
        choice_bias: Option<&Tensor>,
    ) -> (Tensor, ExpertIds, ExpertRows) {
        let bias_e = choice_bias.map(|bias_e| bias_e.to_kind(Kind::Float));
        let routes = DeviceRoutes::new(logits_te, bias_e.as_ref(), self.rule(), self.per_token);
        let rows = ExpertRows::on_device(&routes.choices_tk, self.num_experts);
        (routes.choices_tk.to_kind(Kind::Int64), ExpertIds::Device(routes), rows)
    }

    /// The router's rule in the form that a kernel takes.
    pub fn rule(&self) -> RouteRule {
        RouteRule {
            scores: match self.routing.scores {
                RouterScores::Softmax => ExpertScores::Softmax,
                RouterScores::Sigmoid => ExpertScores::Sigmoid,
            },
            normalises: self.normalises_weights,
            rounds: self.rounds_weights,
            scale: self.routing.scale,
        }
    }

    /// Returns the values by which experts are chosen, if they differ from the scores: the bias is added, and
    /// experts outside of the best groups are excluded. The values have no gradient, because choices have
    /// none.
    fn choice(&self, scores_te: &Tensor, choice_bias: Option<&Tensor>) -> Option<Tensor> {
        if self.routing.groups.is_none() && choice_bias.is_none() {
            return None;
        }
        let scores_te = scores_te.detach();
        let biased_te = match choice_bias {
            Some(bias_e) => scores_te + bias_e.to_kind(Kind::Float),
            None => scores_te,
        };
        let Some(ExpertGroups { count, chosen, by_best }) = self.routing.groups else {
            return Some(biased_te);
        };
        let of_groups = biased_te.unflatten(-1, [count as i64, -1]);
        let (best, _) = of_groups.topk(by_best as i64, -1, true, true);
        let (_, groups) = best.sum_dim_intlist(-1, false, Kind::Float).topk(chosen as i64, -1, true, true);
        let out =
            Tensor::full([groups.size()[0], count as i64], f64::NEG_INFINITY, (Kind::Float, groups.device()));
        let is_out = out.scatter_value(-1, &groups, 0.0);
        Some((of_groups + is_out.unsqueeze(-1)).flatten(1, 2))
    }

    /// The router's compute dtype in a layer that computes in `kind`.
    pub fn router_kind(&self, kind: Kind) -> Kind {
        match kind {
            Kind::Half | Kind::BFloat16 if self.routing.in_fp32 => Kind::Float,
            kind => kind,
        }
    }
}

/// The sigmoid, computed as a softmax with 0. libtorch's sigmoid rounds the last values of a tensor
/// differently from the others, so a token's scores would depend on the other tokens.
fn row_by_row_sigmoid(x: &Tensor) -> Tensor {
    Tensor::stack(&[x, &x.zeros_like()], -1).softmax(-1, Kind::Float).select(-1, 0)
}

/// Copies the integers of a tensor to the host.
fn numbers(tensor: &Tensor) -> Vec<i64> {
    let mut numbers = vec![0; tensor.numel()];
    let flat = no_grad(|| tensor.to_device(tch::Device::Cpu).contiguous().view(-1));
    flat.copy_data(&mut numbers, tensor.numel());
    numbers
}

/// Name of the choice's bias inside the module.
const CHOICE_BIAS: &str = "gate.e_score_correction_bias";

/// Names of biases inside the module: of the router, of gate and up, of down.
const BIASES: [&str; 3] = ["router.bias", "experts.gate_up_proj_bias", "experts.down_proj_bias"];

/// Router and experts of one layer.
#[derive(Debug)]
pub struct ExpertWeights {
    /// Module name of the mixture, for example `model.layers.0.mlp`.
    pub(crate) module: String,
    /// Router that chooses the experts of a token.
    pub mixture: Router,
    /// Number of layers with experts before this one.
    pub(crate) place: usize,
    /// Name of the router inside the module.
    pub(crate) router_module: &'static str,
    /// Weight of the router, [e, d].
    pub router: Tensor,
    /// Bias of the choice, f32 [e]; never trained here.
    pub choice_bias: Option<Tensor>,
    /// Form of the experts, which determines the layout of their tensors.
    pub form: ExpertForm,
    /// Gate and up projections, [e, 2 i, d], gate first; clamped experts have [e, d, 2 i], gate and up
    /// interleaved.
    pub(crate) gate_up: Tensor,
    /// Down projections, [e, d, i]; of clamped experts [e, i, d].
    pub(crate) down: Tensor,
    /// Biases of the router [e], of gate and up [e, 2 i] and of down [e, d]; only clamped experts have them.
    pub biases: Option<[Tensor; 3]>,
    /// Adapters of `gate_up` and `down`.
    pub(crate) lora: [Option<ExpertLora>; 2],
    /// The adapter of `router`.
    pub(crate) router_lora: Option<LoraPair>,
}

impl ExpertWeights {
    /// Makes the experts of a layer, `None` if it has none; `of` gives the weight for a name and a shape.
    pub(crate) fn new(
        config: &ModelConfig,
        layer_idx: usize,
        of: impl Fn(&str, &[i64]) -> Result<Tensor, ModelError>,
    ) -> Result<Option<Self>, ModelError> {
        let Some(experts) = config.experts_of(layer_idx) else { return Ok(None) };
        let [num, width, hidden] =
            [experts.num_experts, experts.intermediate_size, config.hidden_size].map(|size| size as i64);
        let module = format!("model.layers.{layer_idx}.mlp");
        let transposed = experts.form == ExpertForm::Clamped;
        let laid = |outputs, inputs| if transposed { [num, inputs, outputs] } else { [num, outputs, inputs] };
        let biases = match experts.form {
            ExpertForm::Gated => None,
            ExpertForm::Clamped => Some([
                of(&format!("{module}.{}", BIASES[0]), &[num])?,
                of(&format!("{module}.{}", BIASES[1]), &[num, 2 * width])?,
                of(&format!("{module}.{}", BIASES[2]), &[num, hidden])?,
            ]),
        };
        Ok(Some(Self {
            router_module: experts.names.router,
            router: of(&format!("{module}.{}.weight", experts.names.router), &[num, hidden])?,
            choice_bias: match experts.routing.has_choice_bias {
                true => Some(of(&format!("{module}.{CHOICE_BIAS}"), &[num])?.set_requires_grad(false)),
                false => None,
            },
            gate_up: of(&format!("{module}.experts.gate_up_proj"), &laid(2 * width, hidden))?,
            down: of(&format!("{module}.experts.down_proj"), &laid(hidden, width))?,
            form: experts.form,
            biases,
            mixture: Router::of(experts),
            place: experts.layers[..layer_idx].iter().filter(|has_experts| **has_experts).count(),
            lora: [None, None],
            router_lora: None,
            module,
        }))
    }

    /// Every parameter by its name, in checkpoint order.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = (String, &Tensor)> {
        let Self { module, router, gate_up, down, choice_bias, .. } = self;
        let weights = [
            (self.router_name(), router),
            (format!("{module}.experts.gate_up_proj"), gate_up),
            (format!("{module}.experts.down_proj"), down),
        ];
        weights
            .into_iter()
            .chain(choice_bias.iter().map(move |bias| (format!("{module}.{CHOICE_BIAS}"), bias)))
            .chain(
                BIASES
                    .into_iter()
                    .zip(self.biases.iter().flatten())
                    .map(move |(name, bias)| (format!("{module}.{name}"), bias)),
            )
    }

    /// Every parameter, to be replaced.
    pub(crate) fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        let Self { router, gate_up, down, choice_bias, biases, .. } = self;
        [router, gate_up, down].into_iter().chain(choice_bias).chain(biases.iter_mut().flatten())
    }

    /// Returns a copy without adapters, whose weights `of` makes from these.
    pub(crate) fn map(&self, of: &impl Fn(&Tensor) -> Tensor) -> Self {
        Self {
            module: self.module.clone(),
            mixture: self.mixture,
            place: self.place,
            router_module: self.router_module,
            router: of(&self.router),
            choice_bias: self.choice_bias.as_ref().map(|bias| of(bias).set_requires_grad(false)),
            form: self.form,
            gate_up: of(&self.gate_up),
            down: of(&self.down),
            biases: self.biases.as_ref().map(|biases| biases.each_ref().map(of)),
            lora: [None, None],
            router_lora: None,
        }
    }

    /// The router's logits [t, e]. The adapter is folded into the weight before the product: if rollout and
    /// actor summed in different orders, they would choose different experts.
    pub(crate) fn scores(&self, normed_td: &Tensor, adapter: Adapter) -> Tensor {
        let router = match (&self.router_lora, adapter) {
            (Some(lora), Adapter::On) => lora.folded_into(&self.router),
            _ => self.router.shallow_clone(),
        };
        let kind = self.mixture.router_kind(normed_td.kind());
        let bias = self.biases.as_ref().map(|[bias, ..]| bias.to_kind(kind));
        rlt_torch::linear(&normed_td.to_kind(kind), &router.to_kind(kind), bias.as_ref())
    }

    /// A view of the weights of all experts or of one with outputs before inputs.
    pub fn outputs_first(&self, weight: &Tensor) -> Tensor {
        match self.form {
            ExpertForm::Gated => weight.shallow_clone(),
            ExpertForm::Clamped => weight.transpose(-1, -2),
        }
    }

    /// The biases of gate and up or of down, [e, out].
    pub fn bias_of(&self, tensor: ExpertTensor) -> Option<&Tensor> {
        let [_, gate_up, down] = self.biases.as_ref()?;
        Some(match tensor {
            ExpertTensor::GateUp => gate_up,
            ExpertTensor::Down => down,
        })
    }

    /// The weighted sum of the chosen experts' outputs, [t, d].
    pub(crate) fn outputs(
        &self,
        normed_td: &Tensor,
        routes: &RoutedTokens,
        activation: HiddenActivation,
        adapter: Adapter,
    ) -> Tensor {
        let x_nd = routes.rows.gather(normed_td);
        let y_nd = self.of_rows(&x_nd, &routes.rows, AxisPlace::ALONE, activation, adapter);
        routes.rows.combine(&y_nd, &routes.weights_tk)
    }

    /// The outputs of the local experts, those of `shard`, for their sorted `rows`: [n, d] to [n, d].
    pub(crate) fn of_rows(
        &self,
        x_nd: &Tensor,
        rows: &ExpertRows,
        shard: AxisPlace,
        activation: HiddenActivation,
        adapter: Adapter,
    ) -> Tensor {
        let product = |tensor: ExpertTensor, x_ni: &Tensor| {
            let weight_eoi = self.outputs_first(self.tensor(tensor)).to_kind(x_ni.kind());
            let base = rows.linear(x_ni, &weight_eoi);
            let base = match self.bias_of(tensor) {
                Some(bias_eo) => base + rows.of_rows(&bias_eo.to_kind(x_ni.kind())),
                None => base,
            };
            match (self.lora_of(tensor), adapter) {
                (Some(lora), Adapter::On) => lora.add_to(base, x_ni, rows, shard),
                _ => base,
            }
        };
        let gate_up = product(ExpertTensor::GateUp, x_nd);
        let activated = match self.form {
            ExpertForm::Gated => ops::gated_activation_packed(&gate_up, activation),
            ExpertForm::Clamped => ops::clamped_activation(&gate_up),
        };
        product(ExpertTensor::Down, &activated)
    }
}
