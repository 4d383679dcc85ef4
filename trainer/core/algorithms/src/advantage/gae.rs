//! Generalised advantage estimation against a critic (arXiv 1506.02438).

use super::{AdvantageError, AdvantageInputs, Advantages, Estimator, EstimatorInput, GAMMA, needed};
use crate::declaration::Parameter;
use crate::rows::Rows;
use crate::whiten::masked_whiten;

const LAMBDA: Parameter = Parameter::number(
    "lambda",
    0.0,
    1.0,
    "How far ahead rewards are awaited before the critic is believed (`Gae` only): 0 for one token, 1 for the end; by \
     default 1.",
);

formula! {
    /// Generalised advantage estimation against a critic, whitened over the batch
    /// (<https://arxiv.org/abs/1506.02438>).
    ///
    /// [`gae`] (verl's `gae`).
    pub struct Gae {
        /// Discount per token, 0 to 1.
        pub gamma: f64 = GAMMA, 1.0;
        /// Trade between bias (0) and variance (1).
        pub lambda: f64 = LAMBDA, 1.0;
    }
}

impl Estimator for Gae {
    fn estimate(&self, inputs: &AdvantageInputs<'_>) -> Result<Advantages, AdvantageError> {
        let values = needed::<Self>("values", inputs.values)?;
        gae(inputs.rows, inputs.token_rewards, values, self.gamma, self.lambda)
    }

    fn compares_samples(&self) -> bool {
        false
    }

    fn reads(&self, input: EstimatorInput) -> bool {
        input == EstimatorInput::Values
    }
}

const CRITIC_LAMBDA: Parameter = Parameter::number(
    "criticLambda",
    0.0,
    1.0,
    "Lambda of the returns that the critic learns (`LengthAdaptiveGae` only); by default 1.",
);

const LENGTH_FACTOR: Parameter = Parameter::number(
    "lengthFactor",
    1e-6,
    1000.0,
    "How fast lambda nears 1 as completions grow: it is 1 - 1 / (`lengthFactor` x tokens), at least 0 \
     (`LengthAdaptiveGae` only); by default 0.05.",
);

formula! {
    /// Generalised advantage estimation with a lambda for each length, and another for the critic (VAPO,
    /// <https://arxiv.org/abs/2504.05118>).
    ///
    /// `decoupled_gae` with the policy's lambda at 1 - 1 / (0.05 l) for l counting tokens (section 4.2),
    /// and the critic's at 1 (section 4.1, as in VC-PPO, arXiv 2503.01491).
    pub struct LengthAdaptiveGae {
        /// Discount per token, 0 to 1.
        pub gamma: f64 = GAMMA, 1.0;
        /// Lambda of the returns.
        pub critic_lambda: f64 = CRITIC_LAMBDA, 1.0;
        /// Alpha of the paper's formula.
        pub length_factor: f64 = LENGTH_FACTOR, 0.05;
    }
}

impl Estimator for LengthAdaptiveGae {
    fn estimate(&self, inputs: &AdvantageInputs<'_>) -> Result<Advantages, AdvantageError> {
        let values = needed::<Self>("values", inputs.values)?;
        let lambda = |row_idx: usize| {
            let num_tokens = inputs.rows.valid_len(row_idx).max(1) as f64;
            (1.0 - 1.0 / (self.length_factor * num_tokens)).max(0.0)
        };
        decoupled_gae(inputs.rows, inputs.token_rewards, values, self.gamma, lambda, self.critic_lambda)
    }

    fn compares_samples(&self) -> bool {
        false
    }

    fn reads(&self, input: EstimatorInput) -> bool {
        input == EstimatorInput::Values
    }
}

/// GAE with discount `gamma` and trace `lambda`. Returns are advantage + value before the advantages are
/// whitened over the tokens that count. Masked tokens (tool observations, rejected tokens) are skipped: they
/// contribute neither value nor error, and a reward at one counts for the last unmasked token before it. verl
/// drops such a reward, so a rejected last token loses the outcome there. As in verl their own entries are
/// whitened with the rest and have no meaning.
///
/// # Errors
/// When slices do not fit the rows or fewer than two tokens count.
pub fn gae(
    rows: &Rows,
    token_rewards: &[f64],
    values: &[f64],
    gamma: f64,
    lambda: f64,
) -> Result<Advantages, AdvantageError> {
    decoupled_gae(rows, token_rewards, values, gamma, |_| lambda, lambda)
}

