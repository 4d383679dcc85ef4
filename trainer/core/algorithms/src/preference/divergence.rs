//! Scores of completions by f-divergences between actor and reference (arXiv 2309.16240).

use serde::Serialize;

/// Divergence by which a completion's log-ratio u of actor to reference becomes its score, f'(exp u). TRL's
/// names are in brackets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "divergence")]
pub enum Divergence {
    /// u (`reverse_kl`), as in plain DPO.
    #[default]
    ReverseKl,
    /// 1 - exp(-u) (`forward_kl`).
    ForwardKl,
    /// log 2 + log sigmoid(u) (`js_divergence`).
    JensenShannon,
    /// (exp((alpha - 1) u) - 1) / (alpha - 1), or u if alpha is 1 (`alpha_divergence`).
    Alpha {
        /// Order of the divergence.
        #[serde(rename = "divergenceAlpha")]
        alpha: f64,
    },
}

/// Upper bound of the exponents of [`Divergence::Alpha`], as in TRL.
const EXPONENT_BOUND: f64 = 80.0;

impl Divergence {
    /// Returns the score, and its derivative with respect to u.
    pub(crate) fn score(self, u: f64) -> (f64, f64) {
        match self {
            Self::ReverseKl => (u, 1.0),
            Self::ForwardKl => (1.0 - (-u).exp(), (-u).exp()),
            Self::JensenShannon => {
                (std::f64::consts::LN_2 + super::pair::log_sigmoid(u), super::pair::sigmoid(-u))
            }
            Self::Alpha { alpha } if (alpha - 1.0).abs() < 1e-6 => (u, 1.0),
            Self::Alpha { alpha } => {
                let exponent = (alpha - 1.0) * u;
                let power = exponent.min(EXPONENT_BOUND).exp();
                ((power - 1.0) / (alpha - 1.0), if exponent <= EXPONENT_BOUND { power } else { 0.0 })
            }
        }
    }
}
