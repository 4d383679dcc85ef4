//! Proves that no accepted report leads to a status that the API server refuses.

use std::collections::HashMap;
use std::sync::LazyLock;

use jiff::Timestamp;
use proptest::prelude::*;
use prost::Message as _;
use rlt_api::status::RLTrainingJobStatus;
use rlt_channel::{Ending, Source};
use rlt_mutations::cases;
use serde_json::Value;

use super::super::reports::JobReport;
use super::super::status::read;
use super::*;

/// The schema of a status as the API server has it.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let definition = rlt_api::custom_resource_definition().unwrap();
    definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/status").unwrap().clone()
});

/// Returns the API server's error for a value; `None` if the schema allows it.
fn problem(schema: &Value, value: &Value, path: &str) -> Option<String> {
    let refuse = |why: &str| Some(format!("{path}: {why}: {value}"));
    let limit = |name: &str| schema[name].as_u64().unwrap_or(u64::MAX);
    match (schema["type"].as_str().unwrap_or_default(), value) {
        ("object", Value::Object(fields)) => fields.iter().find_map(|(name, value)| {
            let schema = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
            problem(schema, value, &format!("{path}.{name}"))
        }),
        ("array", Value::Array(items)) => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array();
            let key = |item: &Value| {
                keys.map(|keys| keys.iter().map(|key| item[key.as_str().unwrap()].clone()).collect())
            };
            let keys: Vec<Option<Vec<Value>>> = items.iter().map(key).collect();
            let is_twice = |idx: usize| keys[idx].is_some() && keys[..idx].contains(&keys[idx]);
            if items.len() as u64 > limit("maxItems") || (0..items.len()).any(is_twice) {
                return refuse("too many, or two of one key");
            }
            items.iter().find_map(|item| problem(&schema["items"], item, &format!("{path}[]")))
        }
        ("integer", Value::Number(number)) => {
            let whole = number
                .as_i64()
                .filter(|whole| schema["minimum"].as_i64().is_none_or(|least| *whole >= least));
            if whole.is_none() { refuse("no whole number in range") } else { None }
        }
        ("string", Value::String(text)) => {
            let is_time =
                |text: &str| text.len() == "2026-01-01T00:00:00Z".len() && text.parse::<Timestamp>().is_ok();
            if text.chars().count() as u64 > limit("maxLength") {
                return refuse("too long");
            }
            if schema["format"] == "date-time" && !is_time(text) { refuse("no RFC 3339 time") } else { None }
        }
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => None,
        _ => refuse("another type"),
    }
}

/// Returns the problem of the status that follows from a report; `None` without a problem, and for a refused
/// report.
fn problem_of(report: ReportRequest) -> Option<String> {
    check(&report).ok()?;
    let ReportRequest { progress, checkpoints, metrics, restarts, .. } = report;
    let report = JobReport {
        attempt: 1,
        progress,
        checkpoints: Some(checkpoints),
        metrics,
        restarts: restarts.into_iter().collect(),
        ..JobReport::default()
    };
    let read = read(&report);
    let checkpoints = read.checkpoints.unwrap_or_default();
    let status = RLTrainingJobStatus {
        progress: read.progress,
        checkpoints,
        restarts_in_place: read.restarts,
        ..RLTrainingJobStatus::default()
    };
    problem(&SCHEMA, &serde_json::to_value(status).unwrap(), "status")
}

fn integer() -> impl Strategy<Value = u64> {
    prop_oneof![0..100u64, Just(MAX_WHOLE), Just(MAX_WHOLE + 1), Just(i64::MAX as u64 + 1), any::<u64>()]
}

fn time_ms() -> impl Strategy<Value = i64> {
    prop_oneof![
        Just(0),
        Just(*TIMES_MS.end()),
        Just(*TIMES_MS.end() + 1),
        Just(-1),
        any::<i64>(),
        0..2_000_000_000_000i64
    ]
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(1e300), Just(-1.0), any::<f64>(), 0.0..1e9]
}

fn checkpoint() -> impl Strategy<Value = Checkpoint> {
    (integer(), ".{0,20}", any::<u32>(), time_ms(), any::<bool>()).prop_map(
        |(step, path, world_size, committed_ms, is_latest)| Checkpoint {
            step,
            digest: path.clone(),
            path,
            world_size,
            committed_ms,
            is_latest,
        },
    )
}

