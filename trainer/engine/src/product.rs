//! A product of a layer in the engine: packed with its adapter merged, or by projections with unmerged
//! adapters, as in the actor.
//!
//! A quantized base is shared with the trainer, or copied if the trainer is sharded, and dequantized by the
//! product. Any other base is packed. With unmerged adapters a sync transfers only the adapter. [`on_device`]
//! has these products for GPUs.

mod on_device;

use rlt_decoder::{
    Adapter, BaseWeight, Linear, LoraPair, NamedTensors, ProjectionWeights, TpSharding, of_ranges, peft_names,
};
use rlt_layout::LocalTensor;
use rlt_torch::cuda::Kernels;
use rlt_torch::{Error, PackedLinear, QuantizedMatrix, WeightArena};
use tch::{Kind, Tensor, no_grad};

use super::padded_heads::PaddedHeads;
pub(super) use on_device::{DeviceProduct, Workspace};

/// A linear layer without gradients, [rows, in] to [rows, out].
#[derive(Debug)]
pub(super) enum Product {
    /// One packed weight, with merged adapters.
    Packed(PackedLinear),
    /// Outputs of several projections side by side, with unmerged adapters.
    Projections(Vec<AdaptedProjection>),
    /// Outputs of several projections with unmerged adapters, on a device.
    OnDevice(DeviceProduct),
}

/// A projection with an unmerged adapter, or a rank's shard of some of its outputs.
#[derive(Debug)]
pub(super) struct AdaptedProjection {
    /// Full module name of the projection.
    name: String,
    /// Indices of the projection's weight [out, in] that the rank multiplies with.
    local: LocalTensor,
    base: Base,
    lora: Option<Lora>,
    /// Bytes of the base that the engine holds; tensors that are shared with the trainer do not count.
    base_bytes: usize,
}

/// Settings of products by projections.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProductOptions {
    /// Compute dtype of the rollout.
    pub(super) kind: Kind,
    /// Whether tensors that need no packing are shared with the trainer.
    pub(super) shares: bool,
    /// Expected number of rows of a product.
    pub(super) rows_hint: i64,
}

#[derive(Debug)]
enum Base {
    Packed(PackedLinear),
    Quantized { matrix: QuantizedMatrix, bias: Option<Tensor> },
}

/// A [rank, in] and B [out, rank] in the compute dtype.
#[derive(Debug)]
enum Lora {
    /// Packed f32 matrices, with which each row is multiplied independently of its batch.
    Packed { a: PackedLinear, b: PackedLinear, scaling: f64 },
    /// Matrices in a narrower dtype, with which the output is rounded at the same points as in the actor.
    Plain { a: Tensor, b_ro: Tensor, scaling: f64 },
}

impl Product {
    /// Creates the product of `projections`, or of this rank's shards of them. A dense base is packed in
    /// `arena` while that has space.
    pub(super) fn of_projections(
        projections: Vec<(&Linear, LocalTensor)>,
        sharding: &TpSharding<'_>,
        options: ProductOptions,
        arena: &mut WeightArena,
    ) -> Result<Self, Error> {
        let adapted = projections
            .into_iter()
            .map(|(projection, local)| AdaptedProjection::new(projection, local, sharding, options, arena));
        adapted.collect::<Result<_, _>>().map(Self::Projections)
    }

