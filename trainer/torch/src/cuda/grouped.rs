//! Grouped matrix products for experts: rows sorted by expert times their experts' weights, one launch each
//! for any distribution of rows, whose ends are read on the device.

use super::kernels::Kernels;
use super::launch_checks::Operands;
use super::module::Shape;
use crate::Error;
use std::ffi::c_void;
use tch::{Kind, Tensor};

/// Side of the square tile of the result that a block computes.
const TILE: usize = 64;
const THREADS: u32 = 128;

/// Product of rows `[n, in]` with the weights of their experts, `[n, out]`.
#[derive(Clone, Copy, Debug)]
pub struct GroupedLinear<'a> {
    /// Rows `[n, in]`, or, with `places`, the tokens' rows `[tokens, in]`; f32, bf16 or f16, as all tensors
    /// here.
    pub rows: &'a Tensor,
    /// (token, choice) pair at each row, i32 `[n]`, where pairs are numbered in the order of `[tokens,
    /// choices]`.
    pub places: Option<&'a Tensor>,
    /// Experts' weights `[experts, out, in]`.
    pub weight: &'a Tensor,
    /// End of each expert's rows, i32 `[experts]`; the last is `n`.
    pub ends: &'a Tensor,
    /// Output `[n, out]`.
    pub out: &'a Tensor,
}

/// Gradient of the rows, `[n, in]`: the product's gradient `[n, out]` times the experts' weights.
#[derive(Clone, Copy, Debug)]
pub struct GroupedLinearDx<'a> {
    /// Gradient of the product, `[n, out]`.
    pub grad: &'a Tensor,
    /// Experts' weights `[experts, out, in]`.
    pub weight: &'a Tensor,
    /// End of each expert's rows, as in [`GroupedLinear`].
    pub ends: &'a Tensor,
    /// Gradient of the rows, `[n, in]`.
    pub out: &'a Tensor,
}

/// Gradient of the experts' weights; zeros for experts without rows.
#[derive(Clone, Copy, Debug)]
pub struct GroupedLinearDw<'a> {
    /// Gradient of the product, `[n, out]`.
    pub grad: &'a Tensor,
    /// Rows of the product, `[n, in]`.
    pub rows: &'a Tensor,
    /// End of each expert's rows, as in [`GroupedLinear`].
    pub ends: &'a Tensor,
    /// Gradient of the weights, `[experts, out, in]`.
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

/// Sizes of a grouped product.
#[derive(Clone, Copy)]
struct Sizes {
    n: i64,
    experts: i64,
    out_width: i64,
    in_width: i64,
}

impl Sizes {
    /// Reads the sizes from a weight and a tensor with one row per result, and checks that they fit an i32
    /// index.
    fn of(
        operands: &Operands,
        weight_name: &str,
        weight: &Tensor,
        rows_name: &str,
        rows: &Tensor,
    ) -> Result<Self, Error> {
        let [experts, out_width, in_width] = operands.sizes(weight_name, weight)?;
        operands.require(experts > 0, "at least one expert", experts)?;
        let [n, _] = operands.sizes(rows_name, rows)?;
        operands.require(n < i64::from(i32::MAX), "fewer than 2^31 - 1 rows", n)?;
        Ok(Self { n, experts, out_width, in_width })
    }

    fn weight(&self) -> [i64; 3] {
        [self.experts, self.out_width, self.in_width]
    }

    /// Makes the arguments of a product whose rows are already sorted by expert.
    fn arguments(
        &self,
        operands: &Operands,
        ends: &Tensor,
        rows: *const c_void,
        other: *const c_void,
        out: *mut c_void,
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

/// Upper bound of the number of row tiles, for any routing: the last tile of each expert may be partial.
fn row_tiles(n: i64, experts: i64) -> usize {
    let (n, with_rows) = (n as usize, n.min(experts) as usize);
    ((n + with_rows * (TILE - 1)) / TILE).min(n)
}

/// Number of tiles along one dimension of a weight.
fn tiles(width: i64) -> usize {
    (width as usize).div_ceil(TILE)
}

impl GroupedLinear<'_> {
    /// Launches one block per tile of the output.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("grouped_linear");
        let kind = self.out.kind();
        let sizes = Sizes::of(&operands, "weight", self.weight, "out", self.out)?;
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
            ..sizes.arguments(&operands, self.ends, rows, weight, out)?
        };
        let grid = [row_tiles(n, experts), tiles(out_width), 1];
        let name = operands.kernel("grouped_linear", kind)?;
        kernels.launch(&name, Shape::blocks(grid, THREADS), &arguments)
    }
}

impl GroupedLinearDx<'_> {
    /// Launches one block per tile of the output.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("grouped_linear, gradient of rows");
        let kind = self.out.kind();
        let sizes = Sizes::of(&operands, "weight", self.weight, "out", self.out)?;
        let Sizes { n, experts, out_width, in_width } = sizes;
        let grad = operands.address("grad", self.grad, kind, &[n, out_width])?;
        let weight = operands.address("weight", self.weight, kind, &sizes.weight())?;
        let out = operands.address("out", self.out, kind, &[n, in_width])?;
        let arguments = sizes.arguments(&operands, self.ends, grad, weight, out)?;
        let grid = [row_tiles(n, experts), tiles(in_width), 1];
        let name = operands.kernel("grouped_linear_dx", kind)?;
        kernels.launch(&name, Shape::blocks(grid, THREADS), &arguments)
    }
}

impl GroupedLinearDw<'_> {
    /// Launches one block per expert and tile of its weight.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("grouped_linear, gradient of weights");
        let kind = self.out.kind();
        let sizes = Sizes::of(&operands, "out", self.out, "grad", self.grad)?;
        let Sizes { n, experts, out_width, in_width } = sizes;
        let rows = operands.address("rows", self.rows, kind, &[n, in_width])?;
        let grad = operands.address("grad", self.grad, kind, &[n, out_width])?;
        let out = operands.address("out", self.out, kind, &sizes.weight())?;
        let arguments = sizes.arguments(&operands, self.ends, rows, grad, out)?;
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
