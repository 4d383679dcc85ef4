//! Losses that bound a single token's ratio: PPO's clip, CISPO's weight and DPPO's divergence gate.

use super::policy::{Clip, Token, TokenLoss, weighted_likelihood};

/// Keeps the Bernoulli KL finite where a probability is 1 (verl's constant).
const BERNOULLI_EPSILON: f64 = 1e-8;

pub(super) fn vanilla(token: &Token, clip: Clip, dual_clip: Option<f64>) -> TokenLoss {
    let (ratio, slope) = token.ratio();
    let mut loss = clipped_surrogate(token.advantage, ratio, slope, clip);
    if let Some(bound) = dual_clip.map(|bound| -token.advantage * bound)
        && token.advantage < 0.0
        && loss.value > bound
    {
        loss = TokenLoss { value: bound, gradient: 0.0, clipped_lower: true, ..loss };
    }
    loss
}

/// max(-A r, -A clip(r)), where r has derivative `slope`. The gradient is that of -A r or nothing: where the
/// clip wins it is constant.
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

pub(super) fn cispo(token: &Token, clip: Clip) -> TokenLoss {
    let (ratio, _) = token.ratio();
    let weight = clip.apply(ratio);
    TokenLoss { clipped: weight != ratio, ..weighted_likelihood(token, weight * token.advantage) }
}

pub(super) fn dppo(token: &Token, ratio_cap: f64, allowed: bool) -> TokenLoss {
    if !allowed {
        return TokenLoss { clipped: true, ..TokenLoss::default() };
    }
    let (ratio, _) = token.ratio();
    TokenLoss {
        clipped_lower: ratio > ratio_cap,
        ..weighted_likelihood(token, ratio.min(ratio_cap) * token.advantage)
    }
}

/// The probability moved by at most the clip in the direction that the advantage pushes.
pub(super) fn dppo_tv_allows(token: &Token, clip: Clip) -> bool {
    let moved = token.logprob.exp() - token.old_logprob.exp();
    if token.advantage > 0.0 { moved <= clip.high } else { moved >= -clip.low }
}

/// The token's Bernoulli KL is within the clip, or the probability lies on the side that the advantage pushes
/// away from.
pub(super) fn dppo_kl_allows(token: &Token, clip: Clip) -> bool {
    let (prob, old_prob) = (token.logprob.exp(), token.old_logprob.exp());
    let rest = ((1.0 - old_prob + BERNOULLI_EPSILON) / (1.0 - prob + BERNOULLI_EPSILON)).ln();
    let kl = old_prob * (token.old_logprob - token.logprob) + (1.0 - old_prob) * rest;
    if token.advantage > 0.0 {
        kl <= clip.high || prob <= old_prob
    } else {
        kl <= clip.low || prob >= old_prob
    }
}
