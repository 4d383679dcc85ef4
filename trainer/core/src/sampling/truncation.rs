//! Truncation by top-k, top-p and min-p, as one threshold on the probability.
//!
//! The vocabulary is never sorted: probabilities are counted in buckets by the leading bits of their
//! floating-point form, which have the same order, and only the bucket that contains the threshold is sorted.

use super::SamplingParams;

/// A probability threshold. Tokens more probable than `value` are kept, and of those exactly as probable the
/// ones up to index `last_tied_idx`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    value: f32,
    last_tied_idx: usize,
}

impl Cut {
    const KEEP_ALL: Self = Self::from(0.0);

    /// Computes the threshold of `params` for one row of probabilities.
    pub(super) fn of(probs: &[f32], params: &SamplingParams) -> Self {
        let mut cut = Self::KEEP_ALL;
        if let Some(k) = params.top_k.filter(|&k| k < probs.len()) {
            let kth = Self::reaching(probs, k as f64, |_, _| 1.0);
            cut = Self::from(kth.value);
        }
        if params.top_p < 1.0 {
            let left = |idx: usize, p: f32| if cut.keeps(idx, p) { f64::from(p) } else { 0.0 };
            let total: f64 = probs.iter().enumerate().map(|(idx, &p)| left(idx, p)).sum();
            cut = Self::reaching(probs, params.top_p * total, left);
        }
        if params.min_p > 0.0 {
            let most = probs.iter().copied().fold(0.0, f32::max);
            let least = Self::from((f64::from(most) * params.min_p) as f32);
            cut = if least.value > cut.value { least } else { cut };
        }
        cut
    }

    /// Makes the threshold that keeps `value` and everything above.
    const fn from(value: f32) -> Self {
        Self { value, last_tied_idx: usize::MAX }
    }

    pub(super) fn keeps_all(&self) -> bool {
        *self == Self::KEEP_ALL
    }

    #[inline]
    pub(super) fn keeps(&self, idx: usize, p: f32) -> bool {
        p > self.value || (p == self.value && idx <= self.last_tied_idx)
    }

    /// Returns the threshold of the fewest most probable tokens whose weights sum to `target`.
    fn reaching(probs: &[f32], target: f64, weight: impl Fn(usize, f32) -> f64) -> Self {
        let mut weights = [0.0; NUM_BUCKETS];
        for (idx, &p) in probs.iter().enumerate() {
            weights[bucket(p)] += weight(idx, p);
        }
        let mut above = 0.0;
        let Some(crossed) = (0..NUM_BUCKETS).rev().find(|&b| {
            let reached = above + weights[b] >= target && weights[b] > 0.0;
            above += if reached { 0.0 } else { weights[b] };
            reached
        }) else {
            // Through rounding, the sum of all weights can be below the target.
            return Self::KEEP_ALL;
        };
        let mut members: Vec<(usize, f32)> =
            probs.iter().copied().enumerate().filter(|&(_, p)| bucket(p) == crossed).collect();
        members.sort_unstable_by(|(idx_a, a), (idx_b, b)| b.total_cmp(a).then(idx_a.cmp(idx_b)));
        let last = members.iter().find(|&&(idx, p)| {
            above += weight(idx, p);
            above >= target
        });
        let (idx, p) = last.or(members.last()).copied().unwrap_or((usize::MAX, 0.0));
        Self { value: p, last_tied_idx: idx }
    }
}

/// Low bits dropped from a number's 32: sign, exponent and 5 bits of the fraction remain, 32 buckets per
/// octave.
const DROPPED_BITS: u32 = 18;
const NUM_BUCKETS: usize = (1.0f32.to_bits() >> DROPPED_BITS) as usize + 1;

#[inline]
fn bucket(p: f32) -> usize {
    ((p.to_bits() >> DROPPED_BITS) as usize).min(NUM_BUCKETS - 1)
}
