//! f-divergences between actor and reference, as the score of a completion (arXiv 2309.16240).

use serde::Serialize;

/// How a completion's log-ratio u of actor to reference becomes its score, f'(exp u). TRL's names in
/// brackets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "divergence")]
pub enum Divergence {
    /// u (`reverse_kl`): plain DPO.
    #[default]
    ReverseKl,
    /// 1 - exp(-u) (`forward_kl`).
    ForwardKl,
    /// log 2 + log sigmoid(u) (`js_divergence`).
    JensenShannon,
    /// (exp((alpha - 1) u) - 1) / (alpha - 1), u where alpha is 1 (`alpha_divergence`).
    Alpha {
        /// The order of the divergence.
        #[serde(rename = "divergenceAlpha")]
        alpha: f64,
    },
}

/// Exponents of [`Divergence::Alpha`] are held below this, as in TRL.
const EXPONENT_BOUND: f64 = 80.0;

impl Divergence {
    /// The score, and its derivative with respect to u.
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
