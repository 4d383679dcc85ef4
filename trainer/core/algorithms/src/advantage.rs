//! Advantage estimators: rewards of a step's completions in, one advantage per token out.
//!
//! Rows are **completions**: a row starts at the first token after the prompt, so that position `t` means the
//! same in every row of a group. One family of estimators per file; this one holds the choice between them,
//! and `estimator` what they share. Definitions follow verl 0.10 (`core_algos.py`); the golden test compares
//! every function with verl's values. The policy loss is in [`crate::loss`].

mod baseline;
mod estimator;
mod gae;
mod groups;
mod grpo;
mod reinforce;
mod rloo;
mod selection;

pub use baseline::{OptimalTokenBaselineInputs, gpg, opo, optimal_token_baseline};
pub(crate) use estimator::Estimator;
pub use estimator::{AdvantageError, AdvantageInputs, Advantages, EstimatorInput, STD_EPSILON};
use estimator::{GAMMA, needed, outcomes, rewards_to_go};
pub use gae::gae;
pub use grpo::{NORMALIZE_BY_STD, gdpo, grpo, grpo_pass_at_k, grpo_vectorized};
pub use reinforce::{reinforce_plus_plus, reinforce_plus_plus_baseline, remax};
pub use rloo::{rloo, rloo_vectorized};

register! {
    /// The advantage estimators.
    pub names AdvantageEstimatorKind,
    /// How advantages are estimated: an estimator with its parameters.
    pub formulas AdvantageEstimator: Estimator,
    tag "estimator",
    [
        grpo::Grpo,
        grpo::GrpoPassk,
        rloo::Rloo,
        reinforce::ReinforcePlusPlus,
        reinforce::ReinforcePlusPlusBaseline,
        reinforce::ReMax,
        baseline::Opo,
        baseline::Gpg,
        baseline::OptimalTokenBaseline,
        grpo::Gdpo,
        gae::Gae,
        gae::LengthAdaptiveGae,
    ]
}

impl AdvantageEstimator {
    /// Estimates the advantages of one step's batch.
    ///
    /// An estimator that compares the samples of a prompt is not given a row that is the only one of its
    /// group, such as the last sample of a group whose other samples are masked. That row has no advantage
    /// (0). verl gives it its raw reward, which rewards samples for failures of their group's reward
    /// functions.
    ///
    /// # Errors
    /// When slices do not fit the rows, an input that the estimator needs is missing, or the batch is too
    /// small for it.
    pub fn estimate(&self, inputs: &AdvantageInputs<'_>) -> Result<Advantages, AdvantageError> {
        if !self.compares_samples() {
            return self.formula().estimate(inputs);
        }
        inputs.rows.check_rows("groups", inputs.groups)?;
        let comparable = groups::comparable(inputs.groups);
        if comparable.len() == inputs.groups.len() {
            return self.formula().estimate(inputs);
        }
        let selection = selection::Selection::new(inputs, &comparable)?;
        if comparable.is_empty() {
            return Ok(selection.scattered(None));
        }
        let estimated = self.formula().estimate(&selection.inputs())?;
        Ok(selection.scattered(Some(&estimated)))
    }

    /// Whether the estimator compares the samples of a prompt, so that it needs several.
    pub fn compares_samples(&self) -> bool {
        self.formula().compares_samples()
    }

    /// Whether the estimator reads this input.
    pub fn reads(&self, input: EstimatorInput) -> bool {
        self.formula().reads(input)
    }
}
