//! Products on a device with unmerged adapters, which write into given tensors.
//!
//! ```text
//! base       dense weights side by side as one product; quantized ones as one kernel for few rows, else
//!            dequantized side by side and multiplied
//! adapters   x A^T, all A stacked; + (x A^T) B^T, each B in the rows and columns of its adapter:
//!
//!              B_q  0   0                two launches, however many projections are fused; s is folded into
//!              0    B_k 0                B before it is rounded
//!              0    0   B_v
//! ```
//! Quantized weights are shared with the trainer, or with FSDP copies. If kernels need heads in another order
//! or padded, a list of row indices maps outputs to stored rows. The padding of input heads is removed before
//! the product.

use rlt_decoder::{Adapter, BaseWeight, Linear, NamedTensors, ProjectionWeights, TpSharding};
use rlt_layout::LocalTensor;
use rlt_torch::cuda::{Dequantize, Kernels, QUANTIZED_FEW_ROWS, QuantizedLinear, QuantizedRows};
use rlt_torch::{Error, PackedLinear, QuantizedMatrix};
use tch::{Kind, TchError, Tensor, no_grad};

use super::{ProductOptions, adapter_matrices, bytes_of, fused, local_adapter, local_outputs};
use crate::padded_heads::PaddedHeads;

/// Products of projections with the same inputs, side by side.
#[derive(Debug)]
pub(crate) struct DeviceProduct {
    parts: Vec<Part>,
    bases: Vec<Base>,
    /// A `[r, in]` and B `[r, all outputs]` of all adapters, in the compute dtype; r is the sum of the
    /// adapters' ranks.
    adapter: Option<[Tensor; 2]>,
    /// Factor of the output.
    scale: f64,
    /// Width of the input's heads, unpadded and padded; `None` if the input has no padded heads.
    input_heads: Option<[i64; 2]>,
    base_bytes: usize,
}

/// Outputs of one projection.
#[derive(Debug)]
struct Part {
    projection: String,
    /// Indices of the projection's weight [out, in] that the rank multiplies with.
    local: LocalTensor,
    /// Index among q, k, v, o, gate, up and down.
    product: usize,
    /// Number of outputs, with padded heads.
    outputs: i64,
}

/// A quantized weight, and its rows that the product computes.
#[derive(Debug)]
struct QuantizedOutputs {
    matrix: QuantizedMatrix,
    /// Indices of the rows, i32, -1 for a zero; `None` if they are all rows in order.
    rows: Option<Tensor>,
}

/// Base weights side by side.
#[derive(Debug)]
enum Base {
    Dense(PackedLinear),
    /// Quantized weights of one layout.
    Quantized {
        weights: Vec<QuantizedOutputs>,
        bias: Option<Tensor>,
    },
}

/// Buffers that products share, one after the other.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Buffer for weights that are dequantized side by side.
    pub(crate) numbers: Option<Tensor>,
    /// Buffer for the output of A, [rows, most adapter ranks side by side].
    pub(crate) inner: Option<Tensor>,
    /// Buffer for inputs without the padding of heads, [rows, inputs].
    pub(crate) heads: Option<Tensor>,
}

