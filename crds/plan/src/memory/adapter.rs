//! Number of trained parameters of an adapter: r (inputs + outputs) for each adapted projection, for each
//! expert of an adapted expert tensor, and for an adapted router; DoRA adds one magnitude for each output of
//! a projection. Modules that are trained in full (`modulesToSave`) count with all their parameters.

use std::collections::BTreeMap;

use rlt_api::spec::{LoraSpec, is_module_to_save, modules_of_megatron};
use rlt_models::{ModelConfig, ProjectionShape};

use super::Trained;

/// Rows (outputs) of one panel of a packed weight.
const PANEL: u64 = 32;

/// The low-rank pairs (A and B) of one adapted tensor.
struct Pairs {
    /// Number of pairs: one, or one for each expert.
    num: u64,
    rank: u64,
    /// Number of trained DoRA magnitudes; 0 without DoRA.
    magnitudes: u64,
    inputs: u64,
    outputs: u64,
    /// Number of pairs that a token passes through: 1, or the experts per token.
    per_token: u64,
}

impl Pairs {
    fn num_parameters(&self) -> u64 {
        self.rank * self.num * (self.inputs + self.outputs) + self.magnitudes
    }

    /// Elements of the larger of A and B, of all pairs together.
    fn largest(&self) -> u64 {
        self.rank * self.num * self.inputs.max(self.outputs)
    }

    /// The pair of a linear layer with weight `[outputs, inputs]`.
    fn of_linear(lora: &LoraSpec, name: &str, [outputs, inputs]: [usize; 2]) -> Self {
        let magnitudes = if lora.dora { outputs as u64 } else { 0 };
        let (inputs, outputs) = (inputs as u64, outputs as u64);
        Self { num: 1, rank: rank_of(lora, name), magnitudes, inputs, outputs, per_token: 1 }
    }
}

/// Counts the trained parameters of the adapter. A target that is a pattern, or that is not a module's last
/// name, counts as all linear layers: an upper bound.
pub(crate) fn trained(lora: &LoraSpec, model: &ModelConfig) -> Trained {
    let adapter = pairs_of_layers(lora, model);
    let saved = Saved::new(lora, model);
    let of_tower = pairs_of_tower(lora, model);
    let tower = of_tower.iter().map(Pairs::num_parameters).sum::<u64>();
    let largest = of_tower.iter().map(Pairs::largest).max().unwrap_or(0);
    Trained {
        num_parameters: adapter.num_parameters + saved.outside + saved.layers + tower,
        of_one_layer: adapter.of_one_layer + saved.of_one_layer,
        outside: saved.outside + tower,
        largest_outside: saved.largest_outside.max(largest),
        ..adapter
    }
}

/// Parameter counts of modules that are trained in full (`modulesToSave`).
#[derive(Clone, Copy, Debug, Default)]
struct Saved {
    outside: u64,
    largest_outside: u64,
    layers: u64,
    of_one_layer: u64,
}

impl Saved {
    fn new(lora: &LoraSpec, model: &ModelConfig) -> Self {
        if lora.modules_to_save.is_empty() {
            return Self::default();
        }
        let parameters = model.parameters().into_iter();
        let saved = parameters.filter(|parameter| is_module_to_save(&lora.modules_to_save, &parameter.name));
        saved.fold(Self::default(), |sum, parameter| {
            let numbers = parameter.shape.iter().map(|dim| *dim as u64).product::<u64>();
            let first_layer = if parameter.name.contains(".layers.0.") { numbers } else { 0 };
            match parameter.name.contains(".layers.") {
                true => {
                    Self { layers: sum.layers + numbers, of_one_layer: sum.of_one_layer + first_layer, ..sum }
                }
                false => Self {
                    outside: sum.outside + numbers,
                    largest_outside: sum.largest_outside.max(numbers),
                    ..sum
                },
            }
        })
    }
}

/// Whether the head's weight is trained in full next to the adapter (`modulesToSave`).
pub(super) fn trains_head(lora: &LoraSpec, model: &ModelConfig) -> bool {
    let head = if model.tie_word_embeddings { "model.embed_tokens" } else { "lm_head" };
    is_module_to_save(&lora.modules_to_save, head)
}

