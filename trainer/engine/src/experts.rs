//! A layer's experts in the engine: each expert's gate and up are fused, and packed for few rows on a CPU or
//! stacked on a GPU.
//!
//! Each expert multiplies the rows of the tokens that chose it. On a CPU in f32 a row has the same bits in
//! any batch, the router's included, so that a sample does not depend on its batch.

use rlt_decoder::{
    Adapter, DecoderLayer, ExpertTensor, ExpertWeights, RoutedTokens, Router, TpSharding, clamped_activation,
    gated_activation_packed,
};
use rlt_models::{ExpertForm, HiddenActivation};
use rlt_torch::{PackedLinear, WeightArena, has_one_order};
use tch::{Kind, Tensor};

use super::grouped_experts::GroupedExperts;
use super::product::Product;

/// Packed weights of experts.
#[derive(Debug)]
enum Packed {
    /// Gate and up, and down, of each expert, on a CPU.
    Each(Vec<[ExpertProduct; 2]>),
    /// Stacked weights of all experts, on a GPU.
    Stacked(GroupedExperts),
}

/// Router and experts of a layer, packed.
#[derive(Debug)]
pub(super) struct PackedExperts {
    mixture: Router,
    choice_bias: Option<Tensor>,
    router: PackedLinear,
    experts: Packed,
    /// Gate of the shared expert; `None` if it has none.
    pub(super) shared_gate: Option<Product>,
    activation: HiddenActivation,
    form: ExpertForm,
}

impl PackedExperts {
    /// Packs the experts of `layer` in `kind`, or this rank's shard of each by `sharding`; `None` if the
    /// layer has none. `shared_gate` is given if the gate's adapter is unmerged; otherwise the gate is packed
    /// too.
    pub(super) fn pack(
        layer: &DecoderLayer,
        sharding: &TpSharding<'_>,
        kind: Kind,
        shares: bool,
        rows_hint: i64,
        shared_gate: Option<Product>,
        arena: &mut WeightArena,
    ) -> Result<Option<Self>, rlt_torch::Error> {
        let Some(weights) = layer.experts() else { return Ok(None) };
        // The unit is resharded afterwards, so packed tensors must not alias its memory.
        let own = |weight: &Tensor, kind: Kind| {
            let cast = weight.detach().to_kind(kind).contiguous();
            if shares || cast.data_ptr() != weight.data_ptr() { cast } else { cast.copy() }
        };
        let router_kind = weights.mixture.router_kind(kind);
        let router = own(&weights.merged_router(Adapter::On), router_kind);
        // The arena has space only for values of the engine's dtype.
        let router_arena = if router_kind == kind { Some(&mut *arena) } else { None };
        let bias = weights.biases.as_ref().map(|[bias, ..]| bias.detach().to_kind(router_kind).copy());
        let router = PackedLinear::new(&router, bias.as_ref(), rows_hint, router_arena)?;
        let choice_bias = weights.choice_bias.as_ref().map(|bias| bias.detach().copy());
        let mut packed = |weight: &Tensor, bias: Option<Tensor>| {
            PackedLinear::new(&own(weight, kind), bias.as_ref(), rows_hint, Some(&mut *arena))
        };
        let shared_gate = match (shared_gate, layer.shared_gate()) {
            (None, Some(gate)) => Some(Product::Packed(packed(&gate.merged(Adapter::On).weight, None)?)),
            (given, _) => given,
        };
        let experts = match weights.router.device().is_cuda() {
            true => Packed::Stacked(GroupedExperts::pack(weights, sharding, kind, shares)?),
            false => Packed::Each(packed_each(weights, sharding, kind, &mut packed)?),
        };
        let activation = layer.activation();
        Ok(Some(Self {
            mixture: weights.mixture,
            choice_bias,
            router,
            experts,
            shared_gate,
            activation,
            form: weights.form,
        }))
    }

    pub(super) fn num_bytes(&self) -> usize {
        let experts = match &self.experts {
            Packed::Each(experts) => experts.iter().flatten().map(|product| product.packed.num_bytes()).sum(),
            Packed::Stacked(stacked) => stacked.num_bytes(),
        };
        experts + self.router.num_bytes() + self.shared_gate.as_ref().map_or(0, Product::num_bytes)
    }

