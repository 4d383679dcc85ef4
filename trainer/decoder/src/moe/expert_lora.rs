//! Low-rank adapters of a mixture of experts, as PEFT's `target_parameters` makes them: one for each expert
//! of a stacked tensor, and one of the router.
//!
//! ```text
//! y = x W_e^T + scaling * (x A_e^T) B_e^T    lora_A [e r, in]: one expert after the other
//!                                            lora_B [out, r e]: the expert changes fastest
//! ```
//! Rows are sorted by expert, so that A and B multiply the same row ranges as W. Merging sums W and B A one
//! expert at a time; training never forms the sum.
//! Shapes: e experts, r rank, n rows sorted by expert.

use rlt_layout::AxisPlace;
use rlt_models::ExpertForm;
use rlt_torch::ExpertRows;
use tch::{Kind, Tensor, no_grad};

use super::super::peft_names;
use super::super::projection::Adapter;
use super::experts::ExpertWeights;

/// A stacked weight tensor of all experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertTensor {
    /// Gate and up projections, stacked: gate first.
    GateUp,
    /// Down projections of all experts, stacked.
    Down,
}

impl ExpertTensor {
    pub(crate) const ALL: [Self; 2] = [Self::GateUp, Self::Down];

    /// The tensor's name inside the module `experts`.
    fn name(self) -> &'static str {
        match self {
            Self::GateUp => "gate_up_proj",
            Self::Down => "down_proj",
        }
    }
}

/// Low-rank matrices of all experts of a stacked tensor: the update of expert e is `scaling * b_e a_e`.
#[derive(Debug)]
pub(crate) struct ExpertLora {
    /// [e r, in], f32.
    pub(crate) a: Tensor,
    /// [out, r e], f32.
    pub(crate) b: Tensor,
    scaling: f64,
    num_experts: i64,
}

impl ExpertLora {
    pub(crate) fn new(a: Tensor, b: Tensor, scaling: f64, num_experts: i64) -> Self {
        Self { a, b, scaling, num_experts }
    }

    /// A by expert, [e, r, in].
    fn a_eri(&self) -> Tensor {
        self.a.unflatten(0, [self.num_experts, -1])
    }

    /// B by expert, [e, out, r].
    fn b_eor(&self) -> Tensor {
        self.b.unflatten(1, [-1, self.num_experts]).permute([2, 0, 1])
    }

    /// Adds the adapter's output for the rows `x_ni` of the experts of `shard` to the products of the base,
    /// in place. With expert parallelism every rank has the matrices of all experts, and their gradients are
    /// summed over the ranks.
    pub(crate) fn add_to(&self, base: Tensor, x_ni: &Tensor, rows: &ExpertRows, shard: AxisPlace) -> Tensor {
        let (mut base, kind) = (base, x_ni.kind());
        let experts = shard.range(self.num_experts as usize);
        let own = |all: Tensor| all.narrow(0, experts.start as i64, experts.len() as i64).to_kind(kind);
        let inner = rows.linear(x_ni, &own(self.a_eri())) * self.scaling;
        base.g_add_(&rows.linear(&inner, &own(self.b_eor())))
    }

    /// The weight update of one expert, `scaling * b_e a_e`, f32 [out, in].
    fn delta(&self, expert: i64) -> Tensor {
        self.b_eor().select(0, expert).matmul(&self.a_eri().select(0, expert)) * self.scaling
    }
}

impl ExpertWeights {
    pub(crate) fn tensor(&self, tensor: ExpertTensor) -> &Tensor {
        match tensor {
            ExpertTensor::GateUp => &self.gate_up,
            ExpertTensor::Down => &self.down,
        }
    }

    pub(crate) fn lora_of(&self, tensor: ExpertTensor) -> Option<&ExpertLora> {
        self.lora[tensor as usize].as_ref()
    }

    /// The weight of one expert, with the adapter folded in if `adapter` is on: then summed in f32, and not
    /// rounded. Otherwise a view of the stored weight.
    pub fn merged(&self, tensor: ExpertTensor, expert: i64, adapter: Adapter) -> Tensor {
        let weight = self.tensor(tensor).detach().select(0, expert);
        match (self.lora_of(tensor), adapter) {
            (Some(lora), Adapter::On) => no_grad(|| weight.to_kind(Kind::Float) + lora.delta(expert)),
            _ => weight,
        }
    }

    /// The stacked weights of all experts, a view; `None` where an adapter has to be folded in, or experts
    /// are clamped.
    pub fn unadapted(&self, tensor: ExpertTensor) -> Option<Tensor> {
        let is_plain = self.lora_of(tensor).is_none() && self.form == ExpertForm::Gated;
        is_plain.then(|| self.tensor(tensor).detach())
    }

    /// The router's weight, with the adapter folded in if `adapter` is on: then in f32, otherwise a view.
    pub fn merged_router(&self, adapter: Adapter) -> Tensor {
        match (&self.router_lora, adapter) {
            (Some(lora), Adapter::On) => no_grad(|| lora.folded_into(&self.router)),
            _ => self.router.detach(),
        }
    }

    /// Full name of a tensor.
    pub(crate) fn tensor_name(&self, tensor: ExpertTensor) -> String {
        format!("{}.experts.{}", self.module, tensor.name())
    }

    /// Full name of the router's weight.
    pub(crate) fn router_name(&self) -> String {
        format!("{}.{}.weight", self.module, self.router_module)
    }

    /// The tensors that have adapters, each with PEFT's names of its two matrices. PEFT wraps a module once
    /// for each adapted tensor: with both adapted, gate and up are in the inner wrapper.
    pub(crate) fn adapted(&self) -> impl Iterator<Item = (ExpertTensor, &ExpertLora, [String; 2])> {
        ExpertTensor::ALL.into_iter().filter_map(|tensor| {
            let is_inner = tensor == ExpertTensor::GateUp && self.lora_of(ExpertTensor::Down).is_some();
            let wrapper = if is_inner { ".base_layer" } else { "" };
            let names = ["A", "B"]
                .map(|m| format!("base_model.model.{}.experts{wrapper}.lora_{m}.weight", self.module));
            Some((tensor, self.lora_of(tensor)?, names))
        })
    }

    /// Every matrix of the adapters, of the router's too, under PEFT's name.
    pub(crate) fn adapter_parameters(&self) -> Vec<(String, Tensor)> {
        let mut parameters = Vec::new();
        if let Some(lora) = &self.router_lora {
            let [name_a, name_b] = peft_names(&format!("{}.gate", self.module));
            parameters.extend([(name_a, lora.a.shallow_clone()), (name_b, lora.b.shallow_clone())]);
        }
        for (_, lora, [name_a, name_b]) in self.adapted() {
            parameters.extend([(name_a, lora.a.shallow_clone()), (name_b, lora.b.shallow_clone())]);
        }
        parameters
    }
}