/// GAE with a lambda per row for the advantages, and another lambda for the returns.
fn decoupled_gae(
    rows: &Rows,
    token_rewards: &[f64],
    values: &[f64],
    gamma: f64,
    lambda: impl Fn(usize) -> f64,
    critic_lambda: f64,
) -> Result<Advantages, AdvantageError> {
    rows.check_tokens("token_rewards", token_rewards)?;
    rows.check_tokens("values", values)?;
    let advantages = traced(rows, token_rewards, values, gamma, lambda);
    let of_critic = traced(rows, token_rewards, values, gamma, |_| critic_lambda);
    let returns = of_critic.iter().zip(values).map(|(advantage, value)| advantage + value).collect();
    Ok(Advantages { advantages: masked_whiten(rows, &advantages, true)?, returns })
}

/// Returns the discounted sum of temporal-difference errors from each token on.
fn traced(
    rows: &Rows,
    token_rewards: &[f64],
    values: &[f64],
    gamma: f64,
    lambda: impl Fn(usize) -> f64,
) -> Vec<f64> {
    let mut advantages = vec![0.0; rows.num_tokens()];
    for (row_idx, range) in rows.ranges().enumerate() {
        let (lambda, mut next_value, mut running) = (lambda(row_idx), 0.0, 0.0);
        let mut passed_on = 0.0;
        for token in range.rev() {
            passed_on += token_rewards[token];
            if rows.mask()[token] {
                let reward = std::mem::take(&mut passed_on);
                let delta = reward + gamma * next_value - values[token];
                running = delta + gamma * lambda * running;
                next_value = values[token];
            }
            advantages[token] = running;
        }
    }
    advantages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_discount_returns_are_rewards_to_go() {
        let rows = Rows::from_masks([&[true, true, false, true][..], &[true, true]]);
        let rewards = [0.0, 1.0, 0.0, 2.0, 0.5, 0.25];
        let got = gae(&rows, &rewards, &[0.3, -0.4, 9.0, 0.1, 0.2, 0.7], 1.0, 1.0).unwrap();
        for (token, expected) in [(0, 3.0), (1, 3.0), (3, 2.0), (4, 0.75), (5, 0.25)] {
            assert!((got.returns[token] - expected).abs() < 1e-12, "token {token}: {:?}", got.returns);
        }
    }

    #[test]
    fn a_rejected_last_token_does_not_lose_the_outcome() {
        let rows = Rows::from_masks([&[true, true, false][..], &[true, true]]);
        let values = [0.3, -0.4, 9.0, 0.3, -0.4];
        let got = gae(&rows, &[0.0, 0.0, 1.0, 0.0, 1.0], &values, 0.9, 0.8).unwrap();
        assert_eq!(got.returns[..2], got.returns[3..]);
        assert_eq!(got.advantages[..2], got.advantages[3..]);
    }

    /// Lambda is 1 - 1 / (0.05 * 40) = 0.5 for 40 tokens, and 0 for 20 and fewer.
    #[test]
    fn lambda_grows_with_the_completion_and_the_critic_learns_plain_returns() {
        let lens = [40, 20, 8];
        let rows = Rows::unmasked(lens);
        let rewards = rows.at_last_valid(&[1.0, -0.5, 2.0]);
        let values: Vec<f64> = (0..rows.num_tokens()).map(|token| (token as f64 * 0.7).sin()).collect();
        let inputs = AdvantageInputs { values: Some(&values), ..AdvantageInputs::new(&rows, &rewards, &[]) };
        let vapo = LengthAdaptiveGae { gamma: 1.0, critic_lambda: 1.0, length_factor: 0.05 };
        let got = vapo.estimate(&inputs).unwrap();
        let of = |lambda: f64| traced(&rows, &rewards, &values, 1.0, |_| lambda);
        let (half, none) = (of(0.5), of(0.0));
        let raw: Vec<f64> = half[..40].iter().chain(&none[40..]).copied().collect();
        assert_eq!(got.advantages, masked_whiten(&rows, &raw, true).unwrap());
        assert_eq!(got.returns, gae(&rows, &rewards, &values, 1.0, 1.0).unwrap().returns);
    }
}