    pub(super) fn mixture(&self) -> Router {
        self.mixture
    }

    pub(super) fn router(&self) -> &PackedLinear {
        &self.router
    }

    /// The stacked weights of all experts on a GPU.
    pub(super) fn stacked(&self) -> Result<&GroupedExperts, rlt_torch::Error> {
        match &self.experts {
            Packed::Stacked(stacked) => Ok(stacked),
            Packed::Each(_) => Err(rlt_torch::Error::Argument {
                act: "products of experts on a GPU",
                expected: "weights that are there".into(),
                got: "weights packed for a CPU".into(),
            }),
        }
    }

    pub(super) fn scores(&self, normed_td: &Tensor) -> Tensor {
        self.router.forward(&normed_td.to_kind(self.mixture.router_kind(normed_td.kind())))
    }

    pub(super) fn choice_bias(&self) -> Option<&Tensor> {
        self.choice_bias.as_ref()
    }

    pub(super) fn shared_gate(&self, normed_td: &Tensor) -> Option<Tensor> {
        self.shared_gate.as_ref().map(|gate| gate.forward(normed_td))
    }

    /// The weighted sum of the chosen experts' outputs [t, d], or this rank's summand of it.
    pub(super) fn outputs(&self, normed_td: &Tensor, routes: &RoutedTokens) -> Tensor {
        let rows_nd = routes.rows.gather(normed_td);
        let experts: &[[ExpertProduct; 2]] = match &self.experts {
            Packed::Each(experts) => experts,
            Packed::Stacked(_) => &[],
        };
        let outputs = routes.rows.of_experts().map(|(expert, rows)| {
            let [gate_up, down] = &experts[expert];
            let own_nd = rows_nd.narrow(0, rows.start, rows.end - rows.start);
            let gate_up_ni = gate_up.forward(&own_nd);
            down.forward(&match self.form {
                ExpertForm::Gated => gated_activation_packed(&gate_up_ni, self.activation),
                ExpertForm::Clamped => clamped_activation(&gate_up_ni),
            })
        });
        let outputs: Vec<Tensor> = outputs.collect();
        routes.rows.combine(&Tensor::cat(&outputs, 0), &routes.weights_tk)
    }
}

/// One of an expert's two products.
#[derive(Debug)]
struct ExpertProduct {
    /// The packed weight, with the bias unless that is separate.
    packed: PackedLinear,
    /// Bias that is added after the product is rounded, as the actor does, so that rollout and training have
    /// the same bits; `None` if `packed` contains the bias.
    bias_apart: Option<Tensor>,
}

impl ExpertProduct {
    fn forward(&self, x: &Tensor) -> Tensor {
        let product = self.packed.forward(x);
        match &self.bias_apart {
            Some(bias) => product + bias,
            None => product,
        }
    }
}

/// Packs the products of each expert, or this rank's shard of them, for a CPU.
fn packed_each(
    weights: &ExpertWeights,
    sharding: &TpSharding<'_>,
    kind: Kind,
    packed: &mut impl FnMut(&Tensor, Option<Tensor>) -> Result<PackedLinear, rlt_torch::Error>,
) -> Result<Vec<[ExpertProduct; 2]>, rlt_torch::Error> {
    let mut product = |weight: &Tensor, bias: Option<Tensor>| {
        let (inside, bias_apart) = if has_one_order(kind) { (None, bias) } else { (bias, None) };
        packed(weight, inside).map(|packed| ExpertProduct { packed, bias_apart })
    };
    let products = |expert: i64| {
        let merged = |tensor| weights.outputs_first(&weights.merged(tensor, expert, Adapter::On));
        let bias = |tensor| {
            let bias_eo = weights.bias_of(tensor)?;
            Some(bias_eo.detach().select(0, expert).to_kind(kind).copy())
        };
        let gate_up = sharding.expert_gate_up(&merged(ExpertTensor::GateUp));
        let down = sharding.expert_down(&merged(ExpertTensor::Down));
        let gate_up = product(&gate_up, bias(ExpertTensor::GateUp))?;
        Ok([gate_up, product(&down, bias(ExpertTensor::Down))?])
    };
    (0..weights.router.size()[0]).map(products).collect()
}
