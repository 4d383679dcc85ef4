//! Grouped matrix products of a mixture of experts: rows are sorted by expert, gathered, multiplied by each
//! expert's weights and combined, with gradients. Which expert computes which token is the caller's choice.
//!
//! ```text
//! tokens [t, d] -> gather: a row for each choice, sorted [n, d] -> linear -> .. -> combine [t, d]
//! ```
//! Shapes: t tokens, k choices per token, n = t k rows, e experts.

use std::ops::Range;

use tch::{Device, Tensor};

use crate::device_experts;
use crate::error::or_panic;
use crate::ffi::{
    raw, rlt_combine_rows, rlt_device_combine_rows, rlt_device_grouped_linear, rlt_gather_rows,
    rlt_grouped_linear, tensor_from,
};

/// Permutation that sorts the (token, choice) pairs by expert.
#[derive(Debug)]
pub struct ExpertRows {
    /// Pair at each row, `[n]`; i64, on a GPU i32.
    order: Tensor,
    /// Row of each pair, `[n]`; i64, on a GPU i32.
    inverse: Tensor,
    ends: Ends,
    per_token: i64,
}

/// End of each expert's rows.
#[derive(Debug)]
enum Ends {
    Host(Vec<i64>),
    /// i32 `[e]` on a GPU, unknown to the host.
    Device(Tensor),
}

impl ExpertRows {
    /// Sorts `choices`, the experts of consecutive tokens, `per_token` of each. The rows of an expert keep
    /// the order of their tokens.
    ///
    /// # Panics
    /// When a choice is not below `num_experts`.
    pub fn new(choices: &[i64], per_token: usize, num_experts: usize, device: Device) -> Self {
        let mut ends = vec![0; num_experts];
        for expert in choices {
            ends[*expert as usize] += 1;
        }
        let mut next = vec![0; num_experts];
        for expert in 1..num_experts {
            next[expert] = next[expert - 1] + ends[expert - 1];
        }
        let (mut order, mut inverse) = (vec![0_i64; choices.len()], vec![0_i64; choices.len()]);
        for (pair, expert) in choices.iter().enumerate() {
            let place = &mut next[*expert as usize];
            order[*place as usize] = pair as i64;
            inverse[pair] = *place;
            *place += 1;
        }
        let tensor = |numbers: &[i64]| Tensor::from_slice(numbers).to_device(device);
        Self {
            order: tensor(&order),
            inverse: tensor(&inverse),
            ends: Ends::Host(next),
            per_token: per_token as i64,
        }
    }

    /// Sorts choices on a GPU, i32 `[t, k]`. The host neither waits nor learns how many rows an expert has.
    ///
    /// # Panics
    /// When the kernels cannot be launched. Each choice must be below `num_experts`.
    pub fn on_device(choices_tk: &Tensor, num_experts: usize) -> Self {
        let [order, inverse, ends] = or_panic(device_experts::sorted(choices_tk, num_experts));
        Self { order, inverse, ends: Ends::Device(ends), per_token: choices_tk.size()[1] }
    }

    /// Ends of the experts' rows; empty if only a GPU has them.
    fn host_ends(&self) -> &[i64] {
        match &self.ends {
            Ends::Host(ends) => ends,
            Ends::Device(_) => &[],
        }
    }

    /// Number of rows of each expert; empty if only a GPU has the ends.
    pub fn counts(&self) -> Vec<i64> {
        let ends = self.host_ends();
        let starts = std::iter::once(0).chain(ends.iter().copied());
        starts.zip(ends).map(|(start, end)| end - start).collect()
    }

    /// The experts that have rows, each with its range of rows; none if only a GPU has the ends.
    pub fn of_experts(&self) -> impl Iterator<Item = (usize, Range<i64>)> {
        let ends = self.host_ends();
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let ranges = starts.zip(ends).map(|(start, end)| start..*end).enumerate();
        ranges.filter(|(_, rows)| !rows.is_empty())
    }

    /// Repeats values of experts, `[e, d]`, for each row of the expert: `[n, d]`. Needs ends on the host.
    pub fn of_rows(&self, x_ed: &Tensor) -> Tensor {
        let expert = |(expert, rows): (usize, Range<i64>)| std::iter::repeat_n(expert as i64, rows.count());
        let experts: Vec<i64> = self.of_experts().flat_map(expert).collect();
        x_ed.index_select(0, &Tensor::from_slice(&experts).to_device(x_ed.device()))
    }

    /// Gathers rows of tokens `[t, d]`, one per choice: `[n, d]`.
    ///
    /// # Panics
    /// When the number of tokens differs from that of the choices.
    pub fn gather(&self, x_td: &Tensor) -> Tensor {
        or_panic(tensor_from("gathering rows of experts", |out| {
            // SAFETY: borrowed tensors and a place for the result.
            unsafe { rlt_gather_rows(raw(x_td), raw(&self.order), raw(&self.inverse), self.per_token, out) }
        }))
    }

    /// Reorders sorted rows `[n, d]` to the order of the choices, with one choice per token: undoes
    /// [`Self::gather`].
    ///
    /// # Panics
    /// When the number of rows differs from that of the choices.
    pub fn ungather(&self, x_nd: &Tensor) -> Tensor {
        or_panic(tensor_from("returning rows of experts", |out| {
            // SAFETY: borrowed tensors and a place for the result.
            unsafe { rlt_gather_rows(raw(x_nd), raw(&self.inverse), raw(&self.order), 1, out) }
        }))
    }

    /// Multiplies rows `[n, in]` by their experts' weights `[e, out, in]`: `[n, out]`.
    ///
    /// # Panics
    /// When shapes or dtypes do not fit.
    pub fn linear(&self, x_ni: &Tensor, weight_eoi: &Tensor) -> Tensor {
        or_panic(tensor_from("a product by experts", |out| match &self.ends {
            Ends::Host(ends) => {
                let (ends, num_experts) = (ends.as_ptr(), ends.len() as i64);
                // SAFETY: borrowed tensors, an array of `num_experts` numbers and a place for the result.
                unsafe { rlt_grouped_linear(raw(x_ni), raw(weight_eoi), ends, num_experts, out) }
            }
            Ends::Device(ends) => {
                let launch = device_experts::launch;
                // SAFETY: borrowed tensors, a function of the declared type and a place for the result.
                unsafe { rlt_device_grouped_linear(raw(x_ni), raw(weight_eoi), raw(ends), launch, out) }
            }
        }))
    }

    /// Adds each token's rows `[n, d]`, times their weights `[t, k]`: `[t, d]` in the dtype of the rows. A
    /// token's sum does not depend on other tokens.
    ///
    /// # Panics
    /// When shapes do not fit.
    pub fn combine(&self, x_nd: &Tensor, weights_tk: &Tensor) -> Tensor {
        or_panic(tensor_from("putting rows of experts together", |out| {
            let (order, inverse) = (raw(&self.order), raw(&self.inverse));
            let (x, weights) = (raw(x_nd), raw(weights_tk));
            match &self.ends {
                // SAFETY: borrowed tensors and a place for the result.
                Ends::Host(_) => unsafe { rlt_combine_rows(x, weights, order, inverse, out) },
                Ends::Device(_) => {
                    let launch = device_experts::launch;
                    // SAFETY: as above, and a function of the declared type.
                    unsafe { rlt_device_combine_rows(x, weights, order, inverse, launch, out) }
                }
            }
        }))
    }
}
