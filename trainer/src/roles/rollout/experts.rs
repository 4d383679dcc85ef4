//! A layer's experts in the engine: each expert's gate and up fused, packed for few rows.
//!
//! Each expert multiplies the rows of the tokens that chose it. On a CPU in f32 a row has the same bits
//! in any batch, the router's included, so that a sample does not depend on its batch.

use rlt_api::plan::model_config::{ExpertForm, HiddenActivation};
use rlt_torch::{Block, PackedLinear};
use tch::{Kind, Tensor};

use super::product::Product;
use crate::model::tp_shards::TpCut;
use crate::model::{
    Adapter, DecoderLayer, ExpertTensor, Mixture, Routes, clamped_activation, gated_activation_packed,
};

/// Router and experts of a layer, packed.
#[derive(Debug)]
pub(super) struct PackedExperts {
    mixture: Mixture,
    choice_bias: Option<Tensor>,
    router: PackedLinear,
    /// Gate above up, and down, of each expert.
    experts: Vec<[PackedLinear; 2]>,
    /// The gate of what stands beside them.
    pub(super) shared_gate: Option<Product>,
    activation: HiddenActivation,
    form: ExpertForm,
}

impl PackedExperts {
    /// Packs those of `layer` in `kind`, or this rank's `cut` of each; `None` where it has none. The gate of
    /// what stands beside them is given where its adapter is not folded in.
    pub(super) fn pack(
        layer: &DecoderLayer,
        cut: &TpCut<'_>,
        (kind, shares): (Kind, bool),
        (rows_hint, shared_gate): (i64, Option<Product>),
        block: &mut Block,
    ) -> Result<Option<Self>, rlt_torch::Error> {
        let Some(weights) = layer.experts() else { return Ok(None) };
        // A unit that is freed leaves nothing behind that shares its memory.
        let own = |weight: &Tensor, kind: Kind| {
            let cast = weight.detach().to_kind(kind).contiguous();
            if shares || cast.data_ptr() != weight.data_ptr() { cast } else { cast.copy() }
        };
        let router_kind = weights.mixture.router_kind(kind);
        let router = own(&weights.merged_router(Adapter::On), router_kind);
        // There is no room for numbers of another width than the engine's.
        let router_block = if router_kind == kind { Some(&mut *block) } else { None };
        let bias = weights.biases.as_ref().map(|[bias, ..]| bias.detach().to_kind(router_kind).copy());
        let router = PackedLinear::new(&router, bias.as_ref(), rows_hint, router_block)?;
        let choice_bias = weights.choice_bias.as_ref().map(|bias| bias.detach().copy());
        let mut packed = |weight: &Tensor, bias: Option<Tensor>| {
            PackedLinear::new(&own(weight, kind), bias.as_ref(), rows_hint, Some(block))
        };
        let num_experts = weights.router.size()[0];
        let mut experts = Vec::with_capacity(num_experts as usize);
        for expert in 0..num_experts {
            let merged = |tensor| weights.outputs_first(&weights.merged(tensor, expert, Adapter::On));
            let bias = |tensor| {
                let bias_eo = weights.bias_of(tensor)?;
                Some(bias_eo.detach().select(0, expert).to_kind(kind).copy())
            };
            let gate_up = cut.expert_gate_up(&merged(ExpertTensor::GateUp));
            let down = cut.expert_down(&merged(ExpertTensor::Down));
            let gate_up = packed(&gate_up, bias(ExpertTensor::GateUp))?;
            experts.push([gate_up, packed(&down, bias(ExpertTensor::Down))?]);
        }
        let shared_gate = match (shared_gate, layer.shared_gate()) {
            (None, Some(gate)) => Some(Product::Packed(packed(&gate.merged(Adapter::On).weight, None)?)),
            (given, _) => given,
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
        let products = self.experts.iter().flatten().chain([&self.router]);
        products.map(PackedLinear::num_bytes).sum::<usize>()
            + self.shared_gate.as_ref().map_or(0, Product::num_bytes)
    }

    pub(super) fn mixture(&self) -> Mixture {
        self.mixture
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

    /// The weighed sum of the experts' outputs [t, d], or this rank's summand of it.
    pub(super) fn outputs(&self, normed_td: &Tensor, routes: &Routes) -> Tensor {
        let rows_nd = routes.rows.gather(normed_td);
        let outputs = routes.rows.of_experts().map(|(expert, rows)| {
            let [gate_up, down] = &self.experts[expert];
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
