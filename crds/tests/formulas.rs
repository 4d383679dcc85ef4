//! Tests of formulas by their names in a manifest: a manifest can select every loss, estimator and preset,
//! and set each of its parameters. The golden test of `rlt-core` compares the formulas with the values of
//! another project.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a broken fixture should end the test")]

use rlt_algorithms::declaration::{Family, Parameter, ParameterValue, Range};
use rlt_algorithms::kto::Kto;
use rlt_algorithms::preference::Divergence;
use rlt_api::resolved::{Kl, PairPreference, PolicyGradient, Preference};
use rlt_api::spec::{AdvantageEstimatorKind, AlgorithmKind, LearnsFrom, PolicyLossKind, PreferenceLossKind};
use serde_json::{Value, json};

/// Returns a valid manifest with this algorithm; the kind defaults to GRPO.
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

fn preference(algorithm: Value) -> Option<Preference> {
    rlt_api::validate(&manifest(algorithm)).unwrap().spec().algorithm.preference.clone()
}

fn pairs(algorithm: Value) -> PairPreference {
    match preference(algorithm) {
        Some(Preference::Pairs(pairs)) => pairs,
        other => panic!("these are pairs: {other:?}"),
    }
}

/// Returns a value that is the default of no formula, so that only the manifest can have set it.
fn unusual(parameter: &Parameter, idx: usize) -> ParameterValue {
    match parameter.range {
        // Flags other than `runningMean` are true by default.
        Range::Flag => (parameter.name == "runningMean").into(),
        Range::Number { min, max } => (min + (max - min) * (0.11 + 0.07 * idx as f64)).into(),
    }
}

/// Returns the choice of a formula with an unusual value for each of its parameters, and these values by
/// name.
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
fn a_preference_loss_is_reached_by_its_name_with_all_its_parameters() {
    for kind in PreferenceLossKind::ALL {
        let (section, parameters) = chosen(*kind, "loss");
        let pairs = pairs(json!({"kind": "DPO", "preference": section}));
        let [(loss, 1.0)] = pairs.losses.weighted()[..] else { panic!("{kind:?} is one loss: {pairs:?}") };
        assert_eq!(loss.kind(), *kind);
        assert_eq!(loss.parameters(), parameters, "{kind:?}");
    }
}

#[test]
fn each_of_several_preference_losses_is_reached_with_its_weight_and_its_own_parameters() {
    let kinds = PreferenceLossKind::ALL;
    for (idx, pair) in kinds.windows(2).enumerate() {
        let mut items = [0, 1].map(|at| chosen(pair[at], "loss"));
        let weight = 0.25 + 0.5 * idx as f64;
        items[0].0["weight"] = weight.into();
        let losses = json!(items.iter().map(|(section, _)| section.clone()).collect::<Vec<_>>());
        let weighted = pairs(json!({"kind": "DPO", "preference": {"losses": losses}})).losses.weighted();
        for (at, (loss, got)) in weighted.iter().enumerate() {
            assert_eq!((loss.kind(), *got), (pair[at], [weight, 1.0][at]));
            assert_eq!(loss.parameters(), items[at].1, "{:?}", pair[at]);
        }
    }
}

#[test]
fn kinds_that_learn_from_preferences_differ_by_loss_likelihood_and_reference() {
    let of = |kind: &str| match preference(json!({"kind": kind})) {
        Some(Preference::Pairs(pairs)) => {
            let [(loss, _)] = pairs.losses.weighted()[..] else { panic!("{kind}: {pairs:?}") };
            (loss.kind().name(), pairs.sft_weight, loss.reads_reference())
        }
        other => panic!("{kind}: {other:?}"),
    };
    assert_eq!(of("DPO"), ("Sigmoid", 0.0, true));
    assert_eq!(of("OnlineDPO"), ("Sigmoid", 0.0, true));
    assert_eq!(of("SimPO"), ("SimPo", 0.0, false));
    assert_eq!(of("CPO"), ("Cpo", 1.0, false));
    assert_eq!(of("ORPO"), ("Orpo", 1.0, false));
    let given = json!({"kind": "KTO", "preference": {"beta": 0.3, "undesirableWeight": 1.2}});
    let kto = Kto { beta: 0.3, desirable_weight: 1.0, undesirable_weight: 1.2, reference_point: true };
    assert_eq!(preference(given), Some(Preference::Labels(kto)));
    let divergence = json!({"divergence": "Alpha", "divergenceAlpha": 0.7});
    let pairs = pairs(json!({"kind": "DPO", "preference": divergence}));
    assert_eq!(pairs.divergence, Divergence::Alpha { alpha: 0.7 });
    assert_eq!(preference(json!({"kind": "GRPO"})), None);
}

