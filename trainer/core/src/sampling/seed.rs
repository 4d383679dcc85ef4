//! Counter-based random numbers: a value is a pure function of its key, never of earlier draws.

use crate::permutation::splitmix64;

/// Returns a uniform number in [0, 1) with 53 bits, for the draw at `position` of the sample with `seed`.
///
/// Positions count the tokens of the completion from 0. The seed is scrambled before it starts its own
/// sequence, so adjacent seeds and positions are as unrelated as any others.
pub fn draw(seed: u64, position: u64) -> f64 {
    let bits = splitmix64(splitmix64(seed, 0), position);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Derives one seed from several numbers, in order: job seed, step, prompt, sample.
pub fn derive_seed(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |seed, &part| splitmix64(seed ^ splitmix64(part, 1), 0).wrapping_add(part))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const DRAWS: [(u64, u64, f64); 3] =
        [(0, 0, 0.6524484863740322), (7, 1, 0.6497043364684557), (u64::MAX, 12345, 0.1450707396536649)];
    const SEED: u64 = 16579932274738435820;

    /// Chi-square over 64 equal cells has 63 degrees of freedom: mean 63, standard deviation 11.2. The draws
    /// are fixed, so the bound (5 deviations) either always holds or never.
    fn assert_uniform(draws: impl Iterator<Item = f64>) {
        let mut cells = [0u32; 64];
        let mut total = 0u32;
        for u in draws {
            assert!((0.0..1.0).contains(&u));
            cells[(u * 64.0) as usize] += 1;
            total += 1;
        }
        let expected = f64::from(total) / 64.0;
        let chi_square: f64 = cells.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
        assert!((20.0..119.0).contains(&chi_square), "chi-square {chi_square}");
    }

    #[test]
    fn draws_are_uniform_along_positions_and_across_seeds() {
        assert_uniform((0..40_000).map(|position| draw(7, position)));
        assert_uniform((0..40_000).map(|seed| draw(seed, 0)));
        assert_uniform((0..40_000).map(|i| draw(i, i)));
    }

    #[test]
    fn successive_draws_of_a_seed_are_uncorrelated() {
        let pairs = (0..40_000).map(|i| (draw(3, i) - 0.5, draw(3, i + 1) - 0.5));
        let correlation: f64 = pairs.map(|(a, b)| a * b).sum::<f64>() / 40_000.0 * 12.0;
        // Standard error of a correlation of 40 000 pairs is 0.005.
        assert!(correlation.abs() < 0.02, "correlation {correlation}");
    }

    #[test]
    fn draws_never_change_between_releases() {
        assert_eq!(DRAWS.map(|(seed, position, _)| draw(seed, position)), DRAWS.map(|(_, _, u)| u));
        assert_eq!(derive_seed(&[1, 2, 3]), SEED);
    }

    #[test]
    fn seeds_of_different_samples_differ() {
        let mut seeds = HashSet::new();
        for step in 0..20 {
            for prompt in 0..20 {
                for sample in 0..20 {
                    assert!(seeds.insert(derive_seed(&[0, step, prompt, sample])));
                }
            }
        }
        assert_ne!(derive_seed(&[1, 2]), derive_seed(&[2, 1]));
    }
}
