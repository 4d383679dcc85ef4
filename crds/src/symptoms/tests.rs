//! Tests that each symptom is found in a course that has it and in none that learns, and that its fields and
//! documentation exist.

use super::*;

/// Metrics of a run that learns: rewards rise, entropy falls to a third, steps take two seconds.
fn healthy(step: usize, of: usize) -> Vec<(&'static str, f64)> {
    let share = step as f64 / of as f64;
    vec![
        ("actor/entropy", 0.9 - 0.6 * share),
        ("actor/kl_loss", 0.01 + 0.1 * share),
        ("critic/score/max", 1.0),
        ("critic/score/mean", 0.2 + 0.4 * share),
        ("critic/score/min", 0.0),
        ("response_length/clip_ratio", 0.1),
        ("response_length/mean", 50.0 + 40.0 * share),
        ("reward/error_ratio", 0.0),
        ("train/frac_reward_zero_std", 0.3),
        ("training/num_skipped_updates", 0.0),
        ("training/rollout_probs_diff_mean", 0.001),
        ("training/rollout_actor_probs_pearson_corr", 0.999),
        ("timing_s/gen", 1.0),
        ("timing_s/update_actor", 0.8),
        ("timing_s/step", 2.0),
    ]
}

/// Returns the course of a healthy run of `num_steps` steps, with the metrics `ill` in its last ten.
fn course(num_steps: usize, ill: &[(&'static str, f64)]) -> Course {
    let mut course = Course::default();
    for step in 1..=num_steps {
        let mut metrics = healthy(step, num_steps);
        if step + 10 > num_steps {
            metrics.retain(|(name, _)| !ill.iter().any(|(other, _)| name == other));
            metrics.extend_from_slice(ill);
        }
        course.push(metrics);
    }
    course
}

fn kinds(course: &Course) -> Vec<SymptomKind> {
    course.symptoms().into_iter().map(|symptom| symptom.kind).collect()
}

/// Metrics by name.
type Values = &'static [(&'static str, f64)];

/// Metrics with each symptom, and similar metrics without it.
const ILL: [(SymptomKind, Values, Values); 9] = [
    (
        SymptomKind::SkippedUpdates,
        &[("training/num_skipped_updates", 0.4)],
        &[("training/num_skipped_updates", 0.1)],
    ),
    (SymptomKind::LostRewards, &[("reward/error_ratio", 0.3)], &[("reward/error_ratio", 0.1)]),
    (
        SymptomKind::RolloutMismatch,
        &[("training/rollout_probs_diff_mean", 0.05)],
        &[("training/rollout_probs_diff_mean", 0.01)],
    ),
    (SymptomKind::RewardCollapse, &[("critic/score/mean", 0.25)], &[("critic/score/mean", 0.5)]),
    (
        SymptomKind::EqualRewards,
        &[("train/frac_reward_zero_std", 0.95)],
        &[("train/frac_reward_zero_std", 0.95), ("critic/score/mean", 0.98)],
    ),
    (
        SymptomKind::EntropyCollapse,
        &[("actor/entropy", 0.01)],
        &[("actor/entropy", 0.01), ("critic/score/mean", 0.98)],
    ),
    (SymptomKind::KlRunaway, &[("actor/kl_loss", 2.0)], &[("actor/kl_loss", 0.4)]),
    (
        SymptomKind::LengthExplosion,
        &[("response_length/clip_ratio", 0.8), ("response_length/mean", 100.0)],
        &[("response_length/clip_ratio", 0.3), ("response_length/mean", 100.0)],
    ),
    (
        SymptomKind::Slowdown,
        &[("timing_s/step", 9.0), ("timing_s/gen", 8.0)],
        &[("timing_s/testing", 7.0), ("timing_s/save_checkpoint", 7.0)],
    ),
];

#[test]
fn each_symptom_is_found_by_its_metrics_and_not_by_similar_ones() {
    assert_eq!(kinds(&course(40, &[])), []);
    for (kind, ill, well) in ILL {
        assert_eq!(kinds(&course(40, ill)), [kind]);
        assert_eq!(kinds(&course(40, well)), [], "{}", kind.name());
    }
}

