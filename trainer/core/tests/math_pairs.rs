//! Holds the reward `Math` to math-verify's verdicts on pairs in the kinds of MATH, DeepMath and NuminaMath.
//!
//! `goldens/math/pairs.py` makes the pairs; `goldens/math/disagreements.json` lists those on which `Math`
//! decides otherwise, each with the reason. `goldens/math/notations.py` and `notations_disagreements.json` do
//! the same for notations in which completions state an answer, many of which math-verify does not read.

#![expect(clippy::expect_used, reason = "a fixture that cannot be read is a failed test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rlt_core::reward::math::are_equal;
use serde::Deserialize;

#[derive(Deserialize)]
struct Pairs {
    pairs: Vec<Pair>,
}

#[derive(Deserialize)]
struct Pair {
    kind: String,
    truth: String,
    answer: String,
    equal: bool,
}

#[derive(Deserialize)]
struct Disagreement {
    truth: String,
    answer: String,
    reason: String,
}

#[derive(Deserialize)]
struct Disagreements {
    reason: String,
    pairs: Vec<(String, String)>,
}

fn read<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/math").join(name);
    serde_json::from_str(&std::fs::read_to_string(&path).expect(name)).expect(name)
}

#[test]
fn math_agrees_with_math_verify_except_where_a_reason_is_given() {
    let pairs: Pairs = read("pairs.json");
    let listed: Vec<Disagreement> = read("disagreements.json");
    let mut listed: BTreeMap<(&str, &str), &str> =
        listed.iter().map(|one| ((one.truth.as_str(), one.answer.as_str()), one.reason.as_str())).collect();
    let (mut unexplained, mut num_disagreements) = (Vec::new(), 0);
    for Pair { kind, truth, answer, equal } in &pairs.pairs {
        if are_equal(truth, answer) == *equal {
            continue;
        }
        num_disagreements += 1;
        let reason = listed.remove(&(truth.as_str(), answer.as_str()));
        if reason.is_none_or(|reason| reason.len() < 20) {
            unexplained.push(format!("{kind}: {truth} | {answer} | math-verify: {equal}"));
        }
    }
    assert!(
        unexplained.is_empty(),
        "{} disagreements have no reason:\n{}",
        unexplained.len(),
        unexplained.join("\n")
    );
    assert!(listed.is_empty(), "listed, but no disagreement: {:?}", listed.keys());
    assert!(pairs.pairs.len() >= 500, "{}", pairs.pairs.len());
    assert!(
        num_disagreements * 20 <= pairs.pairs.len(),
        "{num_disagreements} disagreements are more than 5 %"
    );
}

#[test]
fn math_reads_the_notations_of_completions_as_math_verify_does_or_for_a_reason() {
    let pairs: Pairs = read("notations.json");
    let listed: Vec<Disagreements> = read("notations_disagreements.json");
    assert!(listed.iter().all(|one| one.reason.len() > 20));
    let listed: BTreeSet<&(String, String)> = listed.iter().flat_map(|one| &one.pairs).collect();
    let decide_otherwise = |pair: &&Pair| are_equal(&pair.truth, &pair.answer) != pair.equal;
    let disagreements: BTreeSet<(String, String)> = pairs
        .pairs
        .iter()
        .filter(decide_otherwise)
        .map(|pair| (pair.truth.clone(), pair.answer.clone()))
        .collect();
    let unexplained: Vec<_> = disagreements.iter().filter(|pair| !listed.contains(pair)).collect();
    let outdated: Vec<_> = listed.iter().filter(|pair| !disagreements.contains(**pair)).collect();
    assert!(
        unexplained.is_empty() && outdated.is_empty(),
        "without a reason: {unexplained:#?}\nno disagreements any more: {outdated:#?}"
    );
    assert!(pairs.pairs.len() >= 1000, "{}", pairs.pairs.len());
}
