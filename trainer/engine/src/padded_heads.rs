//! Layout of heads for a GPU's kernels: a width that is a multiple of eight, with the two dims of a rotary
//! pair half a head apart. The weights of heads with other widths are padded with zeros, separately for each
//! half of a head. The zeros of queries, keys and values are then at the same dims, so no sum changes. The
//! weights of queries and keys whose pairs are not half a head apart are reordered.
//!
//! ```text
//! 10 dims    a b c d e | f g h i j
//! 16 dims    a b c d e 0 0 0 | f g h i j 0 0 0
//! ```

use rlt_decoder::ProjectionWeights;
use tch::{Device, Tensor};

/// Number of values of a head that kernels read at a time.
const STEP: usize = 8;

/// Width of heads in the model and in the padded layout, and the order of their dims there.
#[derive(Debug)]
pub(super) struct PaddedHeads {
    pub(super) width: usize,
    pub(super) padded_width: usize,
    /// The stored dim at each position of a query or key head, i64 [width]; `None` for the stored order.
    dim_order: Option<Tensor>,
}

impl PaddedHeads {
    /// The layout for heads of width `width` on `device`. On a CPU heads are not changed.
    pub(super) fn on(device: Device, width: usize, dim_order: Option<&Tensor>) -> Self {
        if device.is_cuda() {
            let dim_order = dim_order.map(Tensor::shallow_clone);
            return Self { width, padded_width: width.next_multiple_of(STEP), dim_order };
        }
        Self { width, padded_width: width, dim_order: None }
    }

    /// Reorders and pads the first dim of a tensor, which contains the dims of consecutive query or key
    /// heads.
    pub(super) fn rope_rows(&self, weight: &Tensor) -> Tensor {
        let Some(order) = &self.dim_order else { return self.rows(weight) };
        let heads = weight.unflatten(0, [-1, self.width as i64]);
        self.rows(&heads.index_select(1, order).flatten(0, 1))
    }

    /// Pads the first dim of a tensor, which contains the dims of consecutive value heads.
    fn rows(&self, weight: &Tensor) -> Tensor {
        if self.width == self.padded_width {
            return weight.shallow_clone();
        }
        let missing = (self.padded_width - self.width) as i64 / 2;
        let half = self.width as i64 / 2;
        let halves = weight.unflatten(0, [weight.size()[0] / half, half]);
        // Padding is given in pairs from the last dim to the first.
        let mut pads = vec![0; 2 * halves.dim()];
        pads[2 * (halves.dim() - 2) + 1] = missing;
        halves.constant_pad_nd(pads).flatten(0, 1)
    }

    /// Lays out the first dim of a tensor, which contains the outputs of product `product`. Only q, k and v
    /// are changed.
    pub(super) fn outputs(&self, product: usize, weight: &Tensor) -> Tensor {
        match product {
            0 | 1 => self.rope_rows(weight),
            2 => self.rows(weight),
            _ => weight.shallow_clone(),
        }
    }

    /// Whether heads keep their stored width and order.
    pub(super) fn keeps_order(&self) -> bool {
        self.width == self.padded_width && self.dim_order.is_none()
    }

    /// Pads the last dim of a tensor, which has one value for each rotary pair of a head.
    pub(super) fn pairs(&self, of_pairs: &Tensor) -> Tensor {
        of_pairs.constant_pad_nd([0, (self.padded_width - self.width) as i64 / 2]).contiguous()
    }

    /// Lays out the weights q, k, v and o of a layer. The weights after them are not changed.
    pub(super) fn layer(&self, weights: Vec<ProjectionWeights>) -> Vec<ProjectionWeights> {
        let fill = |(idx, ProjectionWeights { weight, bias }): (usize, ProjectionWeights)| {
            let rows = |tensor: &Tensor| self.outputs(idx, tensor);
            match idx {
                0..3 => ProjectionWeights { weight: rows(&weight), bias: bias.map(|bias| rows(&bias)) },
                3 => ProjectionWeights { weight: self.rows(&weight.tr()).tr(), bias },
                _ => ProjectionWeights { weight, bias },
            }
        };
        weights.into_iter().enumerate().map(fill).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_half_of_each_head_is_filled_up_with_zeros() {
        let width = PaddedHeads::on(Device::Cuda(0), 6, None);
        let two_heads = Tensor::from_slice(&[1i64, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let filled = [1, 2, 3, 0, 4, 5, 6, 0, 7, 8, 9, 0, 10, 11, 12, 0];
        assert_eq!(Vec::<i64>::try_from(width.rows(&two_heads)).unwrap(), filled);
        let matrix = Tensor::stack(&[&two_heads, &two_heads], 1);
        let rows = width.rows(&matrix);
        assert_eq!(rows.size(), [16, 2]);
        assert_eq!(Vec::<i64>::try_from(rows.select(1, 1)).unwrap(), filled);
    }

    #[test]
    fn heads_on_a_cpu_and_heads_that_fit_are_not_padded() {
        for (device, width) in [(Device::Cpu, 6), (Device::Cuda(0), 64)] {
            assert_eq!(PaddedHeads::on(device, width, None).padded_width, width);
        }
    }

    #[test]
    fn queries_and_keys_are_put_in_the_order_in_which_they_are_turned_and_values_are_not() {
        let order = Tensor::from_slice(&[0i64, 2, 4, 1, 3, 5]);
        let layout = PaddedHeads::on(Device::Cuda(0), 6, Some(&order));
        let two_heads = Tensor::from_slice(&[1i64, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let numbers = |tensor: &Tensor| Vec::<i64>::try_from(tensor).unwrap();
        assert_eq!(
            numbers(&layout.rope_rows(&two_heads)),
            [1, 3, 5, 0, 2, 4, 6, 0, 7, 9, 11, 0, 8, 10, 12, 0]
        );
        let weights = |num: usize| {
            (0..num).map(|_| ProjectionWeights { weight: two_heads.unsqueeze(1), bias: None }).collect()
        };
        let layer = layout.layer(weights(3));
        assert_eq!(numbers(&layer[1].weight.squeeze())[..4], [1, 3, 5, 0]);
        assert_eq!(numbers(&layer[2].weight.squeeze())[..4], [1, 2, 3, 0]);
    }
}
