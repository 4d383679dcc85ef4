//! Tensor-parallel shards of each parameter in training (Megatron-LM, Shoeybi et al. 2019): those of
//! [`TpCut`], by the names of a checkpoint. The exchange is in `parallel::layer`.
//!
//! ```text
//! q, k, v, gate, up    rows of local heads and width, with their biases   (column-parallel)
//! o, down              columns of local heads and width; biases are full  (row-parallel)
//! embedding, head      rows of local tokens
//! norms, value head    full
//! adapter              of row shards: full A, rows of B;  of column shards: columns of A, full B
//! ```
//! A full parameter that acts on the residual stream, which all ranks have, has the same gradient on all
//! ranks. One that acts on a rank's own heads, or its part of a product, has a summand of its gradient on
//! each rank: [`ParameterCuts::is_summed`].

use std::collections::BTreeMap;
use std::ops::Range;

use rlt_api::plan::model_config::{ModelConfig, OutputHead, ProductRows, ProjectionShape};
use rlt_core::tensor_cut::Cut;
use rlt_core::tensor_parallel::TpShard;
use tch::{Tensor, no_grad};

use super::decoder::layer_idx;
use super::projection::{ProjectionPart, WidthPart};
use super::tp_shards::{ShardedDim, TpCut};
use super::weights::{EMBEDDING, HEAD};

/// Shards of a model's parameters for each rank of a tensor-parallel group.
#[derive(Debug)]
pub(crate) struct ParameterCuts {
    shard: TpShard,
    vocab_size: usize,
    head_is_cut: bool,
    layers: Vec<LayerCuts>,
}

/// Shards of a layer's projections.
#[derive(Debug)]
pub(crate) struct LayerCuts {
    /// Rows of q, k, v, o, gate, up and down in a rank's shards of their projections.
    pub(crate) products: Vec<ProductRows>,
    /// Shards of each projection, by its name inside the layer.
    projections: BTreeMap<&'static str, ProjectionCut>,
}

/// Shards of a projection's weight, [out, in].
#[derive(Debug)]
struct ProjectionCut {
    /// Full width of the output and of the input.
    size: [usize; 2],
    /// Shard of each rank.
    of_places: Vec<Cut>,
}

/// Shards of one parameter for each rank of a group.
#[derive(Clone, Debug)]
pub(crate) struct PlaceCuts {
    /// Shard of each rank.
    pub(crate) of_places: Vec<Cut>,
    /// Index of this rank in the group.
    place: usize,
    /// Full length of the sharded dim.
    len: usize,
}

/// Suffixes of an adapter's parameters after the projection's name.
const ADAPTER_A: &str = ".lora_A.weight";
const ADAPTER_B: &str = ".lora_B.weight";

impl ParameterCuts {
    /// The shards of a model without experts, latent attention and quantized weights, see
    /// [`rlt_api::plan::check_model`].
    pub(crate) fn new(config: &ModelConfig, shard: TpShard) -> Self {
        let layers = (0..config.num_layers).map(|layer_idx| LayerCuts::new(config, layer_idx, shard));
        let head_is_cut = config.head == OutputHead::Vocabulary;
        Self { shard, vocab_size: config.vocab_size, head_is_cut, layers: layers.collect() }
    }

    /// The shards of layer `layer_idx`.
    pub(crate) fn layer(&self, layer_idx: usize) -> Option<&LayerCuts> {
        self.layers.get(layer_idx)
    }

    /// Token ids whose embeddings and logits this rank has.
    pub(crate) fn tokens(&self) -> Range<usize> {
        self.shard.of(self.vocab_size)
    }

    /// Rows of `tokens_t` in this rank's shard of the embedding, i64 `[t]`, and whether another rank has the
    /// token, whose row is then given as 0.
    pub(crate) fn own_tokens(&self, tokens_t: &Tensor) -> (Tensor, Tensor) {
        let own = self.tokens();
        let is_other_t = tokens_t.lt(own.start as i64).logical_or(&tokens_t.ge(own.end as i64));
        ((tokens_t - own.start as i64).masked_fill(&is_other_t, 0), is_other_t)
    }

