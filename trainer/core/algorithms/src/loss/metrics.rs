//! Metrics of an update that can be added over chunks, micro-batches and ranks.

use std::ops::AddAssign;

use crate::whiten::EPSILON;

/// Partial sums of metrics; add those of all parts of a batch before reading [`LossMetrics::values`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossMetrics {
    /// Summand of the aggregated policy loss.
    pub pg_loss: f64,
    /// Summand of the aggregated KL to the reference, before its coefficient.
    pub kl_loss: f64,
    /// Summand of the aggregated entropy, before its coefficient, in nats.
    pub entropy: f64,
    /// Summand of the loss of positive examples, its coefficient included.
    pub positive_loss: f64,
    /// Sum of old minus new log-prob over the tokens that count.
    pub ppo_kl_sum: f64,
    /// Number of counting tokens whose gradient was clipped away.
    pub num_clipped: usize,
    /// Number of counting tokens stopped by the second bound (dual clip, ratio cap, lower bound of GMPO).
    pub num_clipped_lower: usize,
    /// Number of tokens that count.
    pub num_tokens: usize,
}

impl LossMetrics {
    /// Returns verl's metrics of an update under verl's names. Losses without a clip report a clip fraction
    /// of 0.
    pub fn values(&self) -> [(&'static str, f64); 7] {
        let mean = |sum: f64| sum / (self.num_tokens as f64 + EPSILON);
        [
            ("actor/pg_loss", self.pg_loss),
            ("actor/kl_loss", self.kl_loss),
            ("actor/entropy", self.entropy),
            ("actor/positive_loss", self.positive_loss),
            ("actor/ppo_kl", mean(self.ppo_kl_sum)),
            ("actor/pg_clipfrac", mean(self.num_clipped as f64)),
            ("actor/pg_clipfrac_lower", mean(self.num_clipped_lower as f64)),
        ]
    }
}

impl AddAssign for LossMetrics {
    fn add_assign(&mut self, other: Self) {
        let Self {
            pg_loss,
            kl_loss,
            entropy,
            positive_loss,
            ppo_kl_sum,
            num_clipped,
            num_clipped_lower,
            num_tokens,
        } = other;
        self.pg_loss += pg_loss;
        self.kl_loss += kl_loss;
        self.entropy += entropy;
        self.positive_loss += positive_loss;
        self.ppo_kl_sum += ppo_kl_sum;
        self.num_clipped += num_clipped;
        self.num_clipped_lower += num_clipped_lower;
        self.num_tokens += num_tokens;
    }
}
