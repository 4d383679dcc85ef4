//! Losses with one ratio for the whole sequence: GSPO and GMPO.

use super::clipped::clipped_surrogate;
use super::formula::{CLIP_HIGH, CLIP_LOW, Clip, DEFAULT_CLIP, RowTerm, Token, TokenFormula, TokenLoss};
use super::{Aggregation, LossInputs, LossScope};
use crate::whiten::EPSILON;

/// Upper bound to which GSPO's log-ratio is clamped.
const GSPO_LOG_RATIO_BOUND: f64 = 10.0;

formula! {
    /// The clipped ratio of the whole sequence.
    ///
    /// PPO on the length-normalised ratio of the sequence (verl's `gspo`, arXiv 2507.18071). The paper clips
    /// at 3e-4 and 4e-4.
    pub struct Gspo {
        /// How far the ratio may fall below 1.
        pub clip_low: f64 = CLIP_LOW, DEFAULT_CLIP;
        /// How far the ratio may rise above 1.
        pub clip_high: f64 = CLIP_HIGH, DEFAULT_CLIP;
    }
}

impl TokenFormula for Gspo {
    fn scope(&self) -> LossScope {
        LossScope::Sequence
    }

    fn aggregation(&self) -> Option<Aggregation> {
        Some(Aggregation::SequenceMeanTokenMean)
    }

    fn row_term(&self, inputs: &LossInputs<'_>, row_idx: usize, log_ratios: &[f64]) -> RowTerm {
        let rows = inputs.rows;
        let sum: f64 = rows.valid(rows.range(row_idx)).map(|token| log_ratios[token]).sum();
        let mean = sum / rows.valid_len(row_idx).max(1) as f64;
        RowTerm {
            ratio: mean.min(GSPO_LOG_RATIO_BOUND).exp(),
            alive: mean <= GSPO_LOG_RATIO_BOUND,
            ..RowTerm::NONE
        }
    }

    /// Computes the loss with the sequence's ratio, whose gradient reaches each token through its own
    /// log-prob.
    fn token(&self, token: &Token, row: &RowTerm, _: bool) -> TokenLoss {
        let clip = Clip::new(self.clip_low, self.clip_high);
        clipped_surrogate(token.advantage, row.ratio, if row.alive { row.ratio } else { 0.0 }, clip)
    }

    fn ppo_kl(&self, log_ratio: f64) -> f64 {
        -log_ratio
    }
}

formula! {
    /// The geometric mean of the clipped ratios.
    ///
    /// GMPO, always the mean over sequences (verl's `geo_mean`, arXiv 2507.20673). The clip bounds the
    /// log-ratio.
    pub struct GeoMean {
        /// How far the ratio may fall below 1.
        pub clip_low: f64 = CLIP_LOW, DEFAULT_CLIP;
        /// How far the ratio may rise above 1.
        pub clip_high: f64 = CLIP_HIGH, DEFAULT_CLIP;
    }
}

impl GeoMean {
    /// Bounds the log-ratio only in the direction that the advantage pushes; 0 without an advantage.
    fn bound(&self, advantage: f64, log_ratio: f64) -> f64 {
        if advantage > 0.0 {
            log_ratio.min(self.clip_high)
        } else if advantage < 0.0 {
            log_ratio.max(-self.clip_low)
        } else {
            0.0
        }
    }
}

impl TokenFormula for GeoMean {
    fn scope(&self) -> LossScope {
        LossScope::Sequence
    }

    fn aggregation(&self) -> Option<Aggregation> {
        Some(Aggregation::SequenceMeanTokenMean)
    }

    fn row_term(&self, inputs: &LossInputs<'_>, row_idx: usize, log_ratios: &[f64]) -> RowTerm {
        let rows = inputs.rows;
        let len = rows.valid_len(row_idx) as f64;
        let mean = |value: &dyn Fn(usize) -> f64| {
            rows.valid(rows.range(row_idx)).map(value).sum::<f64>() / (len + EPSILON)
        };
        let bounded = |token: usize| self.bound(inputs.advantages[token], log_ratios[token]);
        let weight = inputs.importance_weights.map_or(1.0, |w| mean(&|token| (w[token] + 1e-10).ln()).exp());
        RowTerm {
            ratio: mean(&bounded).exp(),
            alive: true,
            advantage: mean(&|token| inputs.advantages[token]) * weight,
            share: if len > 0.0 { (len + EPSILON) / len } else { 0.0 },
        }
    }

    fn token(&self, token: &Token, row: &RowTerm, _: bool) -> TokenLoss {
        let x = token.log_ratio();
        let outside = x < -self.clip_low || x > self.clip_high;
        let held = self.bound(token.advantage, x) != x;
        let sequence_loss = -row.advantage * row.ratio;
        TokenLoss {
            value: sequence_loss * row.share,
            gradient: if held { 0.0 } else { sequence_loss },
            clipped: outside && token.advantage > 0.0,
            clipped_lower: outside && token.advantage < 0.0,
        }
    }

    /// Returns false: the token weights are part of [`Self::row_term`] instead.
    fn weighs_tokens(&self) -> bool {
        false
    }

    fn ppo_kl(&self, log_ratio: f64) -> f64 {
        -log_ratio
    }
}