    /// The shards of a parameter, by its name in any role; `None` if every rank has all of it.
    pub(crate) fn of(&self, name: &str) -> Option<PlaceCuts> {
        let is_of_tokens = name.ends_with(EMBEDDING) || (self.head_is_cut && name.ends_with(HEAD));
        if is_of_tokens {
            let of_places = places(self.shard).map(|shard| Cut::Rows(vec![shard.of(self.vocab_size)]));
            return Some(self.of_places(of_places.collect(), self.vocab_size));
        }
        let (cut, part) = self.projection(name)?;
        let [outputs, inputs] = cut.size;
        match (cut.is_of_rows(), part) {
            (true, ".weight" | ".bias" | ADAPTER_B) => Some(self.of_places(cut.of_places.clone(), outputs)),
            (false, ".weight" | ADAPTER_A) => Some(self.of_places(cut.of_places.clone(), inputs)),
            _ => None,
        }
    }

    /// Whether the gradient of a full parameter is the sum of the ranks' gradients.
    pub(crate) fn is_summed(&self, name: &str) -> bool {
        let of_heads = [".self_attn.q_norm.weight", ".self_attn.k_norm.weight"];
        let is_summed = |(cut, part): (&ProjectionCut, &str)| match cut.is_of_rows() {
            true => part == ADAPTER_A,
            false => part == ADAPTER_B || part == ".bias",
        };
        of_heads.iter().any(|norm| name.ends_with(norm)) || self.projection(name).is_some_and(is_summed)
    }

    /// This rank's shard of a projection's input and output, by the projection's full name.
    pub(super) fn around(&self, projection: &str) -> ProjectionPart {
        // Parameters are found by a suffix after the module's name.
        let weight = format!("{projection}.weight");
        let Some((ProjectionCut { size, of_places }, _)) = self.projection(&weight) else {
            return ProjectionPart::default();
        };
        let part = |ranges: Vec<Range<usize>>, width| Some(WidthPart { ranges, width });
        match &of_places[self.shard.place] {
            Cut::Rows(ranges) => {
                ProjectionPart { inputs: None, outputs: part(ranges.clone(), size[0]), has_bias: true }
            }
            Cut::Columns(range) => {
                let inputs = part(vec![range.clone()], size[1]);
                ProjectionPart { inputs, outputs: None, has_bias: self.shard.place == 0 }
            }
        }
    }

    /// The projection of a parameter, and the suffix of the parameter's name after it.
    fn projection<'a>(&self, name: &'a str) -> Option<(&ProjectionCut, &'a str)> {
        let layer = self.layers.get(layer_idx(name)?)?;
        let (_, inside) = name.split_once(".layers.")?.1.split_once('.')?;
        let (module, cut) = layer
            .projections
            .iter()
            .find(|(module, _)| inside.strip_prefix(**module).is_some_and(|part| part.starts_with('.')))?;
        Some((cut, &inside[module.len()..]))
    }

    fn of_places(&self, of_places: Vec<Cut>, len: usize) -> PlaceCuts {
        PlaceCuts { of_places, place: self.shard.place, len }
    }
}

/// The shard of every rank of the group.
fn places(shard: TpShard) -> impl Iterator<Item = TpShard> {
    (0..shard.num_shards).map(move |place| TpShard { place, ..shard })
}

impl LayerCuts {
    fn new(config: &ModelConfig, layer_idx: usize, shard: TpShard) -> Self {
        let products = config.products(layer_idx);
        let kept: Vec<Vec<ShardedDim>> =
            places(shard).map(|shard| TpCut::new(shard, config).kept(config.intermediate_size)).collect();
        let of_projection = |(idx, shape): (usize, ProjectionShape)| {
            let of_place = |kept: &Vec<ShardedDim>| cut_of(idx, &products, kept);
            let of_places = kept.iter().map(of_place).collect();
            (shape.name, ProjectionCut { size: [shape.out_features, shape.in_features], of_places })
        };
        let projections = config.projections(layer_idx).into_iter().enumerate().map(of_projection).collect();
        Self { products: config.tp_sharded(shard.num_shards).products(layer_idx), projections }
    }
}

