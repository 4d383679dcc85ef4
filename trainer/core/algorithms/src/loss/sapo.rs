//! SAPO: a soft gate instead of a clip.

use super::Aggregation;
use super::formula::{RowTerm, Token, TokenFormula, TokenLoss};
use crate::declaration::Parameter;

const TAU_POSITIVE: Parameter = Parameter::number(
    "sapoTauPositive",
    1e-6,
    1000.0,
    "Temperature of `Sapo`'s gate for positive advantages; by default 1.",
);

const TAU_NEGATIVE: Parameter = Parameter::number(
    "sapoTauNegative",
    1e-6,
    1000.0,
    "Temperature of `Sapo`'s gate for negative advantages; by default 1.05.",
);

formula! {
    /// A soft gate instead of a clip.
    ///
    /// -A sigmoid(tau (r - 1)) 4 / tau (verl's `sapo`, arXiv 2511.20347).
    pub struct Sapo {
        /// Temperature of the gate for positive advantages.
        pub tau_positive: f64 = TAU_POSITIVE, 1.0;
        /// Temperature of the gate for advantages of 0 and below.
        pub tau_negative: f64 = TAU_NEGATIVE, 1.05;
    }
}

impl TokenFormula for Sapo {
    fn aggregation(&self) -> Option<Aggregation> {
        Some(Aggregation::SequenceMeanTokenMean)
    }

    fn token(&self, token: &Token, _: &RowTerm, _: bool) -> TokenLoss {
        let tau = if token.advantage > 0.0 { self.tau_positive } else { self.tau_negative };
        let (ratio, slope) = token.ratio();
        let gate = 1.0 / (1.0 + (-tau * (ratio - 1.0)).exp());
        TokenLoss {
            value: -token.advantage * gate * 4.0 / tau,
            gradient: -token.advantage * 4.0 * gate * (1.0 - gate) * slope,
            ..TokenLoss::default()
        }
    }
}
