//! Preference losses: log-probs of chosen and rejected completions in, loss and derivatives out.
//!
//! Rows come in pairs: row `2 i` is the chosen completion of pair `i`, row `2 i + 1` the rejected one. A loss
//! sees the sum of a completion's log-probs under the actor and under the reference; its derivative with
//! respect to a log-prob is the one with respect to that sum, times the token's weight
//! ([`PreferenceObjective::desensitization`]). [`PreferenceDenominators`] count the whole update, so that
//! losses and derivatives of its micro-batches are added and do not depend on the split. Losses that sort the
//! update ([`PreferenceLoss::sorts_update`]) take all of it at once.
//!
//! Definitions follow TRL 1.16 (`trl/trainer/dpo_trainer.py`, `trl/experimental/{cpo,orpo}`) and are held to
//! its values and gradients by the golden test. Single completions with a label are in [`crate::kto`].

mod contrastive;
mod divergence;
mod matching;
mod objective;
mod pair;
mod reference_free;
mod running_mean;
mod score;
mod transport;

pub use divergence::Divergence;
pub use objective::{
    PreferenceDenominators, PreferenceInputs, PreferenceMetrics, PreferenceObjective, PreferenceOutputs,
};

pub use running_mean::RunningMean;

pub(crate) use pair::{log_sigmoid, sigmoid};

use crate::rows::{Rows, RowsError};

register! {
    /// The preference losses.
    pub names PreferenceLossKind,
    /// How a pair of completions becomes a loss: a preference loss with its parameters.
    pub formulas PreferenceLoss: pair::PairFormula,
    tag "loss",
    [
        score::Sigmoid,
        score::SigmoidNorm,
        score::Hinge,
        score::Ipo,
        score::Robust,
        score::ExoPair,
        score::DiscoPop,
        contrastive::NcaPair,
        contrastive::BcoPair,
        contrastive::SppoHard,
        contrastive::ApoZero,
        contrastive::ApoDown,
        transport::Aot,
        transport::AotUnpaired,
        reference_free::Cpo,
        reference_free::CpoHinge,
        reference_free::CpoIpo,
        reference_free::SimPo,
        reference_free::AlphaPo,
        reference_free::Orpo,
    ]
}

impl PreferenceLoss {
    /// Whether the loss reads log-probs under the reference.
    pub fn reads_reference(&self) -> bool {
        self.formula().reads_reference()
    }

    /// Whether a completion's score may use another divergence than the reverse KL.
    pub fn takes_divergence(&self) -> bool {
        self.formula().takes_divergence()
    }

    /// Whether the loss compares completions across the pairs of an update, which must then be evaluated at
    /// once.
    pub fn sorts_update(&self) -> bool {
        self.formula().matching().sorts()
    }

    /// Factor by which log-ratios become rewards.
    pub fn beta(&self) -> f64 {
        self.formula().beta()
    }
}

/// Returns the log-ratio of actor to reference of each completion: the sum over its counting tokens.
pub(crate) fn log_ratio_sums(
    rows: &Rows,
    logprobs: &[f64],
    ref_logprobs: &[f64],
) -> Result<Vec<f64>, RowsError> {
    rows.check_tokens("logprobs", logprobs)?;
    rows.check_tokens("ref_logprobs", ref_logprobs)?;
    let ratios: Vec<f64> =
        logprobs.iter().zip(ref_logprobs).map(|(actor, reference)| actor - reference).collect();
    Ok(rows.masked_sums(&ratios))
}