impl ProjectionCut {
    fn is_of_rows(&self) -> bool {
        matches!(self.of_places.first(), Some(Cut::Rows(_)))
    }
}

/// A rank's shard of projection `idx`, from the shards `kept` of its `products`.
fn cut_of(idx: usize, products: &[ProductRows], kept: &[ShardedDim]) -> Cut {
    let mut ranges = Vec::new();
    for (product, kept) in products.iter().zip(kept).filter(|(product, _)| product.projection_idx == idx) {
        match kept {
            ShardedDim::Columns(columns) => return Cut::Columns(columns.clone()),
            ShardedDim::Rows(rows) => {
                ranges.push(product.rows.start + rows.start..product.rows.start + rows.end);
            }
        }
    }
    Cut::Rows(ranges)
}

impl PlaceCuts {
    /// This rank's shard.
    pub(crate) fn own(&self) -> &Cut {
        &self.of_places[self.place]
    }

    /// The full size of a parameter, from the full size or that of this rank's shard.
    pub(crate) fn whole_size(&self, size: &[i64]) -> Vec<i64> {
        let mut whole = size.to_vec();
        let dim = match self.own() {
            Cut::Rows(_) => whole.first_mut(),
            Cut::Columns(_) => whole.last_mut(),
        };
        dim.into_iter().for_each(|dim| *dim = self.len as i64);
        whole
    }

    /// Number of values in the largest of the ranks' shards of a parameter of the full size `whole`.
    pub(crate) fn longest(&self, whole: &[i64]) -> i64 {
        self.of_places.iter().map(|cut| cut.shape(whole).iter().product()).max().unwrap_or(0)
    }

    /// Assembles the full parameter of size `whole` from the shards of all ranks, `[ranks, longest]`, each in
    /// row-major order and padded at its end.
    pub(crate) fn join(&self, parts: &Tensor, whole: &[i64]) -> Tensor {
        let all = Tensor::empty(whole, (parts.kind(), parts.device()));
        for (place, cut) in self.of_places.iter().enumerate() {
            let shape = cut.shape(whole);
            let part = parts.get(place as i64).narrow(0, 0, shape.iter().product()).view(shape.as_slice());
            no_grad(|| copy_part(cut, &all, &part));
        }
        all
    }
}

/// Copies the shard `part` of a rank into the full tensor `all`.
fn copy_part(cut: &Cut, all: &Tensor, part: &Tensor) {
    match cut {
        Cut::Columns(columns) => {
            all.narrow(-1, columns.start as i64, columns.len() as i64).copy_(part);
        }
        Cut::Rows(ranges) => {
            let mut start = 0;
            for rows in ranges {
                let len = rows.len() as i64;
                all.narrow(0, rows.start as i64, len).copy_(&part.narrow(0, start, len));
                start += len;
            }
        }
    }
}

/// A rank's shard of the full tensor `all`: a view of columns or of one range of rows, else a copy.
pub(crate) fn part_of(cut: &Cut, all: &Tensor) -> Tensor {
    match cut {
        Cut::Columns(columns) => all.narrow(-1, columns.start as i64, columns.len() as i64),
        Cut::Rows(ranges) => of_ranges(all, ranges, 0),
    }
}

/// Concatenates ranges of a dim; one range is a view.
pub(crate) fn of_ranges(all: &Tensor, ranges: &[Range<usize>], dim: i64) -> Tensor {
    let parts = ranges.iter().map(|range| all.narrow(dim, range.start as i64, range.len() as i64));
    match parts.collect::<Vec<_>>().as_slice() {
        [one] => one.shallow_clone(),
        parts => Tensor::cat(parts, dim),
    }
}
