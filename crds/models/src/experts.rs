//! Mixtures of experts: which layers have a router with experts instead of one feed-forward block, how the
//! router weights them, and the names of their tensors.
//!
//! ```text
//! in memory       mlp.gate.weight [E, h], mlp.experts.{gate_up_proj [E, 2 I, h], down_proj [E, h, I]}
//! in checkpoints  gate, up and down of each expert; concatenated they are the tensors in memory
//! ```
//! The names in memory are those of transformers 5, which still writes checkpoints with the other names. Both
//! can be read. Experts of the form [`ExpertForm::Clamped`] have one name and layout everywhere.

use std::ops::Range;

use serde_json::Value;

use super::fields::Fields;
use super::{
    ExpertForm, ExpertNames, Experts, ModelConfig, ModelConfigError, ParameterShape, ProjectionShape,
    Routing, SharedBlock, TensorShape,
};

/// Whether a parameter of any role holds the weights of all experts of a layer, `[E, ..]`. Routers and
/// adapters do not count.
pub fn is_expert_weight(name: &str) -> bool {
    name.contains(".mlp.experts.") && !name.contains(".lora_")
}

impl Experts {
    /// Whether a layer has more experts, or a token more of them, than the GPU's routing kernel supports.
    pub(crate) fn are_too_many_for_gpus(&self) -> bool {
        self.num_experts > 1024 || self.num_experts_per_token > 32
    }

    /// Puts experts into each of `num_layers` layers, with placeholder sizes that [`Self::read_sizes`]
    /// replaces.
    pub(super) fn everywhere(num_layers: usize, names: ExpertNames) -> Self {
        Self {
            layers: vec![true; num_layers],
            num_experts: 8,
            num_experts_per_token: 2,
            form: ExpertForm::Gated,
            intermediate_size: 1,
            normalises_weights: true,
            rounds_weights: true,
            shared_intermediate_size: None,
            shared_block: SharedBlock::GATED,
            routing: Routing::SOFTMAX,
            names,
            router_aux_loss_coef: 0.001,
        }
    }

    /// Counts the parameters of a layer's router and of `num_experts` experts: all of them, or those of one
    /// token.
    fn num_parameters(&self, hidden_size: usize, num_experts: usize) -> u64 {
        let (hidden, width) = (hidden_size as u64, self.intermediate_size as u64);
        let bias = if self.routing.has_choice_bias { self.num_experts as u64 } else { 0 };
        let biases = match self.form {
            ExpertForm::Gated => 0,
            ExpertForm::Clamped => self.num_experts as u64 + num_experts as u64 * (2 * width + hidden),
        };
        self.num_experts as u64 * hidden + bias + biases + num_experts as u64 * 3 * hidden * width
    }

