//! The decoder's linear layers as the engine multiplies with them: fused, packed for few rows, adapters folded in.
//!
//! Queries, keys and values come out of one product, gate and up out of another: five products a layer become four,
//! each over a wider weight. Norms and embeddings stay the trainer's own tensors where it has all of them. Where ranks share the
//! model its parts are whole one after the other, each no longer than it is packed, and the engine has copies of what it does
//! not pack: embeddings in the dtype in which it computes, and norms. So what it has packed is the one whole copy of the model.

use tch::{Device, Kind, Tensor};

use super::digest::digest_of;
use super::{RolloutError, WeightDigest};
use crate::model::{Adapter, Decoder, DecoderLayer, ProjectionWeights, Projections};
use crate::parallel::{DecoderParts, Part};
use rlt_torch::{Block, PackedLinear};

/// Packed weights of one policy version.
#[derive(Debug)]
pub(super) struct RolloutWeights {
    /// Embeddings and norms.
    pub(super) frame: Decoder,
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
    /// Packs every linear layer of `policy` in its compute dtype, one part of the model at a time, for products of about
    /// `rows_hint` rows.
    pub(super) fn pack(
        policy: DecoderParts<'_>,
        policy_version: u64,
        rows_hint: i64,
    ) -> Result<Self, RolloutError> {
        let digest = WeightDigest::of(policy)?;
        let decoder = policy.decoder();
        let failed = |what: String| |source| RolloutError::Tensor { what, source };
        let block = Block::new(packed_bytes(decoder)).map_err(failed("the packed weights".into()))?;
        let mut packer = Packer { policy, rows_hint, block };
        let (mut outer, mut layers) = (None, Vec::new());
        policy.visit(policy.numbers_to_sample(), |part| {
            packer.attest(part)?;
            if part == Part::Layer(0) && policy.shards().is_some() {
                // What was gathered of what is outside of the layers has gone, and layers are smaller.
                rlt_torch::release_free_memory();
            }
            match part {
                Part::Outer => outer = Some(packer.outer().map_err(failed("the head".into()))?),
                Part::Layer(layer_idx) => {
                    let layer = packer.layer(&decoder.layers()[layer_idx]);
                    layers.push(layer.map_err(failed(format!("layer {layer_idx}")))?);
                }
            }
            Ok::<(), RolloutError>(())
        })?;
        let (mut frame, head) = outer.ok_or(RolloutError::Asleep)?;
        let (norms, layers) = layers.into_iter().unzip();
        frame.layers = norms;
        Ok(Self { frame, layers, head, digest, policy_version })
    }
}

/// Takes the parts of a policy over while they are whole.
struct Packer<'a> {
    policy: DecoderParts<'a>,
    rows_hint: i64,
    block: Block,
}

impl Packer<'_> {
    /// Fails unless what has been gathered of a part is what the ranks hold of it.
    fn attest(&self, part: Part) -> Result<(), RolloutError> {
        let Some(shards) = self.policy.shards() else { return Ok(()) };
        match shards.is_as_held(part, |tensor| digest_of(&part_name(part), tensor))? {
            true => Ok(()),
            false => Err(RolloutError::Torn { part: part_name(part) }),
        }
    }

    /// Embedding and final norm, and the head.
    fn outer(&mut self) -> Result<(Decoder, PackedLinear), rlt_torch::Error> {
        let (decoder, kind) = (self.policy.decoder(), self.policy.decoder().compute_kind());
        let frame = match self.policy.shards() {
            None => decoder.frame(decoder.embedding.detach(), decoder.norm.detach()),
            Some(_) => decoder.frame(cast(&decoder.embedding, kind), copied(&decoder.norm)),
        };
        // On the CPU fp32 is packed, and anything else was cast: either is a copy.
        let is_kept_plain = kind != Kind::Float || decoder.device() != Device::Cpu;
        let head_vd = match self.policy.shards() {
            Some(_) if is_kept_plain => cast(decoder.head_weight(), kind),
            _ => decoder.head_weight().detach().to_kind(kind),
        };
        let head = PackedLinear::new(&head_vd, None, self.rows_hint, Some(&mut self.block))?;
        Ok((frame, head))
    }

    /// A layer's norms, and its products.
    fn layer(&mut self, layer: &DecoderLayer) -> Result<(DecoderLayer, PackedLayer), rlt_torch::Error> {
        let kind = self.policy.decoder().compute_kind();
        let norms = match self.policy.shards() {
            None => layer.norms(Tensor::detach),
            Some(_) => layer.norms(copied),
        };
        Ok((norms, PackedLayer::pack(layer, kind, self.rows_hint, &mut self.block)?))
    }
}

fn part_name(part: Part) -> String {
    part.layer_idx().map_or("what is outside of the layers".into(), |idx| format!("layer {idx}"))
}

fn copied(tensor: &Tensor) -> Tensor {
    tensor.detach().copy()
}

/// A copy in `kind`, also where it has that already.
fn cast(tensor: &Tensor, kind: Kind) -> Tensor {
    if tensor.kind() == kind { copied(tensor) } else { tensor.detach().to_kind(kind) }
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
