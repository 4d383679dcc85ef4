//! A linear layer with its optional low-rank adapter.

use std::cell::OnceCell;
use std::ops::Range;

use rlt_api::spec::DropoutPosition;
use rlt_layout::DimRanges;
use rlt_torch::cuda::DropoutMask;
use tch::{Kind, Tensor};

use super::base_weight::BaseWeight;
use super::dora;
use super::parameters::of_ranges;
use super::random::TensorRandom;

/// Whether the adapter is applied. With it off the same weights are the reference policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapter {
    /// The base with the adapter.
    On,
    /// The base alone.
    Off,
}

/// The seed and position of the adapters' dropout.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// Seed of the whole pass; each projection draws from a stream of its own.
    pub seed: u64,
    /// Index in the packed row of the first token of the input: dropout of a token depends only on its index
    /// there.
    pub first_token: usize,
}

/// A tensor-parallel rank's shard of a projection.
#[derive(Clone, Debug)]
pub(crate) struct LinearShard {
    /// Values of the input that the rank has; `None` for all of them.
    pub(crate) inputs: Option<DimRanges>,
    /// Values of the output that the rank computes; `None` for all of them.
    pub(crate) outputs: Option<DimRanges>,
    /// Whether the rank adds the bias. Where ranks compute summands of an output, only one of them does.
    pub(crate) adds_bias: bool,
}

impl LinearShard {
    /// The full projection.
    pub(crate) const FULL: Self = Self { inputs: None, outputs: None, adds_bias: true };
}

/// The shard of projections whose weights are full.
static FULL: LinearShard = LinearShard::FULL;

/// The trainable low-rank matrices of a projection, whose update is `scaling * b a`, and with DoRA the
/// magnitudes of the sum of weight and update.
#[derive(Debug)]
pub struct LoraPair {
    /// Matrix A, [rank, in_features], f32.
    pub a: Tensor,
    /// Matrix B, [out_features, rank], f32.
    pub b: Tensor,
    /// Magnitudes of the adapted weight's rows, [out_features], f32; `None` without DoRA.
    pub(crate) magnitudes: Option<Tensor>,
    /// alpha / rank, or alpha / sqrt(rank) when rank-stabilised.
    pub scaling: f64,
    /// Probability with which an input of `a`, or an output of `b`, is dropped while training.
    pub(crate) dropout: f64,
    pub(crate) dropout_position: DropoutPosition,
}

/// A linear layer: `x W^T + bias`, plus the adapter's output.
#[derive(Debug)]
pub struct Linear {
    /// Full module name, for example `model.layers.0.self_attn.q_proj`.
    pub name: String,
    /// Weight of the layer, [out, in].
    pub weight: BaseWeight,
    /// Bias of the layer, [out]; `None` if the model has none.
    pub bias: Option<Tensor>,
    /// Adapter of the layer; `None` if it has none.
    pub lora: Option<LoraPair>,
    /// The rank's shard of weight, bias and adapter; set when they are sharded.
    pub(crate) shard: OnceCell<LinearShard>,
}

/// The weights of a projection, for engines that pack weights themselves.
#[derive(Debug)]
pub struct ProjectionWeights {
    /// The weight, [out_features, in_features]: in f32 if an adapter is folded in, else the model's tensor,
    /// or its dequantized values.
    pub weight: Tensor,
    /// `[out_features]` in the storage dtype.
    pub bias: Option<Tensor>,
}

impl ProjectionWeights {
    /// Views of the weights of some outputs.
    pub(crate) fn rows(&self, rows: &Range<usize>) -> Self {
        let narrow = |tensor: &Tensor| tensor.narrow(0, rows.start as i64, rows.len() as i64);
        Self { weight: narrow(&self.weight), bias: self.bias.as_ref().map(narrow) }
    }
}

impl Linear {
    /// A projection that shares the weights and has no adapter.
    pub(crate) fn without_adapter(&self) -> Self {
        Self {
            name: self.name.clone(),
            weight: self.weight.map(Tensor::shallow_clone, Tensor::shallow_clone),
            bias: self.bias.as_ref().map(Tensor::shallow_clone),
            lora: None,
            shard: self.shard.clone(),
        }
    }

    /// The shard of the projection that this rank has.
    pub(crate) fn shard(&self) -> &LinearShard {
        self.shard.get().unwrap_or(&FULL)
    }

    /// Applies the layer to `x` [tokens, in_features] in the dtype of `x`. Weights are cast for the product,
    /// and their gradients have the storage dtype. Without `dropout` nothing is dropped. The layer of a
    /// tensor-parallel rank applies its shard to its local inputs.
    pub fn forward(&self, x: &Tensor, adapter: Adapter, dropout: Option<Dropout>) -> Tensor {
        let shard = self.shard();
        let base = || self.product(x, self.bias.as_ref().filter(|_| shard.adds_bias));
        match (&self.lora, adapter) {
            (Some(lora), Adapter::On) => match &lora.magnitudes {
                Some(magnitudes) => self.forward_dora(lora, magnitudes, x, dropout),
                None => lora.add_to(base(), x, &self.name, shard, dropout),
            },
            _ => base(),
        }
    }

