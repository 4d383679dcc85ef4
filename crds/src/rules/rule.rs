//! The type of a rule, and the parts of conditions that several rules share. Rules depend on it, never the
//! other way round.

use std::fmt::Write as _;

use rlt_algorithms::declaration::Parameter;
use serde::Serialize;

use crate::conflicts::ConflictRule;
use crate::presets::Preset;
use crate::spec::{
    AlgorithmKind, DatasetSpec, LearnsFrom, PresetProject, RLTrainingJobSpec, RewardFunctionSpec,
};

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

/// Rule of one field of reward functions: which kinds read it, and which of them need it.
#[derive(Clone, Copy)]
pub(crate) struct FieldRule {
    pub(super) name: &'static str,
}

/// Rule that a parameter of a section is given only with a formula that uses it.
#[derive(Clone, Copy)]
pub(crate) struct ParameterRule {
    pub(super) parameter: &'static Parameter,
    pub(super) section: &'static str,
    pub(super) cel_users: fn(&Parameter) -> String,
    pub(super) is_used: fn(&RLTrainingJobSpec, &Parameter) -> bool,
}

/// Makes the rule that refuses conflicts of the table.
pub(super) const fn conflict(rule: &'static ConflictRule) -> Rule {
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

pub(super) fn preset_of(spec: &RLTrainingJobSpec) -> Preset {
    spec.algorithm.defaults(spec.rollout.max_completion_tokens)
}

/// Formats choices by their names in manifests as a CEL list, such as `['A', 'B']`.
pub(crate) fn cel_list<T: Serialize>(choices: &[T]) -> String {
    format!("[{}]", choices.iter().map(cel_name).collect::<Vec<_>>().join(", "))
}

pub(super) fn cel_name<T: Serialize>(choice: &T) -> String {
    let name = serde_json::to_value(choice).ok().and_then(|value| value.as_str().map(str::to_owned));
    format!("'{}'", name.unwrap_or_default())
}

/// CEL condition that the kind is one of those that `which` accepts. `algorithm` is the path of the section.
pub(super) fn cel_kinds(algorithm: &str, which: impl Fn(AlgorithmKind) -> bool) -> String {
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
pub(super) fn cel_samples_nothing(algorithm: &str) -> String {
    cel_learns_from(algorithm, |from| !from.samples())
}

pub(super) fn learns_from(spec: &RLTrainingJobSpec) -> LearnsFrom {
    spec.algorithm.kind.learns_from()
}

/// CEL expression of the value of an overridable field: the given one, or the preset's. `algorithm` is the
/// path of the section from the rule's scope.
pub(super) fn cel_effective<T: Serialize>(
    algorithm: &str,
    section: &str,
    field: &str,
    of: fn(Preset) -> T,
) -> String {
    format!(
        "(has({algorithm}.{section}) && has({algorithm}.{section}.{field}) ? {algorithm}.{section}.{field} : {})",
        cel_preset(algorithm, of)
    )
}

/// CEL expression of a field's value in the preset of `kind`, or in the defaults of the project `preset`.
pub(super) fn cel_preset<T: Serialize>(algorithm: &str, of: fn(Preset) -> T) -> String {
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
pub(super) fn divisors(number: u32) -> String {
    let divisors =
        (1..=number).filter(|divisor| number.is_multiple_of(*divisor)).map(|divisor| divisor.to_string());
    format!("one of {}", divisors.collect::<Vec<_>>().join(", "))
}
