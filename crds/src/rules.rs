//! Rules that span fields. Each has a Kubernetes form (CEL) and a Rust form side by side, with one message.
//! Rules that refuse combinations come from the table of conflicts, by the function `conflict`. Rules of a
//! single field (type, range, enum) are in the schema instead.

mod algorithm;
#[cfg(feature = "kube")]
mod changes;
mod data;
mod gdpo;
mod losses;
mod model;
mod parallelism;
mod pods;
mod reference;
mod reward_model;
mod rewards;
mod rollout;
mod rule;
mod task;
mod training;

use rlt_algorithms::declaration::Family as _;

use crate::conflicts::Facts;
use crate::spec::RLTrainingJobSpec;
pub(crate) use algorithm::{cel_estimator, estimator, with_critic};
#[cfg(feature = "kube")]
pub(crate) use changes::change_rule;
use losses::{loss, parameters, preference};
use model::{lora, quantization};
pub(crate) use pod::is_reserved_folder;
use pods::{checkpoint, failure_policy, pod, tracking, workers};
pub(crate) use roles::cel_has;
pub(crate) use rule::{Check, Rule, cel_learns_from, cel_list};
use rule::{
    cel_effective, cel_kinds, cel_name, cel_preset, cel_samples_nothing, conflict, divisors, learns_from,
    preset_of,
};
use training::{batch, budgets, roles};
pub(crate) use workers::is_variable_reserved;

/// Yields all rules, in the order of the specification's sections.
pub(crate) fn all() -> impl Iterator<Item = &'static Rule> {
    let sections = [
        model::RULES,
        lora::RULES,
        quantization::RULES,
        data::RULES,
        task::RULES,
        rewards::RULES,
        &*rewards::fields::RULES,
        algorithm::RULES,
        gdpo::RULES,
        &*parameters::RULES,
        loss::RULES,
        preference::RULES,
        reference::RULES,
        reward_model::RULES,
        rollout::RULES,
        batch::RULES,
        budgets::RULES,
        roles::RULES,
        training::RULES,
        checkpoint::RULES,
        tracking::RULES,
        workers::RULES,
        pod::RULES,
        failure_policy::RULES,
    ];
    sections.into_iter().chain(parallelism::SECTIONS).flatten()
}

impl Rule {
    /// Returns the CEL expression that the API server evaluates.
    #[cfg(feature = "kube")]
    pub(crate) fn cel(&self) -> String {
        match self.holds {
            Check::Parameter(rule) => rule.cel(),
            Check::RewardField(rule) => rule.cel(),
            Check::LossParameter(parameter) => parameters::cel_of_item(parameter),
            _ => (self.cel)(),
        }
    }

    /// Returns the full paths of the fields at which the rule is broken, by `spec` and the facts about it.
    pub(crate) fn broken_at(&self, spec: &RLTrainingJobSpec, facts: &Facts) -> Vec<String> {
        let path = |scope: &str| below(scope, self.at);
        match self.holds {
            Check::Spec(holds) => (!holds(spec)).then(|| path(self.scope)).into_iter().collect(),
            Check::Parameter(rule) => (!rule.holds(spec)).then(|| path(self.scope)).into_iter().collect(),
            Check::Conflict(rule) => (!rule.holds(facts)).then(|| path(self.scope)).into_iter().collect(),
            Check::RewardFunction(holds) => self.broken_items(&spec.rewards.functions, holds),
            Check::RewardField(rule) => {
                self.broken_items(&spec.rewards.functions, |function| rule.holds(function))
            }
            Check::Dataset(holds) => self.broken_items(&spec.data.datasets, holds),
            Check::LossParameter(parameter) => {
                let losses = spec.algorithm.preference.as_ref().map_or(&[][..], |given| &given.losses);
                self.broken_items(losses, |one| {
                    one.parameters.get(parameter).is_none() || one.loss.uses(parameter)
                })
            }
        }
    }

    /// Returns the valid values of the reported field, where the rule knows them.
    pub(crate) fn allowed_in(&self, spec: &RLTrainingJobSpec) -> Option<String> {
        let allowed = match self.holds {
            Check::Conflict(rule) => rule.allowed.map(str::to_owned),
            _ => self.allowed.map(|allowed| allowed(spec)),
        };
        allowed.filter(|allowed| !allowed.is_empty())
    }

    /// Returns the full paths of the list items that break the rule.
    fn broken_items<T>(&self, items: &[T], holds: impl Fn(&T) -> bool) -> Vec<String> {
        let broken = items.iter().enumerate().filter(|(_, item)| !holds(item));
        let scope = |idx| self.scope.replace("[]", &format!("[{idx}]"));
        broken.map(|(idx, _)| below(&scope(idx), self.at)).collect()
    }

    /// Path of the field at which a problem is reported, with `[]` for the items of a list.
    #[cfg(feature = "kube")]
    pub(crate) fn reported_at(&self) -> String {
        below(self.scope, self.at)
    }

    /// Whether the rule reads a field at, above or below `path`. If that field is invalid, the rule's result
    /// means nothing.
    pub(crate) fn reads(&self, path: &str) -> bool {
        let path = without_indices(path);
        self.reads.iter().any(|field| {
            let read = below(self.scope, field);
            is_within(&path, &read) || is_within(&read, &path)
        })
    }
}

fn below(scope: &str, field: &str) -> String {
    match field {
        "" => scope.to_owned(),
        items if items.starts_with("[]") => format!("{scope}{items}"),
        field => format!("{scope}.{field}"),
    }
}

fn is_within(path: &str, outer: &str) -> bool {
    path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

fn without_indices(path: &str) -> String {
    let mut plain = String::with_capacity(path.len());
    let mut is_inside = false;
    for character in path.chars() {
        is_inside = character == '[' || (is_inside && character != ']');
        if !is_inside || character == '[' {
            plain.push(character);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::{is_within, without_indices};

    #[test]
    fn a_path_loses_its_indices_and_is_within_what_encloses_it() {
        assert_eq!(without_indices("spec.rewards.functions[12].pattern"), "spec.rewards.functions[].pattern");
        assert!(is_within("spec.model.lora.rank", "spec.model"));
        assert!(is_within("spec.model", "spec.model"));
        assert!(!is_within("spec.modelling", "spec.model"));
    }
}
