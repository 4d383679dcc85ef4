//! Rules that span fields. Each has a Kubernetes form (CEL) and a Rust form side by side, with one message.
//! Those that refuse combinations are in the table of conflicts, from which `conflict` takes them.
//! Rules of a single field (type, range, enum) are in the schema instead.

mod algorithm;
mod batch;
mod budgets;
#[cfg(feature = "kube")]
mod changes;
mod data;
mod lora;
mod losses;
mod model;
mod parallelism;
mod pods;
mod quantization;
mod reference;
mod reward_fields;
mod reward_model;
mod rewards;
mod roles;
mod rollout;
mod task;
mod training;

use std::fmt::Write as _;

use rlt_algorithms::declaration::{Family as _, Parameter};
use serde::Serialize;

use crate::conflicts::{ConflictRule, Facts};
use crate::presets::Preset;
use crate::spec::{
    AlgorithmKind, DatasetSpec, LearnsFrom, PresetProject, RLTrainingJobSpec, RewardFunctionSpec,
};
pub(crate) use algorithm::{cel_estimator, estimator, with_critic};
#[cfg(feature = "kube")]
pub(crate) use changes::change_rule;
use losses::{loss, parameters, preference};
use parameters::ParameterRule;
pub(crate) use pod::is_reserved_folder;
use pods::{checkpoint, failure_policy, pod, tracking, workers};
use reward_fields::FieldRule;
pub(crate) use roles::cel_has;
pub(crate) use workers::is_variable_reserved;

/// A condition that spans fields of the specification.
pub(crate) struct Rule {
    /// Path of `self` in the CEL form, such as `spec.model`, with `[]` for each item of a list. The API
    /// server evaluates a rule only if that field is present, and every field access has a cost. So the scope
    /// is as deep as possible, and the condition that decides most jobs comes first.
    pub(crate) scope: &'static str,
    /// Field at which a problem is reported, relative to the scope; empty for the scope itself.
    pub(crate) at: &'static str,
    /// Fields that the rule reads, relative to the scope.
    pub(crate) reads: &'static [&'static str],
    /// Message to the user: what must hold.
    pub(crate) message: &'static str,
    /// CEL expression that the API server evaluates, on an object with defaults filled in.
    #[cfg_attr(not(feature = "kube"), expect(dead_code, reason = "only the definition holds CEL"))]
    pub(crate) cel: fn() -> String,
    /// Rust form of the rule.
    pub(crate) holds: Check,
    /// Returns the valid values of the reported field, where they depend on the specification.
    pub(crate) allowed: Option<fn(&RLTrainingJobSpec) -> String>,
}