impl DeviceProduct {
    /// Makes the product of `shards` of projections, with their indices among q, k, v, o, gate, up and down.
    pub(crate) fn new(
        shards: Vec<(usize, &Linear, LocalTensor)>,
        sharding: &TpSharding<'_>,
        layout: &PaddedHeads,
        options: ProductOptions,
        scale: f64,
    ) -> Result<Self, Error> {
        let reads_heads = shards.iter().any(|(product, ..)| *product == OUTPUT);
        let padded = (layout.width != layout.padded_width)
            .then_some([layout.width as i64, layout.padded_width as i64]);
        let mut product = Self {
            parts: Vec::new(),
            bases: Vec::new(),
            adapter: None,
            scale,
            input_heads: padded.filter(|_| reads_heads),
            base_bytes: 0,
        };
        let mut dense: Vec<ProjectionWeights> = Vec::new();
        for (position, projection, local) in shards {
            let outputs = match &projection.weight {
                BaseWeight::Dense(_) => {
                    let own = sharding.keep(projection.merged(Adapter::Off), &local);
                    let place = |tensor: &Tensor| layout.outputs(position, tensor);
                    let ProjectionWeights { weight, bias } = own;
                    dense.push(ProjectionWeights { weight: place(&weight), bias: bias.as_ref().map(place) });
                    dense[dense.len() - 1].weight.size()[0]
                }
                BaseWeight::Quantized(weight) => {
                    product.push_dense(&mut dense, options)?;
                    let rows = stored_rows(&weight.matrix, position, &local, layout)?;
                    let bias = projection.bias.as_ref().map(|bias| match &rows {
                        None => bias.detach(),
                        Some(_) => layout.outputs(position, &local_outputs(&local, bias)),
                    });
                    product.push_quantized(&weight.matrix, rows, bias.as_ref(), options)
                }
            };
            product.parts.push(Part {
                projection: projection.name.clone(),
                local,
                product: position,
                outputs,
            });
        }
        product.push_dense(&mut dense, options)?;
        Ok(product)
    }

    fn push_dense(
        &mut self,
        dense: &mut Vec<ProjectionWeights>,
        ProductOptions { kind, shares, rows_hint }: ProductOptions,
    ) -> Result<(), Error> {
        if !dense.is_empty() {
            let (weight, bias) = fused(&std::mem::take(dense), kind, shares);
            let packed = PackedLinear::new(&weight, bias.as_ref(), rows_hint, None)?;
            self.base_bytes += packed.num_bytes();
            self.bases.push(Base::Dense(packed));
        }
        Ok(())
    }

    /// Adds a quantized weight, fused with the previous ones if these have the same layout. Returns the
    /// number of its outputs.
    fn push_quantized(
        &mut self,
        matrix: &QuantizedMatrix,
        rows: Option<Tensor>,
        bias: Option<&Tensor>,
        ProductOptions { kind, shares, .. }: ProductOptions,
    ) -> i64 {
        let outputs = rows.as_ref().map_or(matrix.size()[0], |rows| rows.size()[0]);
        let own = matrix.map(|tensor| if shares { tensor.detach() } else { tensor.detach().copy() });
        self.base_bytes += if shares { 0 } else { own.num_bytes() };
        let bias = bias.map(|bias| bias.detach().to_dtype(kind, false, true));
        let alike = |weights: &[QuantizedOutputs]| {
            weights.len() < rlt_torch::cuda::QUANTIZED_PARTS
                && weights.iter().all(|other| other.matrix.layout() == own.layout())
        };
        match self.bases.last_mut() {
            Some(Base::Quantized { weights, bias: before }) if alike(weights) => {
                let outputs_before: i64 = weights.iter().map(QuantizedOutputs::num_outputs).sum();
                let zeros = |len: i64| Tensor::zeros([len], (kind, own.device()));
                if before.is_some() || bias.is_some() {
                    let first = before.take().unwrap_or_else(|| zeros(outputs_before));
                    *before = Some(Tensor::cat(&[first, bias.unwrap_or_else(|| zeros(outputs))], 0));
                }
                weights.push(QuantizedOutputs { matrix: own, rows });
            }
            _ => self
                .bases
                .push(Base::Quantized { weights: vec![QuantizedOutputs { matrix: own, rows }], bias }),
        }
        outputs
    }

