//! Objectives of updates, from the job's algorithm. `rlt-api` has resolved names and parameters; formulas are
//! in `rlt-algorithms`.

use rlt_api::resolved::{self, PairPreference, PolicyGradient, PolicyGradientLoss};
use rlt_core::loss::{Aggregation, Gpg, KlTerm, Objective, PositiveTerm};
use rlt_core::preference::PreferenceObjective;

/// Returns the objective of a policy-gradient update; `kl_coefficient` is the controller's current one.
pub fn objective(algorithm: &PolicyGradient, kl_coefficient: f64) -> Objective {
    let kl = match &algorithm.kl {
        resolved::Kl::Loss(term) => Some(KlTerm { estimator: term.estimator, coefficient: kl_coefficient }),
        resolved::Kl::None | resolved::Kl::Reward(_) => None,
    };
    Objective {
        policy: algorithm.loss.policy,
        aggregation: algorithm.loss.aggregation,
        kl,
        entropy_coefficient: algorithm.loss.entropy_coefficient,
        positive: positive(&algorithm.loss),
    }
}

fn positive(loss: &PolicyGradientLoss) -> Option<PositiveTerm> {
    let coefficient = loss.positive_coefficient;
    loss.positive_threshold.map(|threshold| PositiveTerm { coefficient, threshold })
}

/// Returns the objective of supervised training: mean negative log-likelihood of the demonstrated tokens,
/// which is `Gpg` with an advantage of 1.
pub fn supervised_objective() -> Objective {
    Objective {
        policy: Gpg {}.into(),
        aggregation: Aggregation::TokenMean,
        kl: None,
        entropy_coefficient: 0.0,
        positive: None,
    }
}

/// Returns the objective of preference losses over pairs of completions.
pub fn preference_objective(preference: &PairPreference) -> PreferenceObjective {
    PreferenceObjective {
        losses: preference.losses.weighted(),
        divergence: preference.divergence,
        desensitization: preference.length_desensitization,
        weigh_by_policy: preference.weigh_by_policy,
        imitation: preference.sft_weight,
    }
}