/// Counts the parameters of the low-rank pairs of all decoder layers.
fn pairs_of_layers(lora: &LoraSpec, model: &ModelConfig) -> Trained {
    let of_layer = |layer_idx| {
        pairs(lora, model, layer_idx).into_iter().fold(Trained::default(), |sum, pairs| {
            Trained {
                num_parameters: sum.num_parameters + pairs.num_parameters(),
                largest_of_layer: sum.largest_of_layer.max(pairs.largest()),
                // DoRA's scaling by magnitudes keeps its input in addition to its output.
                adapter_width: sum.adapter_width + pairs.rank * pairs.per_token + pairs.magnitudes,
                ..sum
            }
        })
    };
    (0..model.num_layers).map(of_layer).fold(Trained::default(), |sum, layer| Trained {
        num_parameters: sum.num_parameters + layer.num_parameters,
        of_one_layer: sum.of_one_layer.max(layer.num_parameters),
        largest_of_layer: sum.largest_of_layer.max(layer.largest_of_layer),
        largest_outside: 0,
        outside: 0,
        adapter_width: sum.adapter_width + layer.adapter_width,
    })
}

/// Multiply-adds that merging the adapter into the weights takes: r inputs outputs for each pair.
pub(crate) fn folding_products(lora: &LoraSpec, model: &ModelConfig) -> u64 {
    let pairs = (0..model.num_layers).flat_map(|layer_idx| pairs(lora, model, layer_idx));
    pairs.map(|pairs| pairs.num * pairs.rank * pairs.inputs * pairs.outputs).sum()
}

/// Number of low-rank pairs that a token passes through, over all layers.
pub(crate) fn num_pairs(lora: &LoraSpec, model: &ModelConfig) -> u64 {
    let pairs = (0..model.num_layers).flat_map(|layer_idx| pairs(lora, model, layer_idx));
    pairs.map(|pairs| pairs.per_token).sum()
}

/// Elements of A and B as the rollout packs them on a CPU: in panels, the last of which is padded.
pub(super) fn packed_numbers(lora: &LoraSpec, model: &ModelConfig) -> u64 {
    let pairs = (0..model.num_layers).flat_map(|layer_idx| pairs(lora, model, layer_idx));
    let packed = |Pairs { num, rank, inputs, outputs, .. }: Pairs| {
        num * (rank.next_multiple_of(PANEL) * inputs + outputs.next_multiple_of(PANEL) * rank)
    };
    pairs.map(packed).sum()
}

/// Elements of A and B as the rollout holds them on a GPU: the A matrices of fused projections are stacked,
/// and each B has its own columns and rows of one block-diagonal matrix.
pub(super) fn numbers_on_gpu(lora: &LoraSpec, model: &ModelConfig) -> u64 {
    let of_product = |layer_idx: usize, product: Vec<ProjectionShape>| {
        let name = |own: &ProjectionShape| format!("model.layers.{layer_idx}.{}", own.name);
        let adapted = product.iter().filter(|own| is_target(lora, own.name));
        let ranks: u64 = adapted.map(|own| rank_of(lora, &name(own))).sum();
        let inputs = product.first().map_or(0, |own| own.in_features as u64);
        ranks * (inputs + product.iter().map(|own| own.out_features as u64).sum::<u64>())
    };
    let of_layer = |layer_idx| {
        let products = products_together(model, layer_idx).into_iter();
        products.map(|product| of_product(layer_idx, product)).sum::<u64>()
    };
    (0..model.num_layers).map(of_layer).sum()
}

/// Elements of the largest product of a layer, where q, k and v are one product and gate and up another.
pub(super) fn largest_product(model: &ModelConfig) -> u64 {
    let of_layer = |layer_idx| products_together(model, layer_idx);
    let numbers = |product: Vec<ProjectionShape>| {
        product.iter().map(|own| (own.in_features * own.out_features) as u64).sum::<u64>()
    };
    (0..model.num_layers).flat_map(of_layer).map(numbers).max().unwrap_or(0)
}

/// Elements of the dense (not quantized) projections that the rollout does not fuse with others.
pub(super) fn numbers_alone(model: &ModelConfig) -> u64 {
    let of_layer = |layer_idx: usize| {
        let products = products_together(model, layer_idx);
        let is_dense = |own: &ProjectionShape| {
            model.quantization_of(&format!("model.layers.{layer_idx}.{}", own.name)).is_none()
        };
        let alone = products.iter().filter_map(|product| match product.as_slice() {
            [alone] if is_dense(alone) => Some((alone.in_features * alone.out_features) as u64),
            _ => None,
        });
        alone.sum::<u64>()
    };
    (0..model.num_layers).map(of_layer).sum()
}

