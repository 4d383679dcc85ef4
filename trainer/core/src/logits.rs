//! Log-prob and entropy of one token from its logits, with their gradients: the reference that chunked and
//! fused loss heads are tested against. This module works on slices; the heads themselves are kernels in
//! `rlt-torch`.

/// Log-prob and entropy of a token from one row of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScore {
    /// Log-prob of the label, ln p(label).
    pub logprob: f64,
    /// Entropy of the distribution, -sum p ln p, in nats.
    pub entropy: f64,
    /// Collision probability sum p^2, between 1 / vocabulary size and 1.
    pub sum_pi_squared: f64,
}

/// Scores `label` under softmax(`logits`), where the logits are already divided by the temperature. The
/// result is not finite if the logits are not; `label` must be an index of `logits`.
pub fn score(logits: &[f64], label: usize) -> TokenScore {
    let logsumexp = logsumexp(logits);
    let (mut expected_logit, mut sum_pi_squared) = (0.0, 0.0);
    for logit in logits {
        let prob = (logit - logsumexp).exp();
        if prob > 0.0 {
            expected_logit += prob * logit;
        }
        sum_pi_squared += prob * prob;
    }
    TokenScore { logprob: logits[label] - logsumexp, entropy: logsumexp - expected_logit, sum_pi_squared }
}

/// Returns the gradient of dlogprob * logprob + dentropy * entropy by the logits: dlogprob * (onehot - p) -
/// dentropy * p * (ln p + entropy).
pub fn score_gradient(logits: &[f64], label: usize, dlogprob: f64, dentropy: f64) -> Vec<f64> {
    let logsumexp = logsumexp(logits);
    let entropy = score(logits, label).entropy;
    let gradient = |(token, logit): (usize, &f64)| {
        let log_p = logit - logsumexp;
        let p = log_p.exp();
        let onehot = if token == label { 1.0 } else { 0.0 };
        let of_entropy = if p > 0.0 { p * (log_p + entropy) } else { 0.0 };
        dlogprob * (onehot - p) - dentropy * of_entropy
    };
    logits.iter().enumerate().map(gradient).collect()
}

fn logsumexp(logits: &[f64]) -> f64 {
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    top + logits.iter().map(|logit| (logit - top).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_logits_have_the_entropy_of_their_vocabulary() {
        let got = score(&[3.0; 8], 2);
        assert!((got.entropy - 8.0_f64.ln()).abs() < 1e-12);
        assert!((got.logprob + 8.0_f64.ln()).abs() < 1e-12);
        assert!((got.sum_pi_squared - 0.125).abs() < 1e-12);
    }

    #[test]
    fn an_impossible_token_does_not_spoil_the_others() {
        let got = score(&[0.0, f64::NEG_INFINITY], 0);
        assert_eq!((got.logprob, got.entropy), (0.0, 0.0));
        assert_eq!(score_gradient(&[0.0, f64::NEG_INFINITY], 0, 1.0, 1.0), [0.0, 0.0]);
    }

    #[test]
    fn gradient_is_the_slope_of_the_score() {
        const STEP: f64 = 1e-5;
        let logits = [0.3, -1.2, 2.0, 0.7];
        let (dlogprob, dentropy) = (0.8, -0.6);
        let at = |logits: &[f64]| {
            let TokenScore { logprob, entropy, .. } = score(logits, 3);
            dlogprob * logprob + dentropy * entropy
        };
        for (token, got) in score_gradient(&logits, 3, dlogprob, dentropy).into_iter().enumerate() {
            let (mut up, mut down) = (logits, logits);
            up[token] += STEP;
            down[token] -= STEP;
            let slope = (at(&up) - at(&down)) / (2.0 * STEP);
            assert!((got - slope).abs() < 1e-9, "logit {token}: {got} against {slope}");
        }
    }
}
