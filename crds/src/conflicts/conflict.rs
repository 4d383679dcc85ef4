//! One row of the table of conflicts: the facts that cannot be combined, and the texts of the refusal.

use super::facts::{Fact, Facts};
use super::rule::ConflictRule;
use crate::spec::Device;

/// Device chosen for a job. There is no `Auto` variant, because rules about devices need a decided one.
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

impl From<ChosenDevice> for Device {
    fn from(device: ChosenDevice) -> Self {
        match device {
            ChosenDevice::Cpu => Self::Cpu,
            ChosenDevice::Cuda => Self::Cuda,
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
    pub refused: Option<Refused>,
}

/// Texts of the refusal of a job whose model and device are known.
pub struct Refused {
    /// Reason, with the placeholders `<part>`, `<got>`, `<family>` and `<head_dim>`.
    pub because: &'static str,
    /// Part of the model or job that rules the fact out; empty where `because` says it.
    pub part: &'static str,
    /// Values that are supported.
    pub expected: &'static str,
}

impl Conflict {
    /// Whether a job, model or manifest has all facts of the conflict.
    pub fn is_met(&self, facts: &Facts) -> bool {
        facts.has(self.fact) && self.rules_out(facts)
    }

    /// Whether these facts rule out the fact to change.
    pub(super) fn rules_out(&self, facts: &Facts) -> bool {
        self.with.iter().all(|fact| facts.has(*fact))
    }

    /// Whether validation refuses the combination by a rule, before the model and the device are known.
    pub fn has_rule(&self) -> bool {
        self.rule.is_some()
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