    /// Returns the parameters that can have adapters: module name, and number of adapters, outputs and
    /// inputs.
    pub fn adaptable(&self, hidden_size: usize) -> [(&'static str, [u64; 3]); 3] {
        let [num, width, hidden] =
            [self.num_experts, self.intermediate_size, hidden_size].map(|size| size as u64);
        [
            ("mlp.gate.weight", [1, num, hidden]),
            ("mlp.experts.gate_up_proj", [num, 2 * width, hidden]),
            ("mlp.experts.down_proj", [num, hidden, width]),
        ]
    }

    /// Returns the parameters of `layer`, with the checkpoint tensors that store them.
    pub(super) fn parameters(&self, layer: &str, hidden: usize) -> Vec<ParameterShape> {
        match self.form {
            ExpertForm::Gated => self.gated_parameters(layer, hidden),
            ExpertForm::Clamped => self.clamped_parameters(layer, hidden),
        }
    }

    fn clamped_parameters(&self, layer: &str, hidden: usize) -> Vec<ParameterShape> {
        let Self { num_experts, intermediate_size: width, names, .. } = *self;
        let module = format!("{layer}.{}", names.module);
        let alone = |name: &str, shape: &[usize]| ParameterShape::alone(format!("{module}.{name}"), shape);
        vec![
            alone("router.weight", &[num_experts, hidden]),
            alone("router.bias", &[num_experts]),
            alone("experts.gate_up_proj", &[num_experts, hidden, 2 * width]),
            alone("experts.gate_up_proj_bias", &[num_experts, 2 * width]),
            alone("experts.down_proj", &[num_experts, width, hidden]),
            alone("experts.down_proj_bias", &[num_experts, hidden]),
        ]
    }

    fn gated_parameters(&self, layer: &str, hidden: usize) -> Vec<ParameterShape> {
        let Self { num_experts, intermediate_size: width, names, .. } = self;
        let module = format!("{layer}.{}", names.module);
        let of_expert = |expert: usize, projection: usize, shape: [usize; 2]| TensorShape {
            name: format!("{module}.experts.{expert}.{}.weight", names.projections[projection]),
            shape: shape.to_vec(),
        };
        let gate_up = |expert| [0, 1].map(|projection| of_expert(expert, projection, [*width, hidden]));
        let router = TensorShape { name: format!("{module}.gate.weight"), shape: vec![*num_experts, hidden] };
        let bias = self.routing.has_choice_bias.then(|| TensorShape {
            name: format!("{module}.gate.e_score_correction_bias"),
            shape: vec![*num_experts],
        });
        let bias = bias.map(|stored| ParameterShape {
            name: format!("{layer}.mlp.gate.e_score_correction_bias"),
            shape: stored.shape.clone(),
            stored: vec![stored],
        });
        let weights = [
            ParameterShape {
                name: format!("{layer}.mlp.gate.weight"),
                shape: router.shape.clone(),
                stored: vec![router],
            },
            ParameterShape {
                name: format!("{layer}.mlp.experts.gate_up_proj"),
                shape: vec![*num_experts, 2 * width, hidden],
                stored: (0..*num_experts).flat_map(gate_up).collect(),
            },
            ParameterShape {
                name: format!("{layer}.mlp.experts.down_proj"),
                shape: vec![*num_experts, hidden, *width],
                stored: (0..*num_experts).map(|expert| of_expert(expert, 2, [hidden, *width])).collect(),
            },
        ];
        weights.into_iter().chain(bias).collect()
    }

    /// Returns the linear layers of the shared expert, in checkpoint order.
    pub(super) fn shared_projections(&self, hidden: usize) -> Vec<ProjectionShape> {
        let Some(width) = self.shared_intermediate_size else { return Vec::new() };
        let shape = |name, out_features, in_features| ProjectionShape {
            name,
            out_features,
            in_features,
            bias: false,
        };
        let [gate, up, down] = self.shared_block.projections;
        let block = [shape(gate, width, hidden), shape(up, width, hidden), shape(down, hidden, width)];
        let of_block = self.shared_block.gate.map(|name| shape(name, 1, hidden));
        block.into_iter().chain(of_block).collect()
    }

    /// Reads the number of experts and the number of experts per token; `None` where the family has no
    /// default.
    ///
    /// `names` are the names of the number of experts in order of priority: in transformers a name of the
    /// class's attribute map overrides the field that it stands for.
    pub(super) fn read_sizes(
        &mut self,
        fields: &Fields<'_>,
        names: &[&'static str],
        num_experts: usize,
        per_token: Option<usize>,
    ) -> Result<(), ModelConfigError> {
        let is_there = |name: &&str| fields.get(name).is_some_and(|value| !value.is_null());
        let stated = names.iter().copied().find(is_there).or(names.last().copied()).unwrap_or_default();
        self.num_experts = fields.size(stated)?.unwrap_or(num_experts);
        let per_token = fields.size("num_experts_per_tok")?.or(per_token);
        self.num_experts_per_token = per_token.ok_or_else(|| fields.missing("num_experts_per_tok"))?;
        self.router_aux_loss_coef = fields.number("router_aux_loss_coef")?.unwrap_or(0.001);
        if self.num_experts_per_token > self.num_experts {
            let expected = format!("at most {stated} {}", self.num_experts);
            return Err(fields.invalid("num_experts_per_tok", &expected));
        }
        Ok(())
    }

    /// Reads which layers have experts, from the fields of Qwen's configurations.
    pub(super) fn read_layers(&mut self, fields: &Fields<'_>) -> Result<(), ModelConfigError> {
        let step = fields.size("decoder_sparse_step")?.unwrap_or(1);
        for (layer_idx, has_experts) in self.layers.iter_mut().enumerate() {
            *has_experts = (layer_idx + 1).is_multiple_of(step);
        }
        for dense in fields.list("mlp_only_layers")?.unwrap_or_default() {
            let layer = dense.as_u64().and_then(|idx| self.layers.get_mut(idx as usize));
            let expected = "numbers of layers, from 0";
            *layer.ok_or_else(|| fields.invalid("mlp_only_layers", expected))? = false;
        }
        Ok(())
    }

    /// Writes the fields that [`Self::read_sizes`] and [`Self::read_layers`] read.
    pub(super) fn write_qwen(&self, document: &mut Value) {
        let dense = self.layers.iter().enumerate().filter(|(_, has_experts)| !**has_experts);
        document["decoder_sparse_step"] = 1.into();
        document["mlp_only_layers"] = dense.map(|(layer_idx, _)| Value::from(layer_idx)).collect();
        document["num_experts"] = self.num_experts.into();
        document["moe_intermediate_size"] = self.intermediate_size.into();
        document["norm_topk_prob"] = self.normalises_weights.into();
        self.write_sizes(document);
    }

    /// Writes the fields that all mixtures of experts share.
    pub(super) fn write_sizes(&self, document: &mut Value) {
        document["num_experts_per_tok"] = self.num_experts_per_token.into();
        document["router_aux_loss_coef"] = self.router_aux_loss_coef.into();
        document["output_router_logits"] = false.into();
    }
}

impl ModelConfig {
    /// Returns the experts of a layer; `None` where it has one feed-forward block.
    pub fn experts_of(&self, layer_idx: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| experts.layers[layer_idx])
    }

    /// Counts the elements of a layer's matrices with the weights of all experts, biases included.
    pub fn matrices_of_layer(&self, layer_idx: usize) -> u64 {
        self.matrices(layer_idx, |experts| experts.num_experts)
    }

    /// Counts the elements of all layers' matrices, biases included.
    pub fn matrices_of_layers(&self) -> u64 {
        (0..self.num_layers).map(|layer_idx| self.matrices_of_layer(layer_idx)).sum()
    }

    /// Counts the elements of all layers' matrices by which one token is multiplied.
    pub fn active_matrices_of_layers(&self) -> u64 {
        let active = |layer_idx| self.matrices(layer_idx, |experts| experts.num_experts_per_token);
        (0..self.num_layers).map(active).sum()
    }

    /// Expected number of elements of all layers' matrices by which any of `num_tokens` tokens is multiplied,
    /// if every expert is equally likely.
    pub fn matrices_read_by(&self, num_tokens: f64) -> f64 {
        let (all, active) = (self.matrices_of_layers() as f64, self.active_matrices_of_layers() as f64);
        let Some(experts) = &self.experts else { return all };
        let share = experts.num_experts_per_token as f64 / experts.num_experts as f64;
        let of_experts = (all - active) / (1.0 - share).max(f64::EPSILON);
        all - of_experts * (1.0 - share).powf(num_tokens.max(1.0))
    }

    fn matrices(&self, layer_idx: usize, num_experts: fn(&Experts) -> usize) -> u64 {
        let projections: u64 = self.projections(layer_idx).iter().map(ProjectionShape::num_parameters).sum();
        let of_experts = self.experts_of(layer_idx);
        let experts =
            of_experts.map(|experts| experts.num_parameters(self.hidden_size, num_experts(experts)));
        projections + experts.unwrap_or(0)
    }

    /// Elements of the largest tensor of a layer.
    pub fn largest_matrix(&self) -> u64 {
        let experts = self.experts.as_ref().filter(|experts| experts.layers.contains(&true));
        let of_experts = experts
            .map(|experts| 2 * (experts.num_experts * experts.intermediate_size * self.hidden_size) as u64);
        let layers = 0..self.num_layers;
        let of_projections = layers.flat_map(|layer_idx| self.projections(layer_idx));
        let largest = of_projections.map(|projection| projection.num_parameters()).max();
        largest.max(of_experts).unwrap_or(0)
    }

    /// Total width of the feed-forward blocks that compute one token, in the layer where it is largest.
    pub fn active_width(&self) -> usize {
        let of_layer = |layer_idx| match self.experts_of(layer_idx) {
            None => self.intermediate_size,
            Some(experts) => {
                let shared = experts.shared_intermediate_size.unwrap_or(0);
                experts.num_experts_per_token * experts.intermediate_size + shared
            }
        };
        (0..self.num_layers).map(of_layer).max().unwrap_or(0)
    }
}

/// Yields each stored tensor with its flat range of elements in the parameter that they form, concatenated.
pub fn stored_ranges(stored: &[TensorShape]) -> impl Iterator<Item = (&TensorShape, Range<usize>)> {
    stored.iter().scan(0, |end, tensor| {
        let start = *end;
        *end += tensor.shape.iter().product::<usize>();
        Some((tensor, start..*end))
    })
}