    /// Copies the unmerged adapters of the product's projections. `of_name` finds a projection by its name,
    /// and `gathered` has the adapters' matrices if the policy is sharded. Returns the number of bytes copied
    /// from the trainer.
    pub(super) fn take_adapter<'a>(
        &mut self,
        of_name: impl Fn(&str) -> Option<&'a Linear>,
        gathered: Option<&NamedTensors>,
        options: ProductOptions,
        layout: &PaddedHeads,
    ) -> Result<usize, Error> {
        match self {
            Self::Packed(_) => Ok(0),
            Self::Projections(projections) => projections.iter_mut().try_fold(0, |num_bytes, own| {
                let projection = of_name(&own.name).ok_or_else(|| no_projection(&own.name))?;
                Ok(num_bytes + own.take_adapter(projection, gathered, options)?)
            }),
            Self::OnDevice(product) => product.take_adapter(&of_name, gathered, options, layout),
        }
    }

    /// Frees the unmerged adapters.
    pub(super) fn drop_adapter(&mut self) {
        match self {
            Self::Packed(_) => {}
            Self::Projections(projections) => projections.iter_mut().for_each(|own| own.lora = None),
            Self::OnDevice(product) => product.drop_adapter(),
        }
    }

    /// The product with unmerged adapters on a device; `None` for other products.
    pub(super) fn as_on_device(&self) -> Option<&DeviceProduct> {
        if let Self::OnDevice(product) = self { Some(product) } else { None }
    }

    /// Multiplies `x` [rows, in].
    ///
    /// # Panics
    /// On a device, where products write into given tensors.
    #[expect(clippy::panic, reason = "as of a packed weight of another device")]
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
            Self::OnDevice(_) => panic!("a product on a device: expected a tensor to write into"),
        }
    }

    /// Multiplies `x` into `out` on a device, see [`PackedLinear::forward_into`].
    pub(super) fn forward_into(
        &self,
        x: &Tensor,
        out: &Tensor,
        kernels: &Kernels,
        scratch: &Workspace,
    ) -> Result<(), Error> {
        match self {
            Self::Packed(packed) => packed.forward_into(x, out),
            Self::OnDevice(product) => product.forward_into(x, out, kernels, scratch),
            Self::Projections(_) => Err(Error::Argument {
                act: "a linear layer into a given tensor",
                expected: "a weight on a device".into(),
                got: "one on the CPU with an unmerged adapter".into(),
            }),
        }
    }

    /// Number of bytes that the engine holds of the product.
    pub(super) fn num_bytes(&self) -> usize {
        match self {
            Self::Packed(packed) => packed.num_bytes(),
            Self::Projections(projections) => projections.iter().map(AdaptedProjection::num_bytes).sum(),
            Self::OnDevice(product) => product.num_bytes(),
        }
    }
}

impl AdaptedProjection {
    fn new(
        projection: &Linear,
        local: LocalTensor,
        sharding: &TpSharding<'_>,
        options: ProductOptions,
        arena: &mut WeightArena,
    ) -> Result<Self, Error> {
        let ProductOptions { kind, shares, rows_hint } = options;
        let keep = |tensor: &Tensor| if shares { tensor.detach() } else { tensor.detach().copy() };
        let cast = |tensor: &Tensor| no_grad(|| tensor.detach().to_kind(kind));
        let (base, base_bytes) = match &projection.weight {
            BaseWeight::Dense(_) => {
                let own = sharding.keep(projection.merged(Adapter::Off), &local);
                // In f32 the packed weight is a copy.
                let weight = cast(&own.weight).contiguous();
                let weight = if kind == Kind::Float { weight } else { keep(&weight) };
                let bias = own.bias.as_ref().map(|bias| keep(&cast(bias)));
                let packed = PackedLinear::new(&weight, bias.as_ref(), rows_hint, Some(arena))?;
                let num_bytes = packed.num_bytes();
                (Base::Packed(packed), num_bytes)
            }
            BaseWeight::Quantized(weight) => {
                let matrix = weight.matrix.map(keep);
                let num_bytes = if shares { 0 } else { matrix.num_bytes() };
                let bias = projection.bias.as_ref().map(|bias| keep(&cast(bias)));
                (Base::Quantized { matrix, bias }, num_bytes)
            }
        };
        let mut adapted = Self { name: projection.name.clone(), local, base, lora: None, base_bytes };
        adapted.take_adapter(projection, None, options)?;
        Ok(adapted)
    }

    /// Replaces the adapter by a copy of that of `projection`, or removes it if `projection` has none.
    /// `gathered` has the adapter's matrices if the policy is sharded. Returns the number of bytes copied
    /// from the trainer.
    fn take_adapter(
        &mut self,
        projection: &Linear,
        gathered: Option<&NamedTensors>,
        ProductOptions { kind, rows_hint, .. }: ProductOptions,
    ) -> Result<usize, Error> {
        self.lora = None;
        let Some(pair) = &projection.lora else { return Ok(0) };
        let [a, b] = adapter_matrices(&projection.name, pair, gathered)?;
        let [own_a, own_b] = local_adapter(&self.local, [&a, &b]);
        self.lora = Some(Lora::new([&own_a, &own_b], pair.scaling, kind, rows_hint)?);
        Ok([a, b].iter().map(bytes_of).sum())
    }

