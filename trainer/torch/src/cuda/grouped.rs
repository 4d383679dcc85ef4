//! Products of rows sorted by expert with their experts' weights, a launch each, whatever rows an expert has:
//! where they end is read on the device.

use super::kernels::Kernels;
use super::module::Shape;
use super::operand::Operands;
use crate::Error;
use std::ffi::c_void;
use tch::{Kind, Tensor};

/// Numbers of a block's result along either dim.
const TILE: usize = 64;
const THREADS: u32 = 128;

/// Rows `[n, in]` times the weight of their expert, `[n, out]`.
#[derive(Clone, Copy, Debug)]
pub struct GroupedLinear<'a> {
    /// `[n, in]`, or with `places` the tokens' own rows `[tokens, in]`; f32, bf16 or f16, the dtype of all
    /// here.
    pub rows: &'a Tensor,
    /// The (token, choice) pair at each row, i32 `[n]`, `[tokens, choices]` pairs in order.
    pub places: Option<&'a Tensor>,
    /// `[experts, out, in]`.
    pub weight: &'a Tensor,
    /// Where the rows of each expert end, i32 `[experts]`, the last at `n`.
    pub ends: &'a Tensor,
    /// `[n, out]`.
    pub out: &'a Tensor,
}

/// The gradient of the rows: that of the product, `[n, out]`, times the weight, `[n, in]`.
#[derive(Clone, Copy, Debug)]
pub struct GroupedLinearDx<'a> {
    /// `[n, out]`.
    pub grad: &'a Tensor,
    /// `[experts, out, in]`.
    pub weight: &'a Tensor,
    /// As of [`GroupedLinear`].
    pub ends: &'a Tensor,
    /// `[n, in]`.
    pub out: &'a Tensor,
}

/// The gradient of the weight, zeros for experts without rows.
#[derive(Clone, Copy, Debug)]
pub struct GroupedLinearDw<'a> {
    /// `[n, out]`.
    pub grad: &'a Tensor,
    /// `[n, in]`.
    pub rows: &'a Tensor,
    /// As of [`GroupedLinear`].
    pub ends: &'a Tensor,
    /// `[experts, out, in]`.
    pub out: &'a Tensor,
}

#[repr(C)]
struct Arguments {
    rows: *const c_void,
    other: *const c_void,
    out: *mut c_void,
    ends: *const c_void,
    places: *const c_void,
    n: i64,
    out_width: i64,
    in_width: i64,
    experts: i32,
    per_token: i32,
}

/// The sizes that every product has.
#[derive(Clone, Copy)]
struct Sizes {
    n: i64,
    experts: i64,
    out_width: i64,
    in_width: i64,
}

impl Sizes {
    /// Those of a weight and of a tensor with a row for each result, which fit a kernel's indices.
    fn of(operands: &Operands, weight: (&str, &Tensor), rows: (&str, &Tensor)) -> Result<Self, Error> {
        let [experts, out_width, in_width] = operands.sizes(weight.0, weight.1)?;
        operands.require(experts > 0, "at least one expert", experts)?;
        let [n, _] = operands.sizes(rows.0, rows.1)?;
        operands.require(n < i64::from(i32::MAX), "fewer than 2^31 - 1 rows", n)?;
        Ok(Self { n, experts, out_width, in_width })
    }

    fn weight(&self) -> [i64; 3] {
        [self.experts, self.out_width, self.in_width]
    }

    /// The arguments of a product of rows of their own.
    fn arguments(
        &self,
        operands: &Operands,
        ends: &Tensor,
        (rows, other, out): (*const c_void, *const c_void, *mut c_void),
    ) -> Result<Arguments, Error> {
        Ok(Arguments {
            rows,
            other,
            out,
            ends: operands.address("ends", ends, Kind::Int, &[self.experts])?,
            places: std::ptr::null(),
            n: self.n,
            out_width: self.out_width,
            in_width: self.in_width,
            experts: self.experts as i32,
            per_token: 1,
        })
    }
}

