//! A 64-bit digest of the bit patterns of numbers, fast enough to run over all weights of a model in every
//! step.
//!
//! It detects accidents (a tensor that was not synchronised, a page that was overwritten), not attacks; files
//! have cryptographic digests. Chunks are digested separately and their digests added, so that a device with
//! thousands of threads computes the same digest.

use crate::permutation::{GOLDEN_GAMMA, mix64};

/// Number of values that are digested in sequence.
pub const CHUNK: usize = 4096;
const NUM_LANES: usize = 8;
/// Number of values absorbed at once: two per lane.
const STRIDE: usize = 2 * NUM_LANES;
/// Odd multiplier, so that multiplication is a bijection (from xxHash64).
const PRIME: u64 = 0x9e37_79b1_85eb_ca87;

/// Returns a digest of the bit patterns of `values` and of their number; `-0.0` and `0.0` differ, equal NaNs
/// agree.
///
/// Each step is a bijection of its lane, so two inputs that differ in one value always differ in their
/// digests. Eight independent lanes keep the multipliers busy: memory bandwidth is the limit.
///
/// The digest is the sum over chunks c of mix64(digest of the chunk + c * [`GOLDEN_GAMMA`]), plus the number
/// of values.
pub fn digest64(values: &[f32]) -> u64 {
    let chunks = values.chunks(CHUNK).zip(0u64..);
    let mixed =
        chunks.map(|(chunk, idx)| mix64(chunk_digest(chunk).wrapping_add(idx.wrapping_mul(GOLDEN_GAMMA))));
    mixed.fold(values.len() as u64, u64::wrapping_add)
}

/// Combines two digests into one; their order matters.
pub fn combine(one: u64, other: u64) -> u64 {
    mix64(one.wrapping_mul(PRIME).wrapping_add(other).wrapping_add(GOLDEN_GAMMA))
}

fn chunk_digest(values: &[f32]) -> u64 {
    let mut lanes: [u64; NUM_LANES] = std::array::from_fn(|lane| PRIME.wrapping_mul(lane as u64 + 1));
    let mut strides = values.chunks_exact(STRIDE);
    for stride in &mut strides {
        absorb(&mut lanes, stride);
    }
    let mut rest = [0.0; STRIDE];
    rest[..strides.remainder().len()].copy_from_slice(strides.remainder());
    absorb(&mut lanes, &rest);
    lanes.iter().fold(values.len() as u64, |digest, &lane| step(digest, lane))
}

#[inline]
fn absorb(lanes: &mut [u64; NUM_LANES], stride: &[f32]) {
    for (lane, pair) in lanes.iter_mut().zip(stride.chunks_exact(2)) {
        *lane = step(*lane, u64::from(pair[0].to_bits()) | u64::from(pair[1].to_bits()) << 32);
    }
}

#[inline]
fn step(state: u64, word: u64) -> u64 {
    let product = (state ^ word).wrapping_mul(PRIME);
    // A multiplication carries upwards only; this feeds the high bits back into the low ones.
    product ^ (product >> 32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_single_bit_matters() {
        let values: Vec<f32> = (0..50u8).map(f32::from).collect();
        let mut seen = HashSet::from([digest64(&values)]);
        for bit in 0..values.len() * 32 {
            let mut changed = values.clone();
            changed[bit / 32] = f32::from_bits(changed[bit / 32].to_bits() ^ 1 << (bit % 32));
            assert!(seen.insert(digest64(&changed)), "bit {bit}");
        }
    }

    #[test]
    fn order_and_length_matter() {
        let mut seen = HashSet::new();
        for len in 0..200 {
            assert!(seen.insert(digest64(&vec![0.0; len])), "length {len}");
        }
        let values: Vec<f32> = (0..u16::MAX).map(f32::from).collect();
        for (a, b) in [(0, 64), (0, CHUNK), (5, 5 + 7 * CHUNK)] {
            let mut swapped = values.clone();
            swapped.swap(a, b);
            assert_ne!(digest64(&values), digest64(&swapped), "{a} and {b}");
        }
    }

    #[test]
    fn the_order_of_chunks_changes_the_digest() {
        let values: Vec<f32> = (0..4 * CHUNK as u16).map(f32::from).collect();
        let mut rotated = values.clone();
        rotated.rotate_left(CHUNK);
        assert_ne!(digest64(&values), digest64(&rotated));
    }
}