    /// Copies the adapters of the projections, and drops the previous ones. `of_name` finds a projection by
    /// its name, and `gathered` has the adapters' matrices if the policy is sharded. Returns the number of
    /// bytes copied from the trainer.
    pub(super) fn take_adapter<'a>(
        &mut self,
        of_name: &impl Fn(&str) -> Option<&'a Linear>,
        gathered: Option<&NamedTensors>,
        options: ProductOptions,
        layout: &PaddedHeads,
    ) -> Result<usize, Error> {
        self.adapter = None;
        let (mut all_a, mut all_b, mut num_bytes) = (Vec::new(), Vec::new(), 0);
        let (mut first_output, mut before) = (0, None);
        for part in &self.parts {
            let outputs = first_output..first_output + part.outputs;
            first_output = outputs.end;
            let pair = of_name(&part.projection).and_then(|projection| projection.lora.as_ref());
            let Some(pair) = pair else { continue };
            let [a, b] = adapter_matrices(&part.projection, pair, gathered)?;
            if before != Some(&part.projection) {
                num_bytes += bytes_of(&a) + bytes_of(&b);
            }
            before = Some(&part.projection);
            let [a, b] = local_adapter(&part.local, [&a, &b]);
            let b = layout.outputs(part.product, &(b.to_kind(Kind::Float) * pair.scaling));
            all_a.push(a);
            all_b.push((outputs, b));
        }
        let num_ranks: i64 = all_a.iter().map(|a| a.size()[0]).sum();
        if let Some((_, first)) = all_b.first() {
            let b_ro = Tensor::zeros([num_ranks, first_output], (Kind::Float, first.device()));
            let mut rank = 0;
            for (outputs, b) in &all_b {
                let ranks = b.size()[1];
                let mut place =
                    b_ro.narrow(0, rank, ranks).narrow(1, outputs.start, outputs.end - outputs.start);
                place.copy_(&b.tr());
                rank += ranks;
            }
            let a = Tensor::cat(&all_a, 0).to_kind(options.kind);
            self.adapter = Some([a, b_ro.to_kind(options.kind)]);
        }
        Ok(num_bytes)
    }

    /// Frees the adapters.
    pub(super) fn drop_adapter(&mut self) {
        self.adapter = None;
    }

    /// Sum of the ranks of all adapters.
    pub(crate) fn num_ranks(&self) -> usize {
        self.adapter.as_ref().map_or(0, |[a, _]| a.size()[0] as usize)
    }

    /// Largest number of weight values that are dequantized at once, side by side.
    pub(crate) fn dequantized_numbers(&self) -> usize {
        let of_base = |base: &Base| match base {
            Base::Dense(_) => 0,
            Base::Quantized { weights, .. } => {
                let outputs: i64 = weights.iter().map(QuantizedOutputs::num_outputs).sum();
                (outputs * weights[0].matrix.size()[1]) as usize
            }
        };
        self.bases.iter().map(of_base).max().unwrap_or(0)
    }

    pub(super) fn num_bytes(&self) -> usize {
        let of_adapter = self.adapter.iter().flatten().map(bytes_of).sum::<usize>();
        self.base_bytes + of_adapter
    }

    /// Multiplies `x` [rows, in] into `out` [rows, all outputs].
    ///
    /// # Errors
    /// If shapes or dtypes do not fit.
    pub(super) fn forward_into(
        &self,
        x: &Tensor,
        out: &Tensor,
        kernels: &Kernels,
        scratch: &Workspace,
    ) -> Result<(), Error> {
        let failed = |error: TchError| Error::Libtorch { act: ADAPTER, message: error.to_string() };
        let own_heads;
        let x = match (self.input_heads, &scratch.heads) {
            (Some(widths), Some(heads)) => {
                own_heads = without_padding(x, widths, heads).map_err(failed)?;
                &own_heads
            }
            _ => x,
        };
        let mut start = 0;
        for base in &self.bases {
            let width = base.outputs();
            let own = out.narrow(1, start, width);
            base.forward_into(x, if self.bases.len() == 1 { out } else { &own }, kernels, scratch)?;
            start += width;
        }
        if let Some([a, b_ro]) = &self.adapter {
            let inner = first_numbers(&scratch.inner, [x.size()[0], a.size()[0]])?;
            no_grad(|| {
                let _ = x.f_mm_out(&inner, &a.tr())?;
                out.shallow_clone().f_addmm_(&inner, b_ro).map(drop)
            })
            .map_err(failed)?;
        }
        if self.scale != 1.0 {
            no_grad(|| out.shallow_clone().f_mul_scalar_(self.scale).map(drop)).map_err(failed)?;
        }
        Ok(())
    }
}

