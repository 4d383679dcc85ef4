//! A product of a layer as the engine multiplies with it: packed, its adapter folded in; or of projections
//! that are quantized, each with its adapter beside it, as the actor computes it.
//!
//! A quantized base is the trainer's own tensors, unless ranks share the model: then it is a copy. It is
//! unpacked as the product reads it, and a sync brings the adapter alone.

use rlt_torch::{Error, PackedLinear, QuantizedMatrix};
use tch::{Kind, Tensor, no_grad};

use crate::model::{BaseWeight, Projection};

/// A linear layer, [rows, in] to [rows, out], without gradients.
#[derive(Debug)]
pub(super) enum Product {
    /// One weight.
    Packed(PackedLinear),
    /// The outputs of several projections side by side, some of them quantized.
    Projections(Vec<AdaptedProjection>),
}

/// A projection whose adapter is not folded in.
#[derive(Debug)]
pub(super) struct AdaptedProjection {
    base: Base,
    lora: Option<Lora>,
    /// What the engine holds of it; tensors that are the trainer's are not counted.
    own_bytes: usize,
}

#[derive(Debug)]
enum Base {
    Packed(PackedLinear),
    Quantized { matrix: QuantizedMatrix, bias: Option<Tensor> },
}

/// A [rank, in] and B [out, rank] in the dtype that samples.
#[derive(Debug)]
enum Lora {
    /// In f32 each row is multiplied by itself, as everywhere in the engine.
    Packed { a: PackedLinear, b: PackedLinear, scaling: f64 },
    /// In narrower numbers the sum is rounded where the actor rounds it.
    Plain { a: Tensor, b_ro: Tensor, scaling: f64 },
}

impl Product {
    /// Products by whole projections in `kind`; with `shares` a quantized base stays the trainer's own.
    pub(super) fn of_projections(
        projections: &[&Projection],
        (kind, shares): (Kind, bool),
        rows_hint: i64,
    ) -> Result<Self, Error> {
        let adapted = projections
            .iter()
            .map(|projection| AdaptedProjection::new(projection, (kind, shares), rows_hint));
        adapted.collect::<Result<_, _>>().map(Self::Projections)
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        match self {
            Self::Packed(packed) => packed.forward(x),
            Self::Projections(projections) => match projections.as_slice() {
                [alone] => alone.forward(x),
                several => {
                    let outputs: Vec<Tensor> = several.iter().map(|one| one.forward(x)).collect();
                    Tensor::cat(&outputs, -1)
                }
            },
        }
    }

    /// As [`PackedLinear::forward_into`], on devices, where nothing is quantized.
    pub(super) fn forward_into(&self, x: &Tensor, out: &Tensor) -> Result<(), Error> {
        match self {
            Self::Packed(packed) => packed.forward_into(x, out),
            Self::Projections(_) => Err(Error::Argument {
                act: "a linear layer into a given tensor",
                expected: "a packed weight".into(),
                got: "a quantized one".into(),
            }),
        }
    }

    /// Bytes that the engine holds of it.
    pub(super) fn num_bytes(&self) -> usize {
        match self {
            Self::Packed(packed) => packed.num_bytes(),
            Self::Projections(projections) => projections.iter().map(|projection| projection.own_bytes).sum(),
        }
    }
}

impl AdaptedProjection {
    fn new(projection: &Projection, (kind, shares): (Kind, bool), rows_hint: i64) -> Result<Self, Error> {
        let keep = |tensor: &Tensor| if shares { tensor.detach() } else { tensor.detach().copy() };
        let cast = |tensor: &Tensor| no_grad(|| tensor.detach().to_kind(kind));
        let bias = projection.bias.as_ref().map(|bias| keep(&cast(bias)));
        let (base, base_bytes) = match &projection.weight {
            BaseWeight::Dense(weight) => {
                let packed = PackedLinear::new(&keep(&cast(weight)), bias.as_ref(), rows_hint, None)?;
                let num_bytes = packed.num_bytes();
                (Base::Packed(packed), num_bytes)
            }
            BaseWeight::Quantized(weight) => {
                let matrix = weight.matrix.map(keep);
                let num_bytes = if shares { 0 } else { matrix.num_bytes() };
                (Base::Quantized { matrix, bias }, num_bytes)
            }
        };
        let lora = projection.lora.as_ref();
        let lora =
            lora.map(|pair| Lora::new([&pair.a, &pair.b], pair.scaling, kind, rows_hint)).transpose()?;
        let own_bytes = base_bytes + lora.as_ref().map_or(0, Lora::num_bytes);
        Ok(Self { base, lora, own_bytes })
    }

    /// As [`Projection::forward`] computes it.
    fn forward(&self, x: &Tensor) -> Tensor {
        no_grad(|| {
            let output = match &self.base {
                Base::Packed(packed) => packed.forward(x),
                Base::Quantized { matrix, bias } => matrix.product(x, bias.as_ref()),
            };
            match &self.lora {
                Some(lora) => lora.add_to(output, x),
                None => output,
            }
        })
    }
}

impl Lora {
    /// A copy of A and B, for the next update changes them.
    fn new([a, b]: [&Tensor; 2], scaling: f64, kind: Kind, rows_hint: i64) -> Result<Self, Error> {
        if kind == Kind::Float {
            let pack = |matrix: &Tensor| PackedLinear::new(&matrix.detach(), None, rows_hint, None);
            return Ok(Self::Packed { a: pack(a)?, b: pack(b)?, scaling });
        }
        let cast = |matrix: &Tensor| no_grad(|| matrix.detach().to_dtype(kind, false, true));
        Ok(Self::Plain { a: cast(a), b_ro: cast(b).tr(), scaling })
    }

    fn add_to(&self, mut output: Tensor, x: &Tensor) -> Tensor {
        match self {
            Self::Packed { a, b, scaling } => output.g_add_(&b.forward(&(a.forward(x) * *scaling))),
            Self::Plain { a, b_ro, scaling } => {
                let inner = x.linear(a, None::<Tensor>) * *scaling;
                output.addmm_(&inner, b_ro)
            }
        }
    }

    fn num_bytes(&self) -> usize {
        let bytes = |tensor: &Tensor| tensor.numel() * tensor.kind().elt_size_in_bytes();
        match self {
            Self::Packed { a, b, .. } => a.num_bytes() + b.num_bytes(),
            Self::Plain { a, b_ro, .. } => bytes(a) + bytes(b_ro),
        }
    }
}
