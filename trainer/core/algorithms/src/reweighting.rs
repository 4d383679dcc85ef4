//! PF-PPO: resampling of a batch by weights that are computed from its samples' scores (policy filtration,
//! arXiv 2409.06957).
//!
//! Weights follow verl (`compute_pf_ppo_reweight_data`), and tests compare with its values. Samples are drawn
//! with replacement by a function of the seed, so that every rank draws the same.

use crate::permutation::splitmix64;

/// Function from scores to weights; verl's `reweight_method`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reweighting {
    /// The weight is |score|^power (`pow`).
    Pow {
        /// Exponent of the score; verl's `weight_pow`, by default 2.
        power: f64,
    },
    /// The weight is 1 for the best and the worst score of the batch, 0 for others (`max_min`).
    MaxMin,
    /// The weight is 0.4 for the best score of the batch, 0.1 for others (`max_random`).
    MaxRandom,
}

/// Smallest weight, so that weights never sum to 0.
const LEAST: f64 = 1e-8;

impl Reweighting {
    /// Returns the weight of each sample by its score, above 0; weights need not add up to 1.
    pub fn weights(self, scores: &[f64]) -> Vec<f64> {
        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let worst = scores.iter().copied().fold(f64::INFINITY, f64::min);
        let weight = |score: f64| match self {
            Self::Pow { power } => score.abs().powf(power),
            Self::MaxMin if score == best || score == worst => 1.0,
            Self::MaxMin => 0.0,
            Self::MaxRandom if score == best => 0.4,
            Self::MaxRandom => 0.1,
        };
        scores.iter().map(|score| (weight(*score) + LEAST).max(LEAST)).collect()
    }
}

/// Draws as many indices as there are weights, with replacement and with probabilities proportional to the
/// weights.
pub fn resample(weights: &[f64], seed: u64) -> Vec<usize> {
    let mut end = 0.0;
    let ends: Vec<f64> = weights
        .iter()
        .map(|weight| {
            end += weight;
            end
        })
        .collect();
    let draw = |idx: usize| {
        // 53 bits, as many as an f64 has.
        let uniform = (splitmix64(seed, idx as u64) >> 11) as f64 / (1_u64 << 53) as f64;
        ends.partition_point(|before| *before <= uniform * end).min(weights.len() - 1)
    };
    (0..weights.len()).map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_drawn_as_often_as_their_weights_say() {
        let weights = [1.0, 0.0, 3.0, 4.0];
        let mut counts = [0_u32; 4];
        for seed in 0..5000 {
            resample(&weights, seed).into_iter().for_each(|idx| counts[idx] += 1);
        }
        // Four standard deviations of a share of 20,000 draws are at most 0.0142.
        let share = |idx: usize| f64::from(counts[idx]) / 20_000.0;
        assert_eq!(counts[1], 0);
        for (idx, expected) in [(0, 0.125), (2, 0.375), (3, 0.5)] {
            assert!((share(idx) - expected).abs() < 0.0142, "{counts:?}");
        }
        assert_eq!(resample(&weights, 7), resample(&weights, 7));
        assert!(resample(&[], 1).is_empty());
    }
}