#[test]
fn the_first_steps_of_a_run_and_what_is_no_step_have_no_symptoms() {
    for (kind, ill, _) in ILL {
        assert_eq!(kinds(&course(9, ill)), [], "{}", kind.name());
    }
    let mut evaluations = Course::default();
    (0..30).for_each(|_| evaluations.push([("val-core/reward/mean", 0.0), ("reward/error_ratio", 1.0)]));
    assert_eq!((evaluations.num_steps(), evaluations.symptoms()), (0, vec![]));
}

/// Returns a course of `num_steps` steps with these rewards, in which the fraction `cut_off` of completions
/// is cut off.
fn rewarded(num_steps: usize, rewards: f64, cut_off: Option<f64>) -> Course {
    let mut course = Course::default();
    let cut_off = cut_off.map(|cut_off| ("response_length/clip_ratio", cut_off));
    let score = ["critic/score/max", "critic/score/mean", "critic/score/min"].map(|name| (name, rewards));
    let equal = [("timing_s/step", 1.0), ("train/frac_reward_zero_std", 1.0)];
    (0..num_steps).for_each(|_| course.push(score.into_iter().chain(equal).chain(cut_off)));
    course
}

#[test]
fn a_run_that_never_earns_a_reward_is_found_at_any_length_with_its_likely_cause() {
    for (num_steps, cut_off, expected) in [
        (1, None, "in its only step"),
        (
            5,
            Some(0.98),
            "in all of its 5 steps; 98 % of the newest completions are cut off, so most have no room",
        ),
        (
            40,
            Some(0.02),
            "; 2 % of the newest completions are cut off, so most have an answer, which no reward function",
        ),
    ] {
        let course = rewarded(num_steps, 0.0, cut_off);
        assert_eq!(kinds(&course), [SymptomKind::NoReward]);
        let evidence = &course.symptoms()[0].evidence;
        assert!(evidence.starts_with("earns nothing: ") && evidence.contains(expected), "{evidence}");
    }
    assert_eq!(kinds(&rewarded(5, 1.0, None)), []);
    assert_eq!(kinds(&rewarded(40, 1.0, None)), [SymptomKind::EqualRewards]);
    let mut course = rewarded(30, 0.0, None);
    course.push([("critic/score/max", 1.0), ("critic/score/min", 0.0), ("timing_s/step", 1.0)]);
    assert!(!kinds(&course).contains(&SymptomKind::NoReward), "a sample has earned something");
}

#[test]
fn a_missing_metric_gives_no_symptom() {
    let mut course = Course::default();
    (0..40).for_each(|_| course.push([("timing_s/step", 1.0), ("actor/entropy", f64::NAN)]));
    assert_eq!(course.symptoms(), []);
    assert_eq!(course.step_seconds(), Some(1.0));
}

#[test]
fn the_evidence_of_a_slow_step_names_the_phase_that_grew() {
    let found = course(40, &[("timing_s/step", 9.0), ("timing_s/gen", 8.0)]).symptoms();
    let expected = "slows down: 9.0 s a step over its last 10, 2.0 s before; timing_s/gen 8.0 s after 1.0 s";
    assert_eq!(found[0].evidence, expected);
}

/// Fields are in backticks. Any other text in backticks is a command.
#[test]
fn every_field_that_is_named_is_one_of_the_specification() {
    let reference = include_str!("../../../docs/reference.md");
    for kind in SymptomKind::ALL {
        for change in kind.changes() {
            for field in change.split('`').filter(|word| word.starts_with("spec.")) {
                assert!(reference.contains(&format!("| `{field}` |")), "{}: {field}", kind.name());
            }
        }
    }
}

/// The section of a symptom is the text between its heading and the next one.
#[test]
fn every_symptom_has_a_section_in_the_documentation_with_the_fields_that_it_names() {
    let page = include_str!("../../../docs/troubleshooting.md");
    for kind in SymptomKind::ALL {
        let name = kind.name();
        let behind = page.split_once(&format!("\n## `{name}`\n"));
        let section = behind.and_then(|(_, text)| text.split("\n## ").next()).unwrap_or_default();
        for part in ["**Reported when**", "**Look at**", "**Change**"] {
            assert!(section.contains(part), "{name} has no {part}");
        }
        for field in kind.changes().iter().flat_map(|change| change.split('`')) {
            assert!(!field.starts_with("spec.") || section.contains(field), "{name} does not say {field}");
        }
    }
}
