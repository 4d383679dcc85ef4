//! Rules that follow from the declarations of formulas: a parameter is given only with a formula that uses
//! it.

use std::sync::LazyLock;

use rlt_algorithms::declaration::{Family, Parameter};

use super::super::rule::ParameterRule;
use super::super::{Check, Rule, algorithm, cel_list, loss, preference};
use crate::spec::{AdvantageEstimatorKind, PolicyLossKind, PreferenceLossKind, RLTrainingJobSpec};

impl ParameterRule {
    pub(in crate::rules) fn holds(&self, spec: &RLTrainingJobSpec) -> bool {
        (self.is_used)(spec, self.parameter)
    }

    #[cfg_attr(not(feature = "kube"), expect(dead_code, reason = "only the definition holds CEL"))]
    pub(in crate::rules) fn cel(&self) -> String {
        let Self { parameter: Parameter { name, .. }, section, .. } = self;
        format!("!has(self.{section}) || !has(self.{section}.{name}) || {}", (self.cel_users)(self.parameter))
    }
}

/// One rule for each parameter that some formulas of its family do not use.
pub(in crate::rules) static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let of_estimator = |parameter| ParameterRule {
        parameter,
        section: "advantage",
        cel_users: |parameter| {
            format!(
                "{} in {}",
                algorithm::cel_estimator("self"),
                cel_list(&users_of::<AdvantageEstimatorKind>(parameter))
            )
        },
        is_used: |spec, parameter| {
            let given = spec.algorithm.advantage.as_ref().and_then(|given| given.parameters.get(parameter));
            given.is_none() || algorithm::estimator(spec).uses(parameter)
        },
    };
    let of_loss = |parameter| ParameterRule {
        parameter,
        section: "loss",
        cel_users: |parameter| {
            format!("{} in {}", loss::cel_policy(), cel_list(&users_of::<PolicyLossKind>(parameter)))
        },
        is_used: |spec, parameter| {
            let given = spec.algorithm.loss.as_ref().and_then(|given| given.parameters.get(parameter));
            given.is_none() || loss::policy(spec).uses(parameter)
        },
    };
    let of_preference = |parameter| ParameterRule {
        parameter,
        section: "preference",
        cel_users: |parameter| {
            format!("{} in {}", preference::cel_loss(), cel_list(&users_of::<PreferenceLossKind>(parameter)))
        },
        is_used: |spec, parameter| {
            let given = spec.algorithm.preference.as_ref().and_then(|given| given.parameters.get(parameter));
            given.is_none() || preference::loss(spec).uses(parameter)
        },
    };
    let estimators = AdvantageEstimatorKind::all_parameters().into_iter().map(of_estimator);
    let losses = PolicyLossKind::all_parameters().into_iter().map(of_loss);
    let family = FamilyName { one: "estimator", several: "estimators" };
    let estimators = estimators.map(move |rule| rule_of::<AdvantageEstimatorKind>(rule, "estimator", family));
    // All preference losses have a beta, so it needs no rule.
    let all = PreferenceLossKind::all_parameters().into_iter();
    let of_some = all.filter(|parameter| !PreferenceLossKind::ALL.iter().all(|loss| loss.uses(parameter)));
    let family = FamilyName { one: "preference loss", several: "preference losses" };
    let of_some: Vec<&'static Parameter> = of_some.collect();
    let of_items = of_some.clone().into_iter().map(|parameter| of_item(parameter, family));
    let preferences = of_some
        .into_iter()
        .map(of_preference)
        .map(move |rule| rule_of::<PreferenceLossKind>(rule, "loss", family))
        .chain(of_items);
    let policy_losses = FamilyName { one: "policy loss", several: "policy losses" };
    estimators
        .chain(preferences)
        .chain(losses.map(|rule| rule_of::<PolicyLossKind>(rule, "policy", policy_losses)))
        .collect()
});

/// Names of a family of formulas in messages.
#[derive(Clone, Copy)]
struct FamilyName {
    one: &'static str,
    several: &'static str,
}

fn users_of<F: Family>(parameter: &Parameter) -> Vec<F> {
    F::ALL.iter().copied().filter(|formula| formula.uses(parameter)).collect()
}

/// Returns the rule of a parameter in each item of a list of preference losses.
fn of_item(parameter: &'static Parameter, family: FamilyName) -> Rule {
    Rule {
        scope: "spec.algorithm.preference.losses[]",
        at: parameter.name,
        reads: Box::leak(Box::new([parameter.name, "loss"])),
        message: leaked(message::<PreferenceLossKind>(parameter, family)),
        cel: String::new,
        holds: Check::LossParameter(parameter),
        allowed: None,
    }
}

/// CEL form of the rule of a parameter in each item of a list of preference losses.
#[cfg_attr(not(feature = "kube"), expect(dead_code, reason = "only the definition holds CEL"))]
pub(in crate::rules) fn cel_of_item(parameter: &Parameter) -> String {
    let users = cel_list(&users_of::<PreferenceLossKind>(parameter));
    format!("!has(self.{}) || self.loss in {users}", parameter.name)
}

/// Converts to a [`Rule`]. Its texts are leaked, which is bounded because the list of rules is built once.
fn rule_of<F: Family>(rule: ParameterRule, choice: &str, family: FamilyName) -> Rule {
    let Parameter { name, .. } = rule.parameter;
    let at = leaked(format!("{}.{name}", rule.section));
    Rule {
        scope: "spec.algorithm",
        at,
        reads: Box::leak(Box::new([at, leaked(format!("{}.{choice}", rule.section)), "kind"])),
        message: leaked(message::<F>(rule.parameter, family)),
        cel: String::new,
        holds: Check::Parameter(rule),
        allowed: None,
    }
}

fn leaked(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// Returns the message, which names whichever are fewer: the formulas that use the parameter, or the others.
fn message<F: Family>(parameter: &Parameter, family: FamilyName) -> String {
    let (users, others): (Vec<F>, Vec<F>) = F::ALL.iter().partition(|formula| formula.uses(parameter));
    let name = parameter.name;
    let (named, verb) = if users.len() <= others.len() { (users, "used only") } else { (others, "not used") };
    let family = if named.len() == 1 { family.one } else { family.several };
    format!("{name} is {verb} by the {family} {}", listed(&named))
}

fn listed<F: Family>(formulas: &[F]) -> String {
    let names: Vec<&str> = formulas.iter().map(|formula| formula.name()).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}
