//! The table of conflicts: settings, parts of a model and devices that cannot be combined, with the reason
//! and what to change.
//!
//! ```text
//! manifest                     -> Facts of the manifest -> CONFLICTS -> rules of `validate` (and CEL)
//! job, model, chosen device    -> Facts of the job      -> CONFLICTS -> Refusal (plan, trainer)
//! model, adapter, device       -> Facts of a decoder    -> CONFLICTS -> errors of the trainer without a job
//! settings of other trainers   -> Facts of a draft      -> CONFLICTS -> what `rlctl convert` leaves out
//!                                                          CONFLICTS -> docs/support.md
//! ```
//! Not in the table: sizes that must divide each other, bounds, fields of which exactly one is given, which
//! formulas of an algorithm go together, and settings of a role that the job does not have. Those are in
//! `rules` and in `plan::model_check`. No other code refuses a combination.

mod facts;
mod page;
mod rows;
mod validation;

use std::fmt;

use crate::plan::model_config::ModelConfig;
use crate::resolved::ResolvedSpec;
use crate::spec::Device;
pub use facts::{Fact, Facts, WIDEST_HEAD};
pub use page::support_markdown;
pub use rows::CONFLICTS;
pub(crate) use validation::*;

/// Device that was chosen for a job: there is no `Auto`, for which no rule of a device could be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChosenDevice {
    /// CPUs, also where there are GPUs.
    Cpu,
    /// One GPU for each rank.
    Cuda,
}

impl ChosenDevice {
    /// Returns the device of a job that is planned without a machine: the CPU for `Auto`, see
    /// [`Device::without_machine`].
    pub fn without_machine(device: Device) -> Self {
        match device.without_machine() {
            Device::Cuda => Self::Cuda,
            Device::Auto | Device::Cpu => Self::Cpu,
        }
    }
}

/// Combination of facts that is refused.
pub struct Conflict {
    /// Fact to change.
    pub fact: Fact,
    /// Facts that rule `fact` out if a job has all of them.
    pub with: &'static [Fact],
    /// Rule of validation, for facts that a manifest has; several conflicts may have one rule.
    pub(crate) rule: Option<&'static ConflictRule>,
    /// Refusal of a job, for facts that only the model's files or the device decide.
    pub(crate) refused: Option<Refused>,
}

/// Texts of the refusal of a job whose model and device are known.
pub(crate) struct Refused {
    /// Reason, with the placeholders `<part>`, `<got>`, `<family>` and `<head_dim>`.
    pub(crate) because: &'static str,
    /// Part of the model or job that rules the fact out; empty where `because` says it.
    pub(crate) part: &'static str,
    /// Values that are supported.
    pub(crate) expected: &'static str,
}

impl Conflict {
    /// Whether a job, model or manifest has all facts of the conflict.
    pub fn is_met(&self, facts: &Facts) -> bool {
        facts.has(self.fact) && self.rules_out(facts)
    }

    /// Whether these facts rule out the fact to change.
    fn rules_out(&self, facts: &Facts) -> bool {
        self.with.iter().all(|fact| facts.has(*fact))
    }

    /// Part of the model or job that rules the fact out; empty where the reason does not name one.
    pub fn part(&self) -> &'static str {
        self.refused.as_ref().map_or("", |refused| refused.part)
    }

    /// Reason in general, without the values of a job.
    pub fn reason(&self) -> String {
        match (&self.refused, self.rule) {
            (Some(refused), _) => {
                let because = refused.because.replace("<part>", refused.part).replace("<got> ", "");
                because.replace("<family>", "the model").replace("<head_dim>", "too")
            }
            (None, Some(rule)) => rule.message.to_owned(),
            (None, None) => String::new(),
        }
    }

    /// Values of the fact's field that can be combined; `None` where the field is to be removed.
    pub fn expected(&self) -> Option<&'static str> {
        match (&self.refused, self.rule) {
            (Some(refused), _) => Some(refused.expected),
            (None, rule) => rule.and_then(|rule| rule.allowed),
        }
    }
}

/// Refusal of a job because of a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Field to change.
    pub field: &'static str,
    /// Reason, with the values of the job.
    pub because: String,
    /// Values that are supported.
    pub expected: &'static str,
    /// Value of the field; `None` where the reason names it.
    pub got: Option<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: expected {}", self.field, self.because, self.expected)?;
        match &self.got {
            Some(got) => write!(f, ", got {got}"),
            None => Ok(()),
        }
    }
}

/// Returns all refusals of a job, in the order of the table. Whether sizes divide each other is not checked.
pub fn refusals(spec: &ResolvedSpec, model: &ModelConfig, device: ChosenDevice) -> Vec<Refusal> {
    let facts = Facts::of_job(spec, model, device);
    let met = CONFLICTS.iter().filter(|conflict| conflict.is_met(&facts));
    met.filter_map(|conflict| {
        let Refused { because, part, expected } = *conflict.refused.as_ref()?;
        let got = conflict.fact.value_in(spec);
        let reason = because.replace("<part>", part).replace("<got>", &got);
        let reason = reason.replace("<family>", &format!("{:?}", model.family));
        let reason = reason.replace("<head_dim>", &model.head_dim.to_string());
        let got = (!because.contains("<got>")).then_some(got);
        Some(Refusal { field: conflict.fact.field(), because: reason, expected, got })
    })
    .collect()
}

/// Returns the first conflict of `fact` with `facts`, for callers that have no job.
pub fn conflict_of(fact: Fact, facts: &Facts) -> Option<&'static Conflict> {
    parts_against(fact).find(|conflict| conflict.rules_out(facts))
}

/// Yields the conflicts that refuse `fact` in a job, in the order of the table.
pub(crate) fn parts_against(fact: Fact) -> impl Iterator<Item = &'static Conflict> {
    CONFLICTS.iter().filter(move |conflict| conflict.fact == fact && conflict.refused.is_some())
}
