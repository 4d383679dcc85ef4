//! The rules that span fields, each in one place: its Kubernetes form (CEL) and its Rust form are side by
//! side and share one message. Rules of a single field (type, range, enum) are in the schema instead.

mod algorithm;
mod batch;
mod budgets;
#[cfg(feature = "kube")]
mod changes;
mod checkpoint;
mod data;
mod failure_policy;
mod lora;
mod loss;
mod model;
mod parallelism;
mod parameters;
mod pod;
mod preference;
mod quantization;
mod reference;
mod reward_fields;
mod reward_model;
mod rewards;
mod roles;
mod rollout;
mod task;
mod tracking;
mod training;
mod workers;

use std::fmt::Write as _;

use rlt_algorithms::declaration::{Family as _, Parameter};
use serde::Serialize;

use crate::presets::Preset;
use crate::spec::{
    AlgorithmKind, DatasetSpec, LearnsFrom, PresetProject, RLTrainingJobSpec, RewardFunctionSpec,
};
#[cfg(feature = "kube")]
pub(crate) use changes::change_rule;
use parameters::ParameterRule;
pub(crate) use pod::is_reserved_folder;
use reward_fields::FieldRule;
pub(crate) use workers::is_variable_reserved;

/// One rule.
pub(crate) struct Rule {
    /// The path of `self` in the CEL form, such as `spec.model`; `[]` for each item of a list. The API
    /// server evaluates a rule only if that field is given, and every field access has a cost. So the scope
    /// is as deep as possible, and the condition that decides most jobs is first.
    pub(crate) scope: &'static str,
    /// The field at which a problem is reported, relative to the scope; empty for the scope itself.
    pub(crate) at: &'static str,
    /// The fields that it reads, relative to the scope.
    pub(crate) reads: &'static [&'static str],
    /// The message to the user: what must hold.
    pub(crate) message: &'static str,
    /// The rule as the API server evaluates it, on an object with defaults filled in.
    #[cfg_attr(not(feature = "kube"), expect(dead_code, reason = "only the definition holds CEL"))]
    pub(crate) cel: fn() -> String,
    /// The rule as we evaluate it.
    pub(crate) holds: Check,
    /// The values of the reported field that would be right, where numbers say more than the message.
    pub(crate) allowed: Option<fn(&RLTrainingJobSpec) -> String>,
}

/// What a rule reads.
pub(crate) enum Check {
    /// The whole specification.
    Spec(fn(&RLTrainingJobSpec) -> bool),
    /// Each reward function on its own.
    RewardFunction(fn(&RewardFunctionSpec) -> bool),
    /// Each data set on its own.
    Dataset(fn(&DatasetSpec) -> bool),
    /// A field of each reward function; its CEL form follows from the declarations.
    RewardField(FieldRule),
    /// A parameter of a formula; its CEL form follows from the declarations.
    Parameter(ParameterRule),
    /// The same of each of several preference losses.
    LossParameter(&'static Parameter),
}

/// Every rule, in the order of the specification's sections.
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
    /// The rule as the API server evaluates it.
    #[cfg(feature = "kube")]
    pub(crate) fn cel(&self) -> String {
        match self.holds {
            Check::Parameter(rule) => rule.cel(),
            Check::RewardField(rule) => rule.cel(),
            Check::LossParameter(parameter) => parameters::cel_of_item(parameter),
            _ => (self.cel)(),
        }
    }

    /// The full paths of the fields that break this rule, as reported.
    pub(crate) fn broken_at(&self, spec: &RLTrainingJobSpec) -> Vec<String> {
        let path = |scope: &str| below(scope, self.at);
        match self.holds {
            Check::Spec(holds) => (!holds(spec)).then(|| path(self.scope)).into_iter().collect(),
            Check::Parameter(rule) => (!rule.holds(spec)).then(|| path(self.scope)).into_iter().collect(),
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

    /// The full paths of the items that do not hold.
    fn broken_items<T>(&self, items: &[T], holds: impl Fn(&T) -> bool) -> Vec<String> {
        let broken = items.iter().enumerate().filter(|(_, item)| !holds(item));
        let scope = |idx| self.scope.replace("[]", &format!("[{idx}]"));
        broken.map(|(idx, _)| below(&scope(idx), self.at)).collect()
    }

    /// The path of the field at which a problem is reported, with `[]` for the items of a list.
    #[cfg(feature = "kube")]
    pub(crate) fn reported_at(&self) -> String {
        below(self.scope, self.at)
    }

    /// Whether the rule reads a field at, above or below `path`: its verdict means nothing when that is
    /// wrong.
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

/// `['A', 'B']` in CEL, with the names of manifests.
fn cel_list<T: Serialize>(choices: &[T]) -> String {
    format!("[{}]", choices.iter().map(cel_name).collect::<Vec<_>>().join(", "))
}

fn cel_name<T: Serialize>(choice: &T) -> String {
    let name = serde_json::to_value(choice).ok().and_then(|value| value.as_str().map(str::to_owned));
    format!("'{}'", name.unwrap_or_default())
}

/// Whether the kind is one of those that `which` picks, in CEL. `algorithm` is the path of the section.
fn cel_kinds(algorithm: &str, which: impl Fn(AlgorithmKind) -> bool) -> String {
    let kinds: Vec<AlgorithmKind> = AlgorithmKind::ALL.into_iter().filter(|kind| which(*kind)).collect();
    match &kinds[..] {
        [kind] => format!("{algorithm}.kind == {}", cel_name(kind)),
        kinds => format!("{algorithm}.kind in {}", cel_list(kinds)),
    }
}

/// Whether the kind learns from data that `which` accepts, in CEL.
fn cel_learns_from(algorithm: &str, which: impl Fn(LearnsFrom) -> bool) -> String {
    cel_kinds(algorithm, |kind| which(kind.learns_from()))
}

/// Whether the job learns from a data set alone, in CEL.
fn cel_samples_nothing(algorithm: &str) -> String {
    cel_learns_from(algorithm, |from| !from.samples())
}

fn learns_from(spec: &RLTrainingJobSpec) -> LearnsFrom {
    spec.algorithm.kind.learns_from()
}

/// The value of an overridable field in CEL: as given, else what the preset of `kind` says. `algorithm` is
/// the path of the section from the rule's scope.
fn cel_effective<T: Serialize>(algorithm: &str, section: &str, field: &str, of: fn(Preset) -> T) -> String {
    format!(
        "(has({algorithm}.{section}) && has({algorithm}.{section}.{field}) ? {algorithm}.{section}.{field} : {})",
        cel_preset(algorithm, of)
    )
}

/// What the preset of `kind`, or the defaults of the project `preset`, say of a field, in CEL.
fn cel_preset<T: Serialize>(algorithm: &str, of: fn(Preset) -> T) -> String {
    let table_of = |project: Option<PresetProject>| {
        let mut table = String::new();
        for kind in AlgorithmKind::ALL {
            let separator = if table.is_empty() { "" } else { ", " };
            // The length only enters the penalty on long completions, which no rule reads.
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

/// The divisors of a number, for the answer to one that does not divide it.
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