/// Blocks of rows that any routing needs at most: each expert with rows may end in one that is not full.
fn row_tiles(n: i64, experts: i64) -> usize {
    let (n, with_rows) = (n as usize, n.min(experts) as usize);
    ((n + with_rows * (TILE - 1)) / TILE).min(n)
}

/// Blocks that a dim of a weight takes.
fn tiles(width: i64) -> usize {
    (width as usize).div_ceil(TILE)
}

impl GroupedLinear<'_> {
    /// Launches.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("grouped_linear");
        let kind = self.out.kind();
        let sizes = Sizes::of(&operands, ("weight", self.weight), ("out", self.out))?;
        let Sizes { n, experts, out_width, in_width } = sizes;
        let [num_rows, _] = operands.sizes("rows", self.rows)?;
        let per_token = if self.places.is_some() { n / num_rows.max(1) } else { 1 };
        operands.require(
            num_rows * per_token == n,
            "as many rows as results, or a part of them",
            num_rows,
        )?;
        let rows = operands.address("rows", self.rows, kind, &[num_rows, in_width])?;
        let weight = operands.address("weight", self.weight, kind, &sizes.weight())?;
        let out = operands.address("out", self.out, kind, &[n, out_width])?;
        let arguments = Arguments {
            places: operands.address_or_null("places", self.places, Kind::Int, &[n])?,
            per_token: per_token as i32,
            ..sizes.arguments(&operands, self.ends, (rows, weight, out))?
        };
        let grid = [row_tiles(n, experts), tiles(out_width), 1];
        let name = operands.kernel("grouped_linear", kind)?;
        kernels.launch(&name, Shape::blocks(grid, THREADS), &arguments)
    }
}

impl GroupedLinearDx<'_> {
    /// Launches.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("grouped_linear, gradient of rows");
        let kind = self.out.kind();
        let sizes = Sizes::of(&operands, ("weight", self.weight), ("out", self.out))?;
        let Sizes { n, experts, out_width, in_width } = sizes;
        let grad = operands.address("grad", self.grad, kind, &[n, out_width])?;
        let weight = operands.address("weight", self.weight, kind, &sizes.weight())?;
        let out = operands.address("out", self.out, kind, &[n, in_width])?;
        let arguments = sizes.arguments(&operands, self.ends, (grad, weight, out))?;
        let grid = [row_tiles(n, experts), tiles(in_width), 1];
        let name = operands.kernel("grouped_linear_dx", kind)?;
        kernels.launch(&name, Shape::blocks(grid, THREADS), &arguments)
    }
}

impl GroupedLinearDw<'_> {
    /// Launches.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("grouped_linear, gradient of weights");
        let kind = self.out.kind();
        let sizes = Sizes::of(&operands, ("out", self.out), ("grad", self.grad))?;
        let Sizes { n, experts, out_width, in_width } = sizes;
        let rows = operands.address("rows", self.rows, kind, &[n, in_width])?;
        let grad = operands.address("grad", self.grad, kind, &[n, out_width])?;
        let out = operands.address("out", self.out, kind, &sizes.weight())?;
        let arguments = sizes.arguments(&operands, self.ends, (rows, grad, out))?;
        let grid = [tiles(out_width), tiles(in_width), experts as usize];
        let name = operands.kernel("grouped_linear_dw", kind)?;
        kernels.launch(&name, Shape::blocks(grid, THREADS), &arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_blocks_for_any_routing_and_not_many_more() {
        let needed = |counts: &[usize]| counts.iter().map(|count| count.div_ceil(TILE)).sum::<usize>();
        for counts in [vec![1; 8], vec![64, 64], vec![65, 1, 0, 127], vec![0, 0, 300], vec![1, 65, 65, 65]] {
            let n = counts.iter().sum::<usize>() as i64;
            assert!(needed(&counts) <= row_tiles(n, counts.len() as i64), "{counts:?}");
        }
        assert_eq!([row_tiles(0, 4), row_tiles(8, 128), row_tiles(640, 1)], [0, 8, 10]);
    }
}
