//! A 64-bit digest of raw memory, fast enough to run over all weights of a model in every step.
//!
//! It finds accidents (a tensor that was not synchronised, a page that was overwritten), not attacks; files have
//! cryptographic digests of their own.

const NUM_LANES: usize = 8;
const STRIDE: usize = NUM_LANES * size_of::<u64>();
/// Odd, so that multiplying by it loses nothing (from xxHash64).
const PRIME: u64 = 0x9e37_79b1_85eb_ca87;

/// Digest of `bytes`, length included.
///
/// Each step is a bijection of its lane, so two inputs that differ in one word always differ in their digests.
/// Eight independent lanes keep the multipliers busy: memory bandwidth is the limit.
pub fn digest64(bytes: &[u8]) -> u64 {
    let mut lanes: [u64; NUM_LANES] = std::array::from_fn(|lane| PRIME.wrapping_mul(lane as u64 + 1));
    let mut strides = bytes.chunks_exact(STRIDE);
    for stride in &mut strides {
        absorb(&mut lanes, stride);
    }
    let mut rest = [0; STRIDE];
    rest[..strides.remainder().len()].copy_from_slice(strides.remainder());
    absorb(&mut lanes, &rest);
    lanes.iter().fold(bytes.len() as u64, |digest, &lane| step(digest, lane))
}

#[inline]
fn absorb(lanes: &mut [u64; NUM_LANES], stride: &[u8]) {
    for (lane, word) in lanes.iter_mut().zip(stride.chunks_exact(size_of::<u64>())) {
        let mut bytes = [0; size_of::<u64>()];
        bytes.copy_from_slice(word);
        *lane = step(*lane, u64::from_le_bytes(bytes));
    }
}

#[inline]
fn step(state: u64, word: u64) -> u64 {
    let product = (state ^ word).wrapping_mul(PRIME);
    // A multiplication carries upwards only; this brings the high bits down again.
    product ^ (product >> 32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_single_bit_matters() {
        let bytes: Vec<u8> = (0..200u8).collect();
        let mut seen = HashSet::from([digest64(&bytes)]);
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(digest64(&changed)), "bit {bit}");
        }
    }

    #[test]
    fn order_and_length_matter() {
        let mut seen = HashSet::new();
        for len in 0..200 {
            assert!(seen.insert(digest64(&vec![0; len])), "length {len}");
        }
        let bytes: Vec<u8> = (0..128u8).collect();
        let mut swapped = bytes.clone();
        swapped.swap(0, 64);
        assert_ne!(digest64(&bytes), digest64(&swapped));
    }
}