    /// [`Self::forward`] with a DoRA adapter, whose layer is full.
    fn forward_dora(
        &self,
        lora: &LoraPair,
        magnitudes: &Tensor,
        x: &Tensor,
        dropout: Option<Dropout>,
    ) -> Tensor {
        let (kind, name) = (x.kind(), self.name.as_str());
        let scale = (magnitudes / lora.adapted_norms(&self.weight.numbers(), kind)).to_kind(kind);
        match dropout.filter(|_| lora.dropout > 0.0) {
            None => {
                let scaled = lora.add_to(self.product(x, None), x, name, &FULL, None) * scale;
                self.bias.as_ref().map_or_else(|| scaled.shallow_clone(), |bias| &scaled + bias.to_kind(kind))
            }
            Some(dropout) => {
                let kept = x * lora.dropout_mask(x, name, dropout);
                let base = self.product(&kept, None);
                let scaled = lora.add_to(base.copy(), &kept, name, &FULL, None) * scale;
                self.product(x, self.bias.as_ref()) + scaled - base
            }
        }
    }

    /// Computes `x W^T + bias` without the adapter.
    fn product(&self, x: &Tensor, bias: Option<&Tensor>) -> Tensor {
        self.weight.linear(x, bias)
    }

    /// Returns the weights with the adapter merged: `W + scaling * B A`, with DoRA each row scaled to its
    /// magnitude. The sum is in f32, so that the caller rounds once; the base is not changed. Without an
    /// adapter, or with it off, the result is the base itself, dequantized if it is quantized.
    pub fn merged(&self, adapter: Adapter) -> ProjectionWeights {
        let weight = match (&self.lora, adapter) {
            (Some(lora), Adapter::On) => tch::no_grad(|| lora.folded_into(&self.weight.wide_numbers())),
            _ => self.weight.numbers(),
        };
        ProjectionWeights { weight, bias: self.bias.as_ref().map(Tensor::detach) }
    }
}

impl LoraPair {
    /// Returns `weight + scaling * b a` in f32; with DoRA its rows are scaled to their magnitudes.
    pub(crate) fn folded_into(&self, weight: &Tensor) -> Tensor {
        let delta = self.b.matmul(&self.a) * self.scaling;
        let folded = weight.to_kind(Kind::Float) + delta;
        match &self.magnitudes {
            Some(magnitudes) => dora::scaled(folded, magnitudes),
            None => folded,
        }
    }

    /// Row norms of `weight` with the adapter merged, f32 [out] without gradient. A and B are rounded to
    /// `kind` first, as in a product in that dtype. The magnitudes of a fresh adapter are the norms in f32.
    pub(crate) fn adapted_norms(&self, weight: &Tensor, kind: Kind) -> Tensor {
        tch::no_grad(|| dora::row_norms(&dora::adapted(weight, [&self.a, &self.b], self.scaling, kind)))
    }

    /// Adds the adapter's output to `base` in place. The scaling is applied to the output of A, which has
    /// only `rank` values per token. Out of place, each wide tensor of the sum would leave a hole in the heap
    /// that cannot be reused, because kept activations are allocated between them. A and B are the shards
    /// that `shard` describes.
    fn add_to(
        &self,
        mut base: Tensor,
        x: &Tensor,
        name: &str,
        shard: &LinearShard,
        dropout: Option<Dropout>,
    ) -> Tensor {
        let kind = x.kind();
        let inner_of = |x: &Tensor| rlt_torch::linear(x, &self.a.to_kind(kind), None) * self.scaling;
        let dropout = dropout.filter(|_| self.dropout > 0.0);
        let kept = match (dropout, self.dropout_position) {
            (Some(dropout), DropoutPosition::After) => {
                let update = inner_of(x).linear(&self.b.to_kind(kind), None::<Tensor>);
                return base
                    .g_add_(&(&update * self.mask_of(&update, name, dropout, shard.outputs.as_ref())));
            }
            (Some(dropout), DropoutPosition::Before) => {
                x * self.mask_of(x, name, dropout, shard.inputs.as_ref())
            }
            (None, _) => x.shallow_clone(),
        };
        base.addmm_(&inner_of(&kept), &self.b.to_kind(kind).tr())
    }

    /// Returns the dropout mask of `x`. If `x` has only the indices `part` of a wider tensor, the mask is
    /// that of the wider tensor at these indices, so that all shards together drop what the full layer drops.
    fn mask_of(&self, x: &Tensor, name: &str, dropout: Dropout, part: Option<&DimRanges>) -> Tensor {
        let Some(DimRanges { len, ranges }) = part else { return self.dropout_mask(x, name, dropout) };
        let meta = Tensor::zeros([1], (x.kind(), x.device())).expand([x.size()[0], *len as i64], false);
        of_ranges(&self.dropout_mask(&meta, name, dropout), ranges, 1)
    }

    /// Mask of dropout: 0 for a dropped value and 1 / (1 - dropout) elsewhere. A function of seed, projection
    /// and position; a kernel draws it on a GPU, with the same values as on the CPU.
    pub(crate) fn dropout_mask(&self, x: &Tensor, name: &str, dropout: Dropout) -> Tensor {
        let Dropout { seed, first_token } = dropout;
        let width = x.size().last().map_or(0, |width| *width as usize);
        let keep = (1.0 / (1.0 - self.dropout)) as f32;
        let mut random = TensorRandom::new(seed, name).skip(first_token * width);
        let threshold = (2.0 * self.dropout - 1.0) as f32;
        if x.device().is_cuda() {
            let (key, first_idx) = random.position();
            return DropoutMask { key, first_idx, threshold, keep }.like(x);
        }
        let draws = random.uniform(x.numel(), 1.0);
        let mask: Vec<f32> = draws.iter().map(|draw| if *draw < threshold { 0.0 } else { keep }).collect();
        Tensor::from_slice(&mask).reshape(x.size()).to_kind(x.kind())
    }
}
