//! Heads as wide as a GPU's kernels read them: in steps of eight numbers. A head of another width is filled
//! up with zeros, in its weights, so that queries, keys and values have them in the same places and no sum
//! changes. Each of the two halves that the rotary embedding pairs is filled up.
//!
//! ```text
//! 10 dims    a b c d e | f g h i j
//! 16 dims    a b c d e 0 0 0 | f g h i j 0 0 0
//! ```

use tch::{Device, Tensor};

use crate::model::ProjectionWeights;

/// Numbers that kernels read of a head at once.
const STEP: usize = 8;

/// Width of heads as layers have it, and as it is where they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadWidth {
    own: usize,
    pub(super) filled: usize,
}

impl HeadWidth {
    pub(super) fn on(device: Device, own: usize) -> Self {
        let filled = if device.is_cuda() { own.next_multiple_of(STEP) } else { own };
        Self { own, filled }
    }

    /// Vectors or matrices whose first dim is that of heads, one after the other.
    pub(super) fn rows(self, weight: &Tensor) -> Tensor {
        if self.own == self.filled {
            return weight.shallow_clone();
        }
        let missing = (self.filled - self.own) as i64 / 2;
        let half = self.own as i64 / 2;
        let halves = weight.unflatten(0, [weight.size()[0] / half, half]);
        // Pairs from the last dim to the first.
        let mut pads = vec![0; 2 * halves.dim()];
        pads[2 * (halves.dim() - 2) + 1] = missing;
        halves.constant_pad_nd(pads).flatten(0, 1)
    }

    /// What each pair of a head's numbers has.
    pub(super) fn pairs(self, of_pairs: &Tensor) -> Tensor {
        of_pairs.constant_pad_nd([0, (self.filled - self.own) as i64 / 2]).contiguous()
    }

    /// q, k, v and o of a layer, and what follows as it is.
    pub(super) fn layer(self, weights: Vec<ProjectionWeights>) -> Vec<ProjectionWeights> {
        let fill = |(idx, ProjectionWeights { weight, bias }): (usize, ProjectionWeights)| match idx {
            0..3 => ProjectionWeights { weight: self.rows(&weight), bias: bias.map(|bias| self.rows(&bias)) },
            3 => ProjectionWeights { weight: self.rows(&weight.tr()).tr(), bias },
            _ => ProjectionWeights { weight, bias },
        };
        weights.into_iter().enumerate().map(fill).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_half_of_each_head_is_filled_up_with_zeros() {
        let width = HeadWidth::on(Device::Cuda(0), 6);
        let two_heads = Tensor::from_slice(&[1i64, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let filled = [1, 2, 3, 0, 4, 5, 6, 0, 7, 8, 9, 0, 10, 11, 12, 0];
        assert_eq!(Vec::<i64>::try_from(width.rows(&two_heads)).unwrap(), filled);
        let matrix = Tensor::stack(&[&two_heads, &two_heads], 1);
        let rows = width.rows(&matrix);
        assert_eq!(rows.size(), [16, 2]);
        assert_eq!(Vec::<i64>::try_from(rows.select(1, 1)).unwrap(), filled);
    }

    #[test]
    fn a_cpu_and_heads_that_fit_are_left_alone() {
        for (device, own) in [(Device::Cpu, 6), (Device::Cuda(0), 64)] {
            assert_eq!(HeadWidth::on(device, own).filled, own);
        }
    }
}
