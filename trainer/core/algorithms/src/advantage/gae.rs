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

/// GAE with discount `gamma` and trace `lambda`; returns are advantage + value before the advantages are
/// whitened over the tokens that count. Masked tokens (tool observations, padding) are stepped over: they
/// carry neither value nor error. As in verl their own entries are whitened with the rest and mean nothing.
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
    rows.check_tokens("token_rewards", token_rewards)?;
    rows.check_tokens("values", values)?;
    let mut advantages = vec![0.0; rows.num_tokens()];
    for range in rows.ranges() {
        let (mut next_value, mut running) = (0.0, 0.0);
        for token in range.rev() {
            if rows.mask()[token] {
                let delta = token_rewards[token] + gamma * next_value - values[token];
                running = delta + gamma * lambda * running;
                next_value = values[token];
            }
            advantages[token] = running;
        }
    }
    let returns = advantages.iter().zip(values).map(|(advantage, value)| advantage + value).collect();
    Ok(Advantages { advantages: masked_whiten(rows, &advantages, true)?, returns })
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
}
