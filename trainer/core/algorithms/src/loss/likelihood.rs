//! Losses on the log-prob itself, without a ratio: GPG and DRO.

use super::formula::{PENALTY, RowTerm, Token, TokenFormula, TokenLoss, weighted_likelihood};

formula! {
    /// The log-prob times the advantage, without a ratio.
    ///
    /// -A log pi (verl's `gpg`, arXiv 2504.02546). With advantage 1 it is the negative log-likelihood of
    /// supervised training.
    pub struct Gpg {}
}

impl TokenFormula for Gpg {
    fn token(&self, token: &Token, _: &RowTerm, _: bool) -> TokenLoss {
        weighted_likelihood(token, token.advantage)
    }
}

formula! {
    /// A quadratic penalty on the log-ratio.
    ///
    /// -(A log pi - beta / 2 x^2) (verl's `dro`, arXiv 2405.19107).
    pub struct Dro {
        /// Weight of the pull to the old policy, above 0.
        pub beta: f64 = PENALTY, 0.1;
    }
}

impl TokenFormula for Dro {
    fn token(&self, token: &Token, _: &RowTerm, _: bool) -> TokenLoss {
        let x = token.log_ratio();
        TokenLoss {
            value: -(token.advantage * token.logprob - 0.5 * self.beta * x * x),
            gradient: -token.advantage + self.beta * x,
            ..TokenLoss::default()
        }
    }
}