/// Rust form of a rule, by the part of the specification that it reads.
pub(crate) enum Check {
    /// A condition on the full specification.
    Spec(fn(&RLTrainingJobSpec) -> bool),
    /// A condition on each reward function.
    RewardFunction(fn(&RewardFunctionSpec) -> bool),
    /// A condition on each data set.
    Dataset(fn(&DatasetSpec) -> bool),
    /// A condition on a field of each reward function, whose CEL form follows from the declarations.
    RewardField(FieldRule),
    /// A condition on a parameter of a formula, whose CEL form follows from the declarations.
    Parameter(ParameterRule),
    /// A condition on a parameter of each item in a list of preference losses.
    LossParameter(&'static Parameter),
    /// A condition that the manifest has none of the conflicts of this rule.
    Conflict(&'static ConflictRule),
}

/// Makes the rule that refuses conflicts of the table.
const fn conflict(rule: &'static ConflictRule) -> Rule {
    Rule {
        scope: rule.scope,
        at: rule.at,
        reads: rule.reads,
        message: rule.message,
        cel: rule.cel,
        holds: Check::Conflict(rule),
        allowed: None,
    }
}

/// Yields all rules, in the order of the specification's sections.
pub(crate) fn all() -> impl Iterator<Item = &'static Rule> {
    let sections = [
        model::RULES,
        lora::RULES,
        quantization::RULES,
        data::RULES,
        task::RULES,
        rewards::RULES,
        &*reward_fields::RULES,
        algorithm::RULES,
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

fn preset_of(spec: &RLTrainingJobSpec) -> Preset {
    spec.algorithm.defaults(spec.rollout.max_completion_tokens)
}

/// Formats choices by their names in manifests as a CEL list, such as `['A', 'B']`.
pub(crate) fn cel_list<T: Serialize>(choices: &[T]) -> String {
    format!("[{}]", choices.iter().map(cel_name).collect::<Vec<_>>().join(", "))
}

fn cel_name<T: Serialize>(choice: &T) -> String {
    let name = serde_json::to_value(choice).ok().and_then(|value| value.as_str().map(str::to_owned));
    format!("'{}'", name.unwrap_or_default())
}

/// CEL condition that the kind is one of those that `which` accepts. `algorithm` is the path of the section.
fn cel_kinds(algorithm: &str, which: impl Fn(AlgorithmKind) -> bool) -> String {
    let kinds: Vec<AlgorithmKind> = AlgorithmKind::ALL.into_iter().filter(|kind| which(*kind)).collect();
    match &kinds[..] {
        [kind] => format!("{algorithm}.kind == {}", cel_name(kind)),
        kinds => format!("{algorithm}.kind in {}", cel_list(kinds)),
    }
}

/// CEL condition that the kind learns from data that `which` accepts.
pub(crate) fn cel_learns_from(algorithm: &str, which: impl Fn(LearnsFrom) -> bool) -> String {
    cel_kinds(algorithm, |kind| which(kind.learns_from()))
}

/// CEL condition that the job learns from a data set only.
fn cel_samples_nothing(algorithm: &str) -> String {
    cel_learns_from(algorithm, |from| !from.samples())
}

fn learns_from(spec: &RLTrainingJobSpec) -> LearnsFrom {
    spec.algorithm.kind.learns_from()
}

/// CEL expression of the value of an overridable field: the given one, or the preset's. `algorithm` is the
/// path of the section from the rule's scope.
fn cel_effective<T: Serialize>(algorithm: &str, section: &str, field: &str, of: fn(Preset) -> T) -> String {
    format!(
        "(has({algorithm}.{section}) && has({algorithm}.{section}.{field}) ? {algorithm}.{section}.{field} : {})",
        cel_preset(algorithm, of)
    )
}

/// CEL expression of a field's value in the preset of `kind`, or in the defaults of the project `preset`.
fn cel_preset<T: Serialize>(algorithm: &str, of: fn(Preset) -> T) -> String {
    let table_of = |project: Option<PresetProject>| {
        let mut table = String::new();
        for kind in AlgorithmKind::ALL {
            let separator = if table.is_empty() { "" } else { ", " };
            // The length only affects the penalty on long completions, which no rule reads.
            let preset = kind.preset(1);
            let preset = match project {
                Some(project) => project.over(kind, preset),
                None => preset,
            };
            let _ = write!(table, "{separator}{}: {}", cel_name(&kind), cel_name(&of(preset)));
        }
        table
    };
    let papers = table_of(None);
    let mut effective = format!("{{{papers}}}[{algorithm}.kind]");
    for project in PresetProject::ALL {
        let table = table_of(Some(project));
        if table != papers {
            let is_chosen =
                format!("has({algorithm}.preset) && {algorithm}.preset == {}", cel_name(&project));
            effective = format!("({is_chosen} ? {{{table}}}[{algorithm}.kind] : {effective})");
        }
    }
    effective
}

/// Lists the divisors of a number, for the error about one that does not divide it.
fn divisors(number: u32) -> String {
    let divisors =
        (1..=number).filter(|divisor| number.is_multiple_of(*divisor)).map(|divisor| divisor.to_string());
    format!("one of {}", divisors.collect::<Vec<_>>().join(", "))
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