#[test]
fn a_preset_is_reached_by_its_name_and_has_its_own_parts() {
    let (off, rewards) = ("no KL", |kind: AlgorithmKind| kind.learns_from() == LearnsFrom::Rewards);
    let expected = [
        ("PPO", ["Gae", "Vanilla", "TokenMean", off, "clip 0.2 0.2, critic from step 0"]),
        ("GRPO", ["Grpo", "Vanilla", "SequenceMeanTokenMean", "KL 0.04 in the loss", "clip 0.2 0.2"]),
        ("DrGRPO", ["Grpo without deviation", "Vanilla", "SequenceMeanTokenSumNorm", off, "clip 0.2 0.2"]),
        ("DAPO", ["Grpo", "Vanilla", "TokenMean", off, "clip 0.2 0.28, dynamic, overlong"]),
        ("RLOO", ["Rloo", "Vanilla", "SequenceMeanTokenSum", "KL 0.05 in the reward", "clip 0.2 0.2"]),
        (
            "ReinforcePlusPlus",
            ["ReinforcePlusPlus", "Vanilla", "TokenMean", "KL 0.01 in the reward", "clip 0.2 0.2"],
        ),
        ("ReMax", ["ReMax", "Vanilla", "TokenMean", "KL 0.001 in the reward", "clip 0.2 0.2"]),
        ("GSPO", ["Grpo", "Gspo", "SequenceMeanTokenMean", off, "clip 0.0003 0.0004"]),
        ("CISPO", ["Grpo", "Cispo", "TokenMean", off, "clip 1 4"]),
        (
            "VAPO",
            [
                "LengthAdaptiveGae",
                "Vanilla",
                "TokenMean",
                off,
                "clip 0.2 0.28, positive 0.1, critic from step 50",
            ],
        ),
        ("PFPPO", ["Gae", "Vanilla", "TokenMean", off, "clip 0.2 0.2, reweighted, critic from step 0"]),
    ];
    let kinds = AlgorithmKind::ALL.into_iter().filter(|kind| rewards(*kind)).map(AlgorithmKind::name);
    assert_eq!(kinds.collect::<Vec<_>>(), expected.map(|(name, _)| name));
    for (name, parts) in expected {
        assert_eq!(parts_of(name), parts, "{name}");
    }
}

/// Describes the parts that a preset selects.
fn parts_of(kind: &str) -> [String; 5] {
    let job = rlt_api::validate(&manifest(json!({"kind": kind}))).unwrap();
    let algorithm = job.spec().algorithm.policy_gradient.clone().unwrap();
    let has_deviation = !algorithm.advantage.parameters().contains(&("normalizeByStd", false.into()));
    let deviation = if has_deviation { "" } else { " without deviation" };
    let kl = match algorithm.kl {
        Kl::None => "no KL".to_owned(),
        Kl::Loss(term) => format!("KL {} in the loss", term.coefficient),
        Kl::Reward(term) => format!("KL {} in the reward", term.coefficient),
    };
    let loss = &algorithm.loss;
    let parameters = loss.policy.parameters();
    let parameter = |name: &str| parameters.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
    let clip = ["clipLow", "clipHigh"].map(|name| match parameter(name) {
        Some(ParameterValue::Number(number)) => number.to_string(),
        other => format!("{other:?}"),
    });
    let mut more = vec![format!("clip {}", clip.join(" "))];
    more.extend(algorithm.dynamic_sampling.map(|_| "dynamic".to_owned()));
    more.extend(job.spec().rewards.overlong.as_ref().map(|_| "overlong".to_owned()));
    more.extend(algorithm.reweighting.map(|_| "reweighted".to_owned()));
    more.extend((loss.positive_coefficient > 0.0).then(|| format!("positive {}", loss.positive_coefficient)));
    let warmup = algorithm.critic.and_then(|critic| critic.warmup_steps);
    more.extend(warmup.map(|steps| format!("critic from step {steps}")));
    let aggregation = format!("{:?}", loss.aggregation);
    [
        format!("{}{deviation}", algorithm.advantage.kind().name()),
        loss.policy.kind().name().to_owned(),
        aggregation.split(' ').next().unwrap_or_default().to_owned(),
        kl,
        more.join(", "),
    ]
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
fn the_manifest_overrides_a_preset_which_overrides_the_formula() {
    let of = |spec: Value| algorithm(spec).loss.policy.parameters();
    let expected = |high: f64| vec![("clipLow", 0.2.into()), ("clipHigh", high.into())];
    assert_eq!(of(json!({"kind": "GRPO"})), expected(0.2));
    assert_eq!(of(json!({"kind": "DAPO"})), expected(0.28));
    assert_eq!(of(json!({"kind": "DAPO", "loss": {"clipHigh": 0.5}})), expected(0.5));
}

#[test]
fn a_resolved_preference_is_a_manifest_that_resolves_to_itself() {
    for algorithm in [
        json!({"kind": "DPO", "preference": {"divergence": "Alpha", "lengthDesensitization": 0.3}}),
        json!({"kind": "ORPO", "preference": {"weighByPolicy": true}}),
        json!({"kind": "KTO"}),
        json!({"kind": "OnlineDPO", "preference": {"loss": "ExoPair"}}),
        json!({"kind": "DPO", "preference": {"losses": [{"loss": "SimPo", "weight": 0.3},
               {"loss": "BcoPair", "runningMean": true}], "sftWeight": 1}}),
    ] {
        let job = rlt_api::validate(&manifest(algorithm)).unwrap();
        let again = rlt_api::validate(&job.to_yaml().unwrap()).unwrap();
        assert_eq!(job.spec(), again.spec());
    }
}