    fn num_bytes(&self) -> usize {
        self.base_bytes + self.lora.as_ref().map_or(0, Lora::num_bytes)
    }

    /// Multiplies `x` in the same way as [`Linear::forward`].
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
    /// Copies A and B, because the next update changes them.
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
                let inner = rlt_torch::linear(x, a, None) * *scaling;
                output.addmm_(&inner, b_ro)
            }
        }
    }

    fn num_bytes(&self) -> usize {
        match self {
            Self::Packed { a, b, .. } => a.num_bytes() + b.num_bytes(),
            Self::Plain { a, b_ro, .. } => bytes_of(a) + bytes_of(b_ro),
        }
    }
}

/// A and B of a projection: the trainer's, or gathered ones.
fn adapter_matrices(
    projection: &str,
    pair: &LoraPair,
    gathered: Option<&NamedTensors>,
) -> Result<[Tensor; 2], Error> {
    let [name_a, name_b] = peft_names(projection);
    Ok([matrix(&name_a, &pair.a, gathered)?, matrix(&name_b, &pair.b, gathered)?])
}

/// Selects a rank's elements of a vector with all outputs of a projection.
fn local_outputs(local: &LocalTensor, all: &Tensor) -> Tensor {
    of_ranges(all, &local.dims()[0].ranges, 0)
}

/// Selects a rank's shard of an adapter with A [rank, in] and B [out, rank], as views. If the shard has only
/// some of the inputs, its output is a summand of the full adapter's output, as it is for the weight.
fn local_adapter(local: &LocalTensor, [a, b]: [&Tensor; 2]) -> [Tensor; 2] {
    [of_ranges(a, &local.dims()[1].ranges, 1), local_outputs(local, b)]
}

fn no_projection(name: &str) -> Error {
    Error::Argument {
        act: "taking an adapter over",
        expected: format!("the projection {name}"),
        got: "a layer of another model".into(),
    }
}

/// A matrix of an adapter: the trainer's, or the gathered one.
fn matrix(name: &str, own: &Tensor, gathered: Option<&NamedTensors>) -> Result<Tensor, Error> {
    let Some(gathered) = gathered else { return Ok(own.detach()) };
    let found = gathered.iter().find(|(gathered, _)| gathered == name);
    found.map(|(_, matrix)| matrix.detach()).ok_or_else(|| Error::Argument {
        act: "taking an adapter over",
        expected: format!("the matrix {name}"),
        got: "none of this name from the ranks".into(),
    })
}

fn bytes_of(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

/// Weights and biases stacked along the output, in `kind`. A missing bias counts as zeros if another weight
/// has one. A single weight may share memory with the model if `shares` is set.
pub(super) fn fused(parts: &[ProjectionWeights], kind: Kind, shares: bool) -> (Tensor, Option<Tensor>) {
    if let ([unit], true) = (parts, shares) {
        return (unit.weight.to_kind(kind).contiguous(), unit.bias.as_ref().map(|bias| bias.to_kind(kind)));
    }
    let weights: Vec<Tensor> = parts.iter().map(|unit| unit.weight.to_kind(kind)).collect();
    let has_bias = parts.iter().any(|unit| unit.bias.is_some());
    let bias_of = |(unit, weight): (&ProjectionWeights, &Tensor)| match &unit.bias {
        Some(bias) => bias.to_kind(kind),
        None => Tensor::zeros([weight.size()[0]], (kind, weight.device())),
    };
    let biases: Vec<Tensor> = parts.iter().zip(&weights).filter(|_| has_bias).map(bias_of).collect();
    (Tensor::cat(&weights, 0), has_bias.then(|| Tensor::cat(&biases, 0)))
}
