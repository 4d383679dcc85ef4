//! The L2 norm of many tensors in f64, without copies of them in f64.

use super::kernels::Kernels;
use super::module::Shape;
use crate::Error;
use std::ffi::c_void;
use tch::{Kind, Tensor};

/// Number of elements per block.
const CHUNK: usize = 1 << 16;
/// Number of words in a row of the table.
const WORDS: usize = 3;

/// The addresses of the tensors of one launch, on the host; its words are copied to the device once.
#[derive(Clone, Debug)]
pub struct SquaresTable {
    words: Vec<i64>,
    blocks: usize,
    kind: Kind,
}

impl SquaresTable {
    /// Makes the table of dense tensors of one dtype, each with at least one element.
    ///
    /// # Errors
    /// When dtypes or devices differ, or a tensor is not contiguous or is empty.
    pub fn new(kernels: &Kernels, tensors: &[&Tensor]) -> Result<Self, Error> {
        let operands = kernels.operands("a table of tensors for a norm");
        let kind = tensors.first().map_or(Kind::Float, |tensor| tensor.kind());
        let (mut words, mut blocks) = (Vec::with_capacity(tensors.len() * WORDS), 0);
        for tensor in tensors {
            let count = tensor.numel();
            operands.require(count > 0, "tensors with numbers", count)?;
            let address = operands.address("tensor", tensor, kind, &tensor.size())?;
            words.extend([address as i64, count as i64, blocks as i64]);
            blocks += count.div_ceil(CHUNK);
        }
        Ok(Self { words, blocks, kind })
    }

    /// Contents of the table, for an i64 tensor `[words]` on the device.
    pub fn words(&self) -> &[i64] {
        &self.words
    }

    /// Number of partial sums that the launch writes.
    pub fn num_partials(&self) -> usize {
        self.blocks
    }
}

/// Sums of the squares of all tensors of a table, as partial sums.
#[derive(Clone, Copy, Debug)]
pub struct SumsOfSquares<'a> {
    /// Table from which the device's words were copied.
    pub table: &'a SquaresTable,
    /// Copy of [`SquaresTable::words`] on the device.
    pub words: &'a Tensor,
    /// Partial sums, f64 `[num_partials]`.
    pub partials: &'a Tensor,
}

#[repr(C)]
struct Arguments {
    table: *const c_void,
    partials: *mut c_void,
    num_tensors: i32,
}

impl SumsOfSquares<'_> {
    /// Launches one block per 65536 elements.
    ///
    /// # Errors
    /// When `words` or `partials` does not fit the table.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("sums of squares");
        let SquaresTable { words, blocks, kind } = self.table;
        let arguments = Arguments {
            table: operands.address("the table", self.words, Kind::Int64, &[words.len() as i64])?,
            partials: operands.address("partials", self.partials, Kind::Double, &[*blocks as i64])?,
            num_tensors: (words.len() / WORDS) as i32,
        };
        let name = operands.kernel("squares", *kind)?;
        kernels.launch(&name, Shape::blocks([*blocks, 1, 1], 256), &arguments)
    }
}

/// Square root of the sum of [`SumsOfSquares`]' partial sums, added in a fixed order.
#[derive(Clone, Copy, Debug)]
pub struct NormOfSquares<'a> {
    /// Partial sums, f64 `[n]`.
    pub partials: &'a Tensor,
    /// Norm, f64 `[1]`.
    pub out: &'a Tensor,
}

#[repr(C)]
struct NormArguments {
    partials: *const c_void,
    out: *mut c_void,
    count: i64,
}

impl NormOfSquares<'_> {
    /// Launches a single block.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("the norm of squares");
        let [count] = operands.sizes("partials", self.partials)?;
        let arguments = NormArguments {
            partials: operands.address("partials", self.partials, Kind::Double, &[count])?,
            out: operands.address("out", self.out, Kind::Double, &[1])?,
            count,
        };
        kernels.launch("norm_of_squares", Shape::blocks([1, 1, 1], 1024), &arguments)
    }
}