const ADAPTER: &str = "a linear layer with an unmerged adapter";
/// Index of the product whose inputs are heads.
const OUTPUT: usize = 3;

impl Base {
    fn outputs(&self) -> i64 {
        match self {
            Self::Dense(packed) => packed.num_outputs(),
            Self::Quantized { weights, .. } => weights.iter().map(QuantizedOutputs::num_outputs).sum(),
        }
    }

    fn forward_into(
        &self,
        x: &Tensor,
        out: &Tensor,
        kernels: &Kernels,
        scratch: &Workspace,
    ) -> Result<(), Error> {
        let (weights, bias) = match self {
            Self::Dense(packed) => return packed.forward_into(x, out),
            Self::Quantized { weights, bias } => (weights, bias.as_ref()),
        };
        let parts: Vec<QuantizedRows<'_>> = weights
            .iter()
            .map(|QuantizedOutputs { matrix, rows }| QuantizedRows { matrix, rows: rows.as_ref() })
            .collect();
        if x.size()[0] as usize <= QUANTIZED_FEW_ROWS {
            return QuantizedLinear { parts: &parts, x, bias, out }.launch(kernels);
        }
        let numbers = first_numbers(&scratch.numbers, [self.outputs(), weights[0].matrix.size()[1]])?;
        Dequantize { parts: &parts, out: &numbers }.launch(kernels)?;
        PackedLinear::new(&numbers, bias, 1, None)?.forward_into(x, out)
    }
}

impl QuantizedOutputs {
    fn num_outputs(&self) -> i64 {
        self.rows.as_ref().map_or(self.matrix.size()[0], |rows| rows.size()[0])
    }
}

/// Indices of the weight's rows that are outputs, i32, -1 where a head is padded; `None` if they are all rows
/// in order.
fn stored_rows(
    matrix: &QuantizedMatrix,
    product: usize,
    local: &LocalTensor,
    layout: &PaddedHeads,
) -> Result<Option<Tensor>, Error> {
    let [outputs, _] = matrix.size();
    if !local.dims()[1].is_full() {
        let (expected, got) = ("all inputs of a row".into(), "a rank's shard of them".into());
        return Err(Error::Argument { act: "taking a quantized weight over", expected, got });
    }
    let all = Tensor::arange(outputs, (Kind::Int64, matrix.device()));
    let rows = layout.outputs(product, &(local_outputs(local, &all) + 1)) - 1;
    let is_all = rows.size() == all.size() && layout.keeps_order();
    Ok((!is_all).then(|| rows.to_kind(Kind::Int).contiguous()))
}

/// A view of the beginning of a buffer, with this size.
fn first_numbers(buffer: &Option<Tensor>, size: [i64; 2]) -> Result<Tensor, Error> {
    let len = size[0] * size[1];
    match buffer {
        Some(buffer) if buffer.numel() as i64 >= len => Ok(buffer.view([-1]).narrow(0, 0, len).view(size)),
        _ => Err(Error::Argument {
            act: ADAPTER,
            expected: format!("memory for {len} numbers"),
            got: buffer.as_ref().map_or(0, Tensor::numel).to_string(),
        }),
    }
}

/// Removes the padding of heads, [rows, heads * padded] to [rows, heads * own], in the memory of `heads`.
/// Each half of a head is padded.
fn without_padding(x: &Tensor, [own, padded]: [i64; 2], heads: &Tensor) -> Result<Tensor, TchError> {
    let halves = x.unflatten(1, [-1, padded / 2]).narrow(2, 0, own / 2);
    let dense = heads.narrow(0, 0, x.size()[0]);
    dense.unflatten(1, [-1, own / 2]).f_copy_(&halves)?;
    Ok(dense)
}
