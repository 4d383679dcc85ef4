//! The L2 norm of many tensors in f64, without copies of them in f64.

use super::kernels::Kernels;
use super::module::Shape;
use crate::Error;
use std::ffi::c_void;
use tch::{Kind, Tensor};

/// Elements that one block takes.
const CHUNK: usize = 1 << 16;
/// Words of a row of the table.
const WORDS: usize = 3;

/// The addresses of the tensors of one launch, on the host; its words go to the device by one copy.
#[derive(Clone, Debug)]
pub struct SquaresTable {
    words: Vec<i64>,
    blocks: usize,
    kind: Kind,
}

impl SquaresTable {
    /// Lays out the table of dense tensors of one kind; each has one number at least.
    ///
    /// # Errors
    /// When kinds or devices differ, or a tensor has gaps or no numbers.
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

    /// The table's contents, for an i64 tensor `[words]` on the device.
    pub fn words(&self) -> &[i64] {
        &self.words
    }

    /// Partial sums that the launch writes.
    pub fn num_partials(&self) -> usize {
        self.blocks
    }
}

/// Partial sums of the squares of all tensors of a table.
#[derive(Clone, Copy, Debug)]
pub struct SumsOfSquares<'a> {
    /// The table whose words are on the device.
    pub table: &'a SquaresTable,
    /// [`SquaresTable::words`] on the device.
    pub words: &'a Tensor,
    /// f64 `[num_partials]`.
    pub partials: &'a Tensor,
}

#[repr(C)]
struct Arguments {
    table: *const c_void,
    partials: *mut c_void,
    num_tensors: i32,
}

impl SumsOfSquares<'_> {
    /// Launches one block for each 65536 elements.
    ///
    /// # Errors
    /// When the device's table or `partials` does not fit.
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

/// The root of the sum of [`SumsOfSquares`]' partial sums, added in one order.
#[derive(Clone, Copy, Debug)]
pub struct NormOfSquares<'a> {
    /// f64 `[n]`.
    pub partials: &'a Tensor,
    /// f64 `[1]`.
    pub out: &'a Tensor,
}

#[repr(C)]
struct NormArguments {
    partials: *const c_void,
    out: *mut c_void,
    count: i64,
}

impl NormOfSquares<'_> {
    /// Launches one block.
    ///
    /// # Errors
    /// When shapes, kinds or devices do not fit.
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
