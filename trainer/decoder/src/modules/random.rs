//! Random numbers of fresh weights. Every tensor has a stream of its own, keyed by seed and name. Its values
//! therefore do not depend on which other tensors are made, on the number of threads, or on libtorch's global
//! generator.

use std::f64::consts::TAU;
use std::ops::Range;

use rlt_core::permutation::{GOLDEN_GAMMA, mix64, splitmix64};

/// A stream of random numbers: the outputs of SplitMix64 for the key `key`.
pub(crate) struct TensorRandom {
    key: u64,
    next_idx: u64,
}

impl TensorRandom {
    /// The stream of the tensor `name` under `seed`.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        let absorb = |key, byte| mix64(key ^ u64::from(byte)).wrapping_add(GOLDEN_GAMMA);
        Self { key: name.bytes().fold(splitmix64(seed, 0), absorb), next_idx: 0 }
    }

    /// The stream without its next `num` numbers.
    pub(crate) fn skip(mut self, num: usize) -> Self {
        self.next_idx += num as u64;
        self
    }

    /// The key of the stream and the index of its next number, for a kernel that draws the same numbers.
    pub(crate) fn position(&self) -> (u64, u64) {
        (self.key, self.next_idx)
    }

    /// Draws `num` values of the normal distribution with mean 0 and deviation `std`, by Box and Muller.
    pub(crate) fn normal(&mut self, num: usize, std: f64) -> Vec<f32> {
        let mut values = Vec::with_capacity(num + 1);
        while values.len() < num {
            // 1 - u is in (0, 1], where the logarithm is finite.
            let radius = std * (-2.0 * (1.0 - self.unit()).ln()).sqrt();
            let (sin, cos) = (TAU * self.unit()).sin_cos();
            values.extend([(radius * cos) as f32, (radius * sin) as f32]);
        }
        values.truncate(num);
        values
    }

    /// The values of [`Self::normal`] with indices in `range`.
    pub(crate) fn normal_between(self, range: Range<usize>, std: f64) -> Vec<f32> {
        // Numbers are drawn in pairs.
        let first = range.start - range.start % 2;
        let mut values = self.skip(first).normal(range.end - first, std);
        values.drain(..range.start - first);
        values
    }

    /// Draws `num` values of the uniform distribution over [-bound, bound).
    pub(crate) fn uniform(&mut self, num: usize, bound: f64) -> Vec<f32> {
        (0..num).map(|_| ((2.0 * self.unit() - 1.0) * bound) as f32).collect()
    }

    /// 53 random bits as a number in [0, 1).
    fn unit(&mut self) -> f64 {
        let bits = splitmix64(self.key, self.next_idx);
        self.next_idx += 1;
        (bits >> 11) as f64 * (-53f64).exp2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(values: &[f32]) -> (f64, f64) {
        let num = values.len() as f64;
        let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / num;
        let variance = values.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum::<f64>() / num;
        (mean, variance.sqrt())
    }

    #[test]
    fn draws_have_the_moments_of_their_distribution() {
        // 40000 draws: the standard error of the mean is std/200, of the deviation std/283.
        let (mean, std) = moments(&TensorRandom::new(1, "a").normal(40_000, 0.02));
        assert!(mean.abs() < 4.0 * 0.02 / 200.0 && (std - 0.02).abs() < 4.0 * 0.02 / 283.0, "{mean} {std}");
        let uniform = TensorRandom::new(1, "a").uniform(40_000, 0.5);
        let (mean, std) = moments(&uniform);
        assert!(mean.abs() < 0.006 && (std - 0.5 / 3f64.sqrt()).abs() < 0.005, "{mean} {std}");
        assert!(uniform.iter().all(|value| value.abs() <= 0.5));
    }

    /// Fresh models are compared across versions by their seed, so the stream must not change by accident.
    #[test]
    fn the_stream_is_pinned() {
        let values = TensorRandom::new(7, "model.norm.weight").normal(2, 1.0);
        assert_eq!(values, [0.785_617_23, -0.169_681_94]);
    }

    #[test]
    fn a_stream_can_be_entered_anywhere() {
        let whole = TensorRandom::new(7, "a").uniform(9, 1.0);
        assert_eq!(TensorRandom::new(7, "a").skip(4).uniform(5, 1.0), whole[4..]);
        let whole = TensorRandom::new(7, "a").normal(9, 1.0);
        for range in [0..9, 4..9, 3..8, 5..6, 9..9] {
            assert_eq!(TensorRandom::new(7, "a").normal_between(range.clone(), 1.0), whole[range]);
        }
    }

    #[test]
    fn streams_differ_by_seed_and_by_name() {
        let draw = |seed, name| TensorRandom::new(seed, name).normal(3, 1.0);
        assert_eq!(draw(1, "a"), draw(1, "a"));
        assert_ne!(draw(1, "a"), draw(2, "a"));
        assert_ne!(draw(1, "a"), draw(1, "b"));
    }
}
