//! Tests of the table of conflicts against validation: conflicts that a manifest shows are refused with their
//! message, and no rule outside of the table refuses a combination.

mod manifests;

use serde_json::{Value, json};

use self::manifests::{facts_of, manifest, merge, settings, spec};
use super::{CONFLICTS, Conflict, Fact};
use crate::rules::{self, Check, Rule};
use crate::{API_VERSION, KIND, validate};

/// Settings of a manifest that describe a part of a model, or give a job the fact.
fn described(fact: Fact) -> Value {
    let mut shape = json!({
        "family": "Llama", "hiddenSize": 64, "intermediateSize": 32, "numLayers": 2, "numHeads": 4
    });
    let parts = match fact {
        Fact::Experts => json!({"family": "Qwen3Moe", "experts": {"count": 8, "perToken": 2}}),
        Fact::VisionTower => json!({
            "family": "Qwen2Vl", "vision": {"hiddenSize": 32, "numLayers": 1, "numHeads": 2, "patchSize": 4}
        }),
        Fact::NoVisionTower => json!({}),
        Fact::Quantized => return json!({"model": {"quantization": {}}}),
        other => return settings(other),
    };
    merge(&mut shape, &parts);
    json!({"model": {"architecture": shape}})
}

#[test]
fn every_conflict_that_a_manifest_shows_is_refused_by_validation_with_its_message() {
    let mut num_refused = 0;
    for conflict in CONFLICTS {
        let (Some(rule), facts) = (conflict.rule, facts_of(conflict)) else { continue };
        let mut spec = spec();
        facts.iter().for_each(|fact| merge(&mut spec, &described(*fact)));
        let problems = validate(&manifest(&spec)).unwrap_err();
        let path = format!("{}.{}", rule.scope, rule.at);
        let is_refused =
            problems.iter().any(|problem| problem.path == path && problem.message == rule.message);
        assert!(is_refused, "{facts:?} is not refused at {path}: {problems:?}");
        num_refused += 1;
    }
    assert!(num_refused > 20, "{num_refused} conflicts of manifests");
}

/// Whether a rule reads the field of a fact, or a field below it.
fn reads(rule: &Rule, fact: Fact) -> bool {
    let field = fact.field();
    rule.reads.iter().any(|read| {
        let path = if read.is_empty() { rule.scope.to_owned() } else { format!("{}.{read}", rule.scope) };
        path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
}

/// A rule outside of the table that reads all fields of a conflict would decide about the same combination.
#[test]
fn no_rule_outside_of_the_table_refuses_a_combination() {
    // `init: Loftq` requires a quantization, so the rule demands this combination instead of refusing it.
    let is_needed = |rule: &&Rule| rule.message.starts_with("init Loftq starts from");
    let (mut num_rules, mut num_needed) = (0, 0);
    for rule in rules::all() {
        if let Check::Conflict(own) = rule.holds {
            let of_rule = |conflict: &Conflict| conflict.rule.is_some_and(|rule| rule.message == own.message);
            assert!(CONFLICTS.iter().any(of_rule), "no conflict has the rule {:?}", own.message);
            num_rules += 1;
            continue;
        }
        for conflict in CONFLICTS {
            let facts = facts_of(conflict);
            let shown: Vec<_> = facts.into_iter().filter(|fact| !fact.field().is_empty()).collect();
            if shown.len() < 2 || !shown.iter().all(|fact| reads(rule, *fact)) {
                continue;
            }
            assert!(is_needed(&rule), "{:?} decides about {shown:?}, as the table does", rule.message);
            num_needed += 1;
        }
    }
    assert!(num_rules > 15 && num_needed > 0, "{num_rules} rules are of the table, {num_needed} are needed");
}