fn progress() -> impl Strategy<Value = Progress> {
    let spent =
        prop::option::of((number(), number(), integer()).prop_map(|(process, step, resumed)| TimeSpent {
            process_seconds: process,
            step_seconds: step,
            resumed_after_step: resumed,
            ..TimeSpent::default()
        }));
    let text = ".{0,20}";
    (
        0..12i32,
        0..4i32,
        (integer(), integer()),
        (prop::option::of(number()), text),
        prop::option::of(time_ms()),
        spent,
    )
        .prop_map(
            |(phase, stage, (step, num_steps), (number, warning), step_finished_ms, time_spent)| Progress {
                warning_reasons: vec![warning.clone(), "Slowdown".into(), "Slowdown".into()],
                warning,
                phase,
                stage,
                step,
                num_steps,
                reward: number,
                held_out_reward: number,
                kl: number,
                tokens_per_second: number,
                remaining_seconds: number,
                time_spent,
                step_finished_ms,
            },
        )
}

fn report() -> impl Strategy<Value = ReportRequest> {
    let checkpoints = prop::collection::vec(checkpoint(), 0..8);
    let ending = prop::option::of(time_ms().prop_map(|time_ms| Ending { time_ms, ..Ending::default() }));
    let metrics = prop::collection::hash_map(".{0,8}", number(), 0..4);
    let cause = prop::sample::select(vec!["PeerLost", "Signalled", "", "peerLost"]);
    let restarts = prop::collection::hash_map(cause.prop_map(str::to_owned), any::<u32>(), 0..3);
    (prop::option::of(progress()), checkpoints, ending, metrics, any::<u64>(), restarts).prop_map(
        |(progress, checkpoints, ending, metrics, sequence, restarts)| ReportRequest {
            restarts,
            source: Some(Source::default()),
            sequence,
            progress,
            checkpoints,
            metrics,
            ending,
            knows_checkpoints: true,
            commits: Vec::new(),
        },
    )
}

/// Generates reports whose lists and texts may be far beyond their bounds.
fn large_report() -> impl Strategy<Value = ReportRequest> {
    let num_bytes = prop::sample::select(vec![3, limits::MAX_TEXT_BYTES, limits::MAX_TEXT_BYTES + 1]);
    let saved = (integer(), num_bytes, time_ms()).prop_map(|(step, num_bytes, committed_ms)| Checkpoint {
        step,
        path: "x".repeat(num_bytes),
        committed_ms,
        ..Checkpoint::default()
    });
    let commit = ("[a-c]{0,2}", 0..400usize, "[0-9a-g]{39,41}").prop_map(|(field, num_bytes, commit)| {
        let repo = "x".repeat(num_bytes);
        ModelCommit { field, repo, commit }
    });
    let saved = prop::collection::vec(saved, 0..120);
    let commits = prop::collection::vec(commit, 0..80);
    (report(), saved, commits, 0..3usize, any::<u32>()).prop_map(
        |(mut report, saved, commits, num_long, exit_code)| {
            report.checkpoints.extend(saved);
            report.commits = commits;
            // The launcher names causes by this list.
            report.restarts.retain(|name, _| FailureCause::from_name(name).is_some());
            let long = "ä".repeat(num_long * limits::MAX_MESSAGE_BYTES);
            if let Some(progress) = &mut report.progress {
                progress.warning_reasons.extend(vec![long.clone(); 20]);
                progress.warning.push_str(&long);
            }
            report.ending = report.ending.map(|ending| Ending { exit_code, message: long.clone(), ..ending });
            report.metrics.insert(long, 1.0);
            report
        },
    )
}

