//! Losses that bound a single token's ratio: PPO's clip, CISPO's weight and DPPO's divergence gate.

use super::formula::{
    CLIP_HIGH, CLIP_LOW, Clip, DEFAULT_CLIP, DUAL_CLIP, RowTerm, Token, TokenFormula, TokenLoss,
    weighted_likelihood,
};

/// Epsilon that keeps the Bernoulli KL finite if a probability is 1 (verl's constant).
const BERNOULLI_EPSILON: f64 = 1e-8;

formula! {
    /// PPO's clipped ratio of each token.
    ///
    /// max(-A r, -A clip(r)); with A < 0 at most -A `dual_clip` (verl's `vanilla`, arXiv 1707.06347 and
    /// 1912.09729).
    pub struct Vanilla {
        /// How far the ratio may fall below 1.
        pub clip_low: f64 = CLIP_LOW, DEFAULT_CLIP;
        /// How far the ratio may rise above 1.
        pub clip_high: f64 = CLIP_HIGH, DEFAULT_CLIP;
        /// Ratio above which a negative advantage stops pushing, over 1; `None` for no bound. verl's default
        /// is 3.
        pub dual_clip: Option<f64> = DUAL_CLIP, None;
    }
}

impl TokenFormula for Vanilla {
    fn token(&self, token: &Token, _: &RowTerm, _: bool) -> TokenLoss {
        let (ratio, slope) = token.ratio();
        let clip = Clip::new(self.clip_low, self.clip_high);
        let mut loss = clipped_surrogate(token.advantage, ratio, slope, clip);
        if let Some(bound) = self.dual_clip.map(|bound| -token.advantage * bound)
            && token.advantage < 0.0
            && loss.value > bound
        {
            loss = TokenLoss { value: bound, gradient: 0.0, clipped_lower: true, ..loss };
        }
        loss
    }
}

/// Returns max(-A r, -A clip(r)), where r has derivative `slope`. The gradient is that of -A r, or 0 where
/// the clipped value is larger, since that is constant.
pub(super) fn clipped_surrogate(advantage: f64, ratio: f64, slope: f64, clip: Clip) -> TokenLoss {
    let (free, held) = (-advantage * ratio, -advantage * clip.apply(ratio));
    let clipped = held > free;
    TokenLoss {
        value: free.max(held),
        gradient: if clipped { 0.0 } else { -advantage * slope },
        clipped,
        clipped_lower: false,
    }
}

formula! {
    /// The clipped ratio as a constant weight of the log-prob.
    ///
    /// -A stop(clip(r)) log pi; clipped tokens keep their gradient (verl's `cispo`, arXiv 2506.13585).
    pub struct Cispo {
        /// How far the ratio may fall below 1.
        pub clip_low: f64 = CLIP_LOW, DEFAULT_CLIP;
        /// How far the ratio may rise above 1.
        pub clip_high: f64 = CLIP_HIGH, DEFAULT_CLIP;
    }
}

impl TokenFormula for Cispo {
    fn token(&self, token: &Token, _: &RowTerm, _: bool) -> TokenLoss {
        let (ratio, _) = token.ratio();
        let weight = Clip::new(self.clip_low, self.clip_high).apply(ratio);
        TokenLoss { clipped: weight != ratio, ..weighted_likelihood(token, weight * token.advantage) }
    }
}

formula! {
    /// Updates only within a bound on the total variation.
    ///
    /// -A min(r, cap) log pi where the probability itself moved by at most the clip (verl's `dppo_tv`, arXiv
    /// 2602.04879).
    pub struct DppoTv {
        /// How far the ratio may fall below 1.
        pub clip_low: f64 = CLIP_LOW, DEFAULT_CLIP;
        /// How far the ratio may rise above 1.
        pub clip_high: f64 = CLIP_HIGH, DEFAULT_CLIP;
        /// Bound of the ratio used as a weight; verl's default where `clip_ratio_c` is unset.
        pub ratio_cap: f64 = DUAL_CLIP, 20.0;
    }
}

impl TokenFormula for DppoTv {
    fn token(&self, token: &Token, _: &RowTerm, _: bool) -> TokenLoss {
        let clip = Clip::new(self.clip_low, self.clip_high);
        dppo(token, self.ratio_cap, dppo_tv_allows(token, clip))
    }
}

formula! {
    /// Updates only within a bound on the binary KL.
    ///
    /// [`DppoTv`] with the Bernoulli KL of the token as the distance (verl's `dppo_kl`).
    pub struct DppoKl {
        /// How far the ratio may fall below 1.
        pub clip_low: f64 = CLIP_LOW, DEFAULT_CLIP;
        /// How far the ratio may rise above 1.
        pub clip_high: f64 = CLIP_HIGH, DEFAULT_CLIP;
        /// Bound of the ratio used as a weight.
        pub ratio_cap: f64 = DUAL_CLIP, 20.0;
    }
}

impl TokenFormula for DppoKl {
    fn token(&self, token: &Token, _: &RowTerm, _: bool) -> TokenLoss {
        let clip = Clip::new(self.clip_low, self.clip_high);
        dppo(token, self.ratio_cap, dppo_kl_allows(token, clip))
    }
}

fn dppo(token: &Token, ratio_cap: f64, allowed: bool) -> TokenLoss {
    if !allowed {
        return TokenLoss { clipped: true, ..TokenLoss::default() };
    }
    let (ratio, _) = token.ratio();
    TokenLoss {
        clipped_lower: ratio > ratio_cap,
        ..weighted_likelihood(token, ratio.min(ratio_cap) * token.advantage)
    }
}

/// Whether the probability moved by at most the clip in the direction that the advantage pushes.
fn dppo_tv_allows(token: &Token, clip: Clip) -> bool {
    let moved = token.logprob.exp() - token.old_logprob.exp();
    if token.advantage > 0.0 { moved <= clip.high } else { moved >= -clip.low }
}

/// Whether the token's Bernoulli KL is within the clip, or the probability moved against the direction that
/// the advantage pushes.
fn dppo_kl_allows(token: &Token, clip: Clip) -> bool {
    let (prob, old_prob) = (token.logprob.exp(), token.old_logprob.exp());
    let rest = ((1.0 - old_prob + BERNOULLI_EPSILON) / (1.0 - prob + BERNOULLI_EPSILON)).ln();
    let kl = old_prob * (token.old_logprob - token.logprob) + (1.0 - old_prob) * rest;
    if token.advantage > 0.0 {
        kl <= clip.high || prob <= old_prob
    } else {
        kl <= clip.low || prob >= old_prob
    }
}
