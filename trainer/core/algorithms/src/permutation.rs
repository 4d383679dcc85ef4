//! A seeded permutation of `0..len` in constant memory, for all shuffling.
//!
//! Data order and problem choice are functions of a seed alone, on every machine and in every release, so the
//! algorithm is written out here instead of using a crate's generator:
//!
//! - `len` is covered by the smallest square `4^h` with `h >= 4`; an index splits into two halves of `h`
//!   bits;
//! - six Feistel rounds `(left, right) -> (right, left ^ mix(key_r ^ right))`, the mix being SplitMix64's
//!   finaliser (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014);
//! - round keys are SplitMix64's outputs from `seed` and then `stream` (two keys are chained);
//! - an image outside `0..len` is mapped again until it falls inside (cycle walking), which keeps it
//!   one-to-one.
//!
//! Changing anything here changes the order of resumed runs: the golden test below must keep passing.

const NUM_ROUNDS: usize = 6;
/// SplitMix64's step: 2^64 divided by the golden ratio, odd.
pub const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finaliser: a bijection on 64 bits in which every input bit reaches every output bit.
pub fn mix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The `idx`-th output of SplitMix64 started at `seed`: a random generator with random access.
pub fn splitmix64(seed: u64, idx: u64) -> u64 {
    mix64(seed.wrapping_add(GOLDEN_GAMMA.wrapping_mul(idx.wrapping_add(1))))
}

/// A one-to-one map of `0..len` onto itself, chosen by `seed` and `stream` (an epoch, a purpose).
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    round_keys: [u64; NUM_ROUNDS],
}

impl Permutation {
    /// Makes the permutation of `0..len` for this seed and stream; `len` above `2^62` is reduced to that.
    pub fn new(len: u64, seed: u64, stream: u64) -> Self {
        let len = len.min(1 << 62);
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let key = splitmix64(splitmix64(seed, 0), stream);
        let round_keys = std::array::from_fn(|round| splitmix64(key, round as u64));
        Self { len, half_bits: bits.div_ceil(2).max(4), round_keys }
    }

    /// Number of indices that are permuted.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing to permute.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the image of `idx`; `None` if `idx` is not below `len`.
    pub fn get(&self, idx: u64) -> Option<u64> {
        if idx >= self.len {
            return None;
        }
        let mut image = self.rounds(idx);
        while image >= self.len {
            image = self.rounds(image);
        }
        Some(image)
    }

    /// Iterates over all images in order: the shuffled indices.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len).filter_map(|idx| self.get(idx))
    }

    fn rounds(&self, idx: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (idx >> self.half_bits, idx & mask);
        for key in self.round_keys {
            (left, right) = (right, left ^ (mix64(key ^ right) & mask));
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_appears_once_at_any_length() {
        for len in [0, 1, 2, 3, 7, 16, 255, 256, 257, 1000, 4097] {
            let mut images: Vec<u64> = Permutation::new(len, 3, len).iter().collect();
            images.sort_unstable();
            assert_eq!(images, (0..len).collect::<Vec<_>>(), "length {len}");
        }
    }

    /// Chi-square of where 8 indices land over 4000 seeds: each of the 64 cells adds 7/8, mean 56, standard
    /// deviation 11 (49 degrees of freedom, scaled by 8/7); 100 lies beyond 1 in 10^4.
    #[test]
    fn positions_are_uniform_over_seeds() {
        let mut counts = [[0u32; 8]; 8];
        for seed in 0..4000 {
            for (from, to) in Permutation::new(8, seed, 1).iter().enumerate() {
                counts[from][to as usize] += 1;
            }
        }
        let chi_square: f64 = counts.iter().flatten().map(|&n| (f64::from(n) - 500.0).powi(2) / 500.0).sum();
        assert!(chi_square < 100.0, "chi-square {chi_square}");
    }

    #[test]
    fn streams_and_seeds_give_different_orders() {
        let order = |seed, stream| Permutation::new(50, seed, stream).iter().collect::<Vec<_>>();
        assert_ne!(order(0, 0), order(0, 1));
        assert_ne!(order(0, 0), order(1, 0));
        assert_ne!(order(0, 1), order(1, 0));
    }

    #[test]
    fn the_order_never_changes_between_releases() {
        assert_eq!(splitmix64(0, 0), 0xe220_a839_7b1d_cdaf, "first output of the published SplitMix64");
        let order: Vec<u64> = Permutation::new(10, 42, 0).iter().collect();
        assert_eq!(order, GOLDEN_ORDER);
    }

    const GOLDEN_ORDER: [u64; 10] = [4, 2, 6, 9, 0, 3, 1, 7, 5, 8];
}
