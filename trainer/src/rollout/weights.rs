//! The decoder's linear layers as the engine multiplies with them: fused, packed for few rows, adapters folded in.
//!
//! Queries, keys and values come out of one product, gate and up out of another: five products a layer become four,
//! each over a wider weight. Norms and embeddings stay the trainer's own tensors.

use tch::{Device, Kind, Tensor};

use super::{RolloutError, WeightDigest};
use crate::model::{Adapter, Decoder, DecoderLayer, ProjectionWeights, Projections};
use rlt_torch::{Block, PackedLinear};

/// Packed weights of one policy version.
#[derive(Debug)]
pub(super) struct RolloutWeights {
    pub(super) layers: Vec<PackedLayer>,
    /// [vocabulary, hidden].
    pub(super) head: PackedLinear,
    pub(super) digest: WeightDigest,
    pub(super) policy_version: u64,
}

/// The four products of one layer.
#[derive(Debug)]
pub(super) struct PackedLayer {
    qkv: PackedLinear,
    /// Widths of queries, keys and values in the output of `qkv`.
    qkv_widths: [i64; 3],
    output: PackedLinear,
    gate_up: PackedLinear,
    /// Width of gate and of up in the output of `gate_up`.
    intermediate: i64,
    down: PackedLinear,
}

impl RolloutWeights {
    /// Packs every linear layer of `decoder` in its compute dtype, one layer at a time, for products of about
    /// `rows_hint` rows.
    pub(super) fn pack(decoder: &Decoder, policy_version: u64, rows_hint: i64) -> Result<Self, RolloutError> {
        let digest = WeightDigest::of(decoder)?;
        let kind = decoder.compute_kind();
        let failed = |what: String| |source| RolloutError::Tensor { what, source };
        let mut block = Block::new(packed_bytes(decoder)).map_err(failed("the packed weights".into()))?;
        let mut pack = |(layer_idx, layer): (usize, &DecoderLayer)| {
            PackedLayer::pack(layer, kind, rows_hint, &mut block)
                .map_err(failed(format!("layer {layer_idx}")))
        };
        let layers = decoder.layers().iter().enumerate().map(&mut pack).collect::<Result<Vec<_>, _>>()?;
        let head_vd = decoder.head_weight().detach().to_kind(kind);
        let head = PackedLinear::new(&head_vd, None, rows_hint, Some(&mut block))
            .map_err(failed("the head".into()))?;
        Ok(Self { layers, head, digest, policy_version })
    }
}

impl PackedLayer {
    fn pack(
        layer: &DecoderLayer,
        kind: Kind,
        rows_hint: i64,
        block: &mut Block,
    ) -> Result<Self, rlt_torch::Error> {
        let weights = layer.merged_projection_weights(Adapter::On);
        let mut fuse = |parts: &[ProjectionWeights]| {
            let (weight, bias) = fused(parts, kind);
            PackedLinear::new(&weight, bias.as_ref(), rows_hint, Some(block))
        };
        let width = |part: usize| weights[part].weight.size()[0];
        Ok(Self {
            qkv: fuse(&weights[..3])?,
            qkv_widths: [width(0), width(1), width(2)],
            output: fuse(&weights[3..4])?,
            gate_up: fuse(&weights[4..6])?,
            intermediate: width(4),
            down: fuse(&weights[6..])?,
        })
    }
}

/// Room for the packed projections and head, where they are packed by ourselves: float32 on the CPU. Each product may
/// fill its last panel up.
fn packed_bytes(decoder: &Decoder) -> usize {
    if decoder.compute_kind() != Kind::Float || decoder.device() != Device::Cpu {
        return 0;
    }
    let of = |weight: &Tensor| PackedLinear::packed_bytes(weight.size()[0], weight.size()[1]);
    let projections = decoder.layers().iter().flat_map(|layer| layer.projections());
    projections.map(|projection| of(&projection.weight)).sum::<usize>() + of(decoder.head_weight())
}

/// Weights and biases stacked along the output, in `kind`; a part without a bias counts as zero beside one with.
fn fused(parts: &[ProjectionWeights], kind: Kind) -> (Tensor, Option<Tensor>) {
    let weights: Vec<Tensor> = parts.iter().map(|part| part.weight.to_kind(kind)).collect();
    let has_bias = parts.iter().any(|part| part.bias.is_some());
    let bias_of = |(part, weight): (&ProjectionWeights, &Tensor)| match &part.bias {
        Some(bias) => bias.to_kind(kind),
        None => Tensor::zeros([weight.size()[0]], (kind, weight.device())),
    };
    let biases: Vec<Tensor> = parts.iter().zip(&weights).filter(|_| has_bias).map(bias_of).collect();
    (Tensor::cat(&weights, 0), has_bias.then(|| Tensor::cat(&biases, 0)))
}

impl Projections for PackedLayer {
    fn qkv(&self, normed_td: &Tensor) -> (Tensor, Tensor, Tensor) {
        let qkv = self.qkv.forward(normed_td);
        let [q, k, v] = self.qkv_widths;
        (qkv.narrow(1, 0, q), qkv.narrow(1, q, k), qkv.narrow(1, q + k, v))
    }

    fn output(&self, attended: &Tensor) -> Tensor {
        self.output.forward(attended)
    }

    fn gate_up(&self, normed_td: &Tensor) -> (Tensor, Tensor) {
        let gate_up = self.gate_up.forward(normed_td);
        (gate_up.narrow(1, 0, self.intermediate), gate_up.narrow(1, self.intermediate, self.intermediate))
    }

    fn down(&self, activated: &Tensor) -> Tensor {
        self.down.forward(activated)
    }
}