/// Groups the projections of a layer by the product in which the rollout fuses them.
fn products_together(model: &ModelConfig, layer_idx: usize) -> Vec<Vec<ProjectionShape>> {
    let product = |name: &str| {
        let of_first = |others: &[&str]| others.iter().any(|other| ends_with_name(name, other));
        match () {
            () if of_first(&["q_proj", "k_proj", "v_proj"]) => "qkv".to_owned(),
            () if of_first(&["gate_proj", "up_proj"]) => "gate_up".to_owned(),
            () => name.to_owned(),
        }
    };
    let mut products: BTreeMap<String, Vec<ProjectionShape>> = BTreeMap::new();
    for projection in model.projections(layer_idx) {
        products.entry(product(projection.name)).or_default().push(projection);
    }
    products.into_values().collect()
}

/// Returns the low-rank pairs of a vision tower's linear layers.
fn pairs_of_tower(lora: &LoraSpec, model: &ModelConfig) -> Vec<Pairs> {
    let linears = model.vision_linears().filter(|_| lora.vlm_lora.adapts_vision());
    let adapted = linears.filter(|linear| is_chosen(lora, &linear.name));
    adapted.map(|linear| Pairs::of_linear(lora, &linear.name, [linear.shape[0], linear.shape[1]])).collect()
}

/// Inner values (rank and magnitudes) that the adapter of a vision tower adds for each patch, over all linear
/// layers.
pub(super) fn width_in_tower(lora: &LoraSpec, model: &ModelConfig) -> u64 {
    pairs_of_tower(lora, model).iter().map(|pair| pair.rank + pair.magnitudes).sum()
}

/// Number of adapter parameters in the vision tower.
pub(super) fn numbers_in_tower(lora: &LoraSpec, model: &ModelConfig) -> u64 {
    pairs_of_tower(lora, model).iter().map(Pairs::num_parameters).sum()
}

/// Whether a linear layer of the text model has an adapter.
fn is_target(lora: &LoraSpec, module: &str) -> bool {
    lora.vlm_lora.adapts_text() && is_chosen(lora, module)
}

/// Whether the target and exclude names of the adapter select a linear layer.
fn is_chosen(lora: &LoraSpec, module: &str) -> bool {
    let all = lora.target_pattern.is_some() || is_named(&lora.target_modules, "all-linear");
    (all || is_named(&lora.target_modules, module)) && !is_named(&lora.exclude_modules, module)
}

fn pairs(lora: &LoraSpec, model: &ModelConfig, layer_idx: usize) -> Vec<Pairs> {
    let of_layer = |name: &str| format!("model.layers.{layer_idx}.{name}");
    let projections = model.projections(layer_idx).into_iter().filter(|one| is_target(lora, one.name));
    let projections = projections
        .map(|one| Pairs::of_linear(lora, &of_layer(one.name), [one.out_features, one.in_features]));
    let parameters = model.experts_of(layer_idx).into_iter().flat_map(|experts| {
        let per_token = experts.num_experts_per_token as u64;
        experts.adaptable(model.hidden_size).map(move |(name, size)| (name, size, per_token))
    });
    let parameters = parameters.filter(|(name, ..)| {
        // A longer name selects the parameter in some layers only.
        is_named(&lora.target_parameters, name)
            || lora.target_parameters.iter().any(|target| target.ends_with(name))
    });
    let parameters = parameters.map(|(name, [num, outputs, inputs], per_token)| Pairs {
        num,
        rank: rank_of(lora, &of_layer(name)),
        magnitudes: 0,
        inputs,
        outputs,
        per_token: num.min(per_token),
    });
    projections.chain(parameters).collect()
}

fn is_named(names: &[String], module: &str) -> bool {
    names.iter().any(|name| {
        ends_with_name(module, name)
            || modules_of_megatron(name).iter().any(|own| ends_with_name(module, own))
    })
}

/// Whether `module` is `name` or ends with `.name`.
fn ends_with_name(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|start| start.is_empty() || start.ends_with('.'))
}

/// Returns the rank of a module's adapter. A pattern that is more than a name is assumed to match every
/// module, so the result is an upper bound.
fn rank_of(lora: &LoraSpec, module: &str) -> u64 {
    let mut bound = 0;
    for (pattern, rank) in &lora.rank_pattern {
        let name = pattern.replace(r"\.", ".");
        if name.chars().any(|letter| !(letter.is_ascii_alphanumeric() || "_.".contains(letter))) {
            bound = bound.max(*rank);
        } else if ends_with_name(module, &name) {
            return bound.max(*rank).into();
        }
    }
    bound.max(lora.rank).into()
}