proptest! {
    #![proptest_config(cases(1000))]

    /// A single refused field would keep all later reports of the process out of the status.
    #[test]
    fn no_state_of_a_trainer_makes_a_report_that_is_refused(report in large_report()) {
        let mut report = report;
        rlt_channel::client::bound(&mut report);
        prop_assert_eq!(check(&report), Ok(()));
        prop_assert!(report.encoded_len() <= limits::MAX_REPORT_BYTES, "{} bytes", report.encoded_len());
    }

    #[test]
    fn a_report_that_is_taken_makes_a_status_that_the_api_server_takes(report in report()) {
        prop_assert_eq!(problem_of(report), None);
    }

    #[test]
    fn a_report_with_changed_bytes_fits_a_status_once_it_is_accepted(
        report in report(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = report.encode_to_vec();
        for (place, byte) in changes {
            let place = place.index(bytes.len().max(1));
            bytes.get_mut(place).into_iter().for_each(|each| *each = byte);
        }
        let found = ReportRequest::decode(&*bytes).ok().and_then(problem_of);
        prop_assert_eq!(found, None);
    }

    #[test]
    fn any_bytes_that_decode_as_a_report_fit_a_status_once_they_are_accepted(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let found = ReportRequest::decode(&*bytes).ok().and_then(problem_of);
        prop_assert_eq!(found, None);
    }
}

#[test]
fn a_job_that_does_not_fit_is_refused_by_field() {
    let refusal = |report: ReportRequest| check(&report).expect_err("a refusal");
    let with =
        |progress: Progress| refusal(ReportRequest { progress: Some(progress), ..ReportRequest::default() });
    let saved = |checkpoint: Checkpoint, count: usize| {
        refusal(ReportRequest { checkpoints: vec![checkpoint; count], ..ReportRequest::default() })
    };
    let step = MAX_WHOLE + 1;
    assert!(
        with(Progress { step, ..Progress::default() }).starts_with("progress.step: expected at most 2^53")
    );
    assert!(
        with(Progress { step_finished_ms: Some(-1), ..Progress::default() })
            .starts_with("progress.step_finished")
    );
    let spent = TimeSpent { step_seconds: f64::NAN, ..TimeSpent::default() };
    let spent = with(Progress { time_spent: Some(spent), ..Progress::default() });
    assert!(spent.starts_with("time_spent.step_seconds"), "{spent}");
    assert!(saved(Checkpoint::default(), 2).contains("two of step 0"));
    assert!(
        saved(Checkpoint { committed_ms: i64::MAX, ..Checkpoint::default() }, 1).contains("committed_ms")
    );
    let names = HashMap::from([("x".repeat(limits::MAX_NAME_BYTES + 1), 1.0)]);
    assert!(refusal(ReportRequest { metrics: names, ..ReportRequest::default() }).contains("metric's name"));
}

#[test]
fn metrics_out_of_bounds_are_dropped_and_the_rest_of_the_report_is_taken() {
    let long = "x".repeat(limits::MAX_NAME_BYTES + 1);
    let names = (0..limits::MAX_METRICS + 9).map(|idx| format!("metric/{idx:04}")).chain([long]);
    let metrics = names.map(|name| (name, 1.0)).collect();
    let progress = Some(Progress { step: 3, ..Progress::default() });
    let mut report = ReportRequest { metrics, progress, ..ReportRequest::default() };
    assert!(check(&report).is_err());
    drop_unknown(&mut report);
    assert_eq!(check(&report), Ok(()));
    assert_eq!(report.metrics.len(), limits::MAX_METRICS);
    assert!(report.metrics.contains_key("metric/0000") && report.progress.unwrap().step == 3);
}

/// The operator was rolled back, while pods of the later release keep running.
#[test]
fn a_report_of_a_later_release_counts_without_causes_and_reasons_that_only_that_release_knows() {
    let warning_reasons = (0..=limits::MAX_WARNING_REASONS).map(|idx| format!("Later{idx}")).collect();
    let progress = Some(Progress { step: 3, warning_reasons, ..Progress::default() });
    let restarts = [("PeerLost", 1), ("Drained", 2)].map(|(cause, count)| (cause.to_owned(), count)).into();
    let mut report = ReportRequest { progress, restarts, ..ReportRequest::default() };
    assert!(check(&report).is_err());
    drop_unknown(&mut report);
    assert_eq!(check(&report), Ok(()));
    assert_eq!(report.restarts, HashMap::from([("PeerLost".to_owned(), 1)]));
    assert_eq!(report.progress.unwrap().step, 3);
}

#[test]
fn commits_are_forty_digits_one_for_each_field() {
    let refusal = |commits: Vec<rlt_channel::ModelCommit>| {
        check(&ReportRequest { commits, ..ReportRequest::default() })
    };
    let one = |field: usize, commit: &str| rlt_channel::ModelCommit {
        field: field.to_string(),
        repo: "owner/tiny".to_owned(),
        commit: commit.to_owned(),
    };
    let digits = "0123456789".repeat(4);
    assert_eq!(refusal((0..limits::MAX_COMMITS).map(|field| one(field, &digits)).collect()), Ok(()));
    assert!(refusal((0..=limits::MAX_COMMITS).map(|field| one(field, &digits)).collect()).is_err());
    assert!(refusal(vec![one(1, &digits), one(1, &digits)]).is_err());
    for wrong in ["main", "", &digits[1..], &digits.replace('0', "g")] {
        assert!(refusal(vec![one(1, wrong)]).is_err(), "{wrong}");
    }
}
