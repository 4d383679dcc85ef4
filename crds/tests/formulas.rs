//! From a name in a manifest to the formula: every loss and estimator is reached by its own name, with every
//! parameter that a manifest gives. What the formulas compute is held to a peer's values by the golden test
//! of `rlt-core`.

#![expect(clippy::unwrap_used, reason = "a broken fixture should end the test")]

use rlt_algorithms::declaration::{Family, Parameter, ParameterValue, Range};
use rlt_api::resolved::PolicyGradient;
use rlt_api::spec::{AdvantageEstimatorKind, PolicyLossKind};
use serde_json::{Value, json};

/// A good manifest with this algorithm; GRPO where it says no kind.
fn manifest(mut algorithm: Value) -> String {
    let mut manifest: Value = serde_saphyr::from_str(include_str!("fixtures/arithmetic.yaml")).unwrap();
    if algorithm.get("kind").is_none() {
        algorithm["kind"] = "GRPO".into();
    }
    manifest["spec"]["algorithm"] = algorithm;
    serde_saphyr::to_string(&manifest).unwrap()
}

fn algorithm(algorithm: Value) -> PolicyGradient {
    rlt_api::validate(&manifest(algorithm)).unwrap().spec().algorithm.policy_gradient.clone().unwrap()
}

/// A value that no formula has by default: it can only come from the manifest.
fn unusual(parameter: &Parameter, idx: usize) -> ParameterValue {
    match parameter.range {
        Range::Flag => false.into(),
        Range::Number { min, max } => (min + (max - min) * (0.11 + 0.07 * idx as f64)).into(),
    }
}

/// The choice of a formula with an unusual value for each of its parameters, and those parameters.
fn chosen<F: Family>(formula: F, choice: &str) -> (Value, Vec<(&'static str, ParameterValue)>) {
    let parameters = formula.parameters().iter().enumerate();
    let parameters: Vec<_> = parameters.map(|(idx, each)| (each.name, unusual(each, idx))).collect();
    let mut section = json!({choice: formula.name()});
    for (name, value) in &parameters {
        section[*name] = serde_json::to_value(value).unwrap();
    }
    (section, parameters)
}

#[test]
fn a_policy_loss_is_reached_by_its_name_with_all_its_parameters() {
    for kind in PolicyLossKind::ALL {
        let (section, parameters) = chosen(*kind, "policy");
        let policy = algorithm(json!({"loss": section})).loss.policy;
        assert_eq!(policy.kind(), *kind);
        assert_eq!(policy.parameters(), parameters, "{kind:?}");
    }
}

#[test]
fn an_estimator_is_reached_by_its_name_with_all_its_parameters() {
    for kind in AdvantageEstimatorKind::ALL {
        let (section, parameters) = chosen(*kind, "estimator");
        let estimator = algorithm(json!({"advantage": section})).advantage;
        assert_eq!(estimator.kind(), *kind);
        assert_eq!(estimator.parameters(), parameters, "{kind:?}");
    }
}

#[test]
fn a_parameter_that_no_formula_has_is_refused_by_its_name() {
    let problems = rlt_api::validate(&manifest(json!({"loss": {"clipHeight": 0.1}}))).unwrap_err();
    assert_eq!(problems[0].path, "spec.algorithm.loss.clipHeight");
    let section: Result<rlt_api::spec::LossSpec, _> = serde_json::from_value(json!({"clipHeight": 0.1}));
    assert!(section.unwrap_err().to_string().contains("clipHeight"));
}

#[test]
fn a_preset_gives_way_to_the_manifest_and_comes_before_the_formula() {
    let of = |spec: Value| algorithm(spec).loss.policy.parameters();
    let expected = |high: f64| vec![("clipLow", 0.2.into()), ("clipHigh", high.into())];
    assert_eq!(of(json!({"kind": "GRPO"})), expected(0.2));
    assert_eq!(of(json!({"kind": "DAPO"})), expected(0.28));
    assert_eq!(of(json!({"kind": "DAPO", "loss": {"clipHigh": 0.5}})), expected(0.5));
}
