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
//! `rules` and in `rlt_plan::check_model`. No other code refuses a combination.

mod conflict;
mod facts;
mod page;
mod rows;
mod rule;
mod validation;

use std::fmt;

use crate::resolved::ResolvedSpec;
use crate::spec::ModelFamily;
pub use conflict::{ChosenDevice, Conflict, Refused};
pub use facts::{Fact, Facts};
pub use page::support_markdown;
pub use rows::CONFLICTS;
pub(crate) use rule::ConflictRule;
pub(crate) use validation::*;

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

impl Conflict {
    /// Returns the refusal of a job that has all facts of the conflict; `None` where a rule of validation
    /// refuses it. Reasons name the family and the width of heads of the job's model.
    pub fn refusal(&self, spec: &ResolvedSpec, family: ModelFamily, head_dim: usize) -> Option<Refusal> {
        let Refused { because, part, expected } = *self.refused.as_ref()?;
        let got = self.fact.value_in(spec);
        let reason = because.replace("<part>", part).replace("<got>", &got);
        let reason = reason.replace("<family>", &format!("{family:?}"));
        let reason = reason.replace("<head_dim>", &head_dim.to_string());
        let got = (!because.contains("<got>")).then_some(got);
        Some(Refusal { field: self.fact.field(), because: reason, expected, got })
    }
}

/// Returns the first conflict of `fact` with `facts`, for callers that have no job.
pub fn conflict_of(fact: Fact, facts: &Facts) -> Option<&'static Conflict> {
    parts_against(fact).find(|conflict| conflict.rules_out(facts))
}

/// Yields the conflicts that refuse `fact` in a job, in the order of the table.
pub fn parts_against(fact: Fact) -> impl Iterator<Item = &'static Conflict> {
    CONFLICTS.iter().filter(move |conflict| conflict.fact == fact && conflict.refused.is_some())
}

#[cfg(test)]
mod tests;
