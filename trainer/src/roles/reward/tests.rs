//! Reward functions that work, and those that fail, panic and hang.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rlt_api::spec::{DataSpec, RewardKind, RewardsSpec};
use rlt_core::fixtures;
use rlt_core::reward::{
    Exact, Format, Gsm8k, JsonSchema, LengthPenalty, MatchingCharacters, Math, MathDapo, MathStrict, Pattern,
    RewardError, RewardFunction, Sample, Verdicts,
};
use rlt_core::types::{Completion, Prompt, Reward, RewardStatus};
use rlt_data::tokenizer::Tokenizer;
use rlt_data::{Dataset, Split};
use serde_json::{Value, json};

use super::*;

/// Maximum time that a test waits for another thread.
const PATIENCE: Duration = Duration::from_secs(100);

/// A reward function that calls a closure.
struct Closure<F>(F);

impl<F: Fn(&Sample<'_>) -> Result<f64, RewardError> + Send + Sync> RewardFunction for Closure<F> {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        (self.0)(sample)
    }

    fn range(&self) -> (f64, f64) {
        (f64::NEG_INFINITY, f64::INFINITY)
    }
}

fn prompt(ground_truth: Value) -> Arc<Prompt> {
    Arc::new(Prompt {
        text: "question".into(),
        data_source: "a".into(),
        ground_truth,
        ..Prompt::from_tokens(0, vec![1])
    })
}

fn completion(text: &str) -> Completion {
    fixtures::completion(&vec![1; text.len().max(1)], text)
}

fn pool(functions: RewardFunctions, num_workers: usize, timeout_ms: u64) -> RewardPool {
    RewardPool::new(functions, PoolOptions { num_workers, timeout: Duration::from_millis(timeout_ms) })
}

fn score(pool: &RewardPool, texts: &[&str]) -> Vec<Reward> {
    score_by("right", pool, texts)
}

fn score_by(ground_truth: &str, pool: &RewardPool, texts: &[&str]) -> Vec<Reward> {
    let prompt = prompt(json!(ground_truth));
    let completions: Vec<Completion> = texts.iter().map(|text| completion(text)).collect();
    pool.score(completions.iter().map(|completion| ((&prompt, completion), Verdicts::new())))
}

fn statuses(rewards: &[Reward]) -> Vec<RewardStatus> {
    rewards.iter().map(|reward| reward.status).collect()
}

fn functions(spec: Value) -> Result<RewardFunctions, RewardSetupError> {
    let spec: RewardsSpec = serde_json::from_value(spec).unwrap();
    RewardFunctions::new(&spec, 100)
}

/// Four calls run at a time, and each waits for the next sample's call, so the four end in reverse order.
#[test]
fn rewards_are_returned_in_the_order_of_the_samples() {
    let ended = Arc::new((Mutex::new(Vec::<u64>::new()), Condvar::new()));
    let shared = ended.clone();
    let by_number = Closure(move |sample: &Sample<'_>| {
        let number: u64 = sample.completion.parse().unwrap();
        let (ended, has_changed) = &*shared;
        let waits = |ended: &mut Vec<u64>| number % 4 < 3 && !ended.contains(&(number + 1));
        let waited = has_changed.wait_timeout_while(ended.lock().unwrap(), PATIENCE, waits);
        waited.unwrap().0.push(number);
        has_changed.notify_all();
        Ok(number as f64)
    });
    let pool = pool(RewardFunctions::default().with("number", 2.0, Arc::new(by_number)), 4, 10_000);
    let pool = pool.with_clock(|_| Duration::ZERO);
    let texts: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    let rewards = score(&pool, &texts.iter().map(String::as_str).collect::<Vec<_>>());
    for (number, reward) in rewards.iter().enumerate() {
        assert_eq!((reward.value, reward.parts["number"]), (2.0 * number as f64, number as f64));
    }
    let reversed: Vec<u64> = (0..20).map(|number| number / 4 * 4 + 3 - number % 4).collect();
    assert_eq!(*ended.0.lock().unwrap(), reversed);
    assert!(score(&pool, &[]).is_empty());
}

/// Waits until `is_met`, which takes milliseconds on a quiet machine.
fn wait_until(what: &str, is_met: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_met() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The replaced clock puts exactly the calls on the text `hang` past the limit, however slow the machine is.
#[test]
fn a_hung_function_costs_its_sample_and_nothing_else() {
    let release = Arc::new(AtomicBool::new(false));
    let released = release.clone();
    let hang = Closure(move |sample: &Sample<'_>| {
        while sample.completion == "hang" && !released.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(1.0)
    });
    let texts = ["hang", "hang", "fine", "hang", "fine"];
    let pool = pool(RewardFunctions::default().with("slow", 1.0, Arc::new(hang)), 2, 50);
    let pool = pool.with_clock(move |call| match texts[call.job_idx] {
        "hang" => Duration::MAX,
        _ => Duration::ZERO,
    });
    let rewards = score(&pool, &texts);
    use RewardStatus::{Ok as Fine, Timeout};
    assert_eq!(statuses(&rewards), [Timeout, Timeout, Fine, Timeout, Fine]);
    let message = rewards[0].message.as_ref().unwrap();
    assert_eq!(message, "slow: no answer within 50ms");
    assert_eq!((rewards[0].value, rewards[2].value), (0.0, 1.0));
    assert_eq!(pool.num_abandoned(), 3);
    release.store(true, Ordering::Release);
    wait_until("abandoned threads did not end", || pool.num_abandoned() == 0);
}

/// The test uses the machine's clock: all calls hang, so none can be late by accident.
#[test]
fn hanging_threads_are_bounded_and_the_step_still_ends() {
    let num_started = Arc::new(AtomicUsize::new(0));
    let counter = num_started.clone();
    let hang = Closure(move |_: &Sample<'_>| {
        counter.fetch_add(1, Ordering::AcqRel);
        loop {
            thread::park_timeout(Duration::from_secs(3600));
        }
    });
    let pool = pool(RewardFunctions::default().with("hang", 1.0, Arc::new(hang)), 16, 10);
    let texts = vec!["x"; 200];
    let rewards = score(&pool, &texts);
    let timed_out = statuses(&rewards).iter().filter(|status| **status == RewardStatus::Timeout).count();
    // A call may be abandoned before its thread has reached the first line of the function.
    wait_until("not every call that timed out has begun", || {
        num_started.load(Ordering::Acquire) >= timed_out
    });
    assert_eq!(timed_out, num_started.load(Ordering::Acquire));
    assert!((64..64 + 16).contains(&timed_out), "{timed_out}");
    assert_eq!(statuses(&rewards)[199], RewardStatus::Infra);
    assert_eq!(statuses(&score(&pool, &["later"])).len(), 1);
}

#[test]
fn a_panic_and_an_error_fail_their_sample_with_a_message() {
    let moody = Closure(|sample: &Sample<'_>| match sample.completion {
        "panic" => panic!("division by {}", "zero"),
        "error" => Err(RewardError::GroundTruth { got: "null".into() }),
        "nan" => Ok(f64::NAN),
        _ => Ok(1.0),
    });
    let functions = RewardFunctions::default().with("moody", 1.0, Arc::new(moody));
    let rewards = score(&pool(functions, 2, 10_000), &["panic", "error", "nan", "fine"]);
    use RewardStatus::{Infra, Ok as Fine};
    assert_eq!(statuses(&rewards), [Infra, Infra, Infra, Fine]);
    let messages: Vec<&str> = rewards[..3].iter().map(|reward| reward.message.as_deref().unwrap()).collect();
    assert_eq!(messages[0], "moody: panicked: division by zero");
    assert!(messages[1].starts_with("moody: read the ground truth"), "{}", messages[1]);
    assert!(messages[2].contains("NaN"), "{}", messages[2]);
    assert_eq!((rewards[0].value, rewards[3].value), (0.0, 1.0));
}

#[test]
fn functions_of_a_manifest_are_weighted_clipped_and_shaped() {
    let functions = functions(json!({
        "functions": [
            {"name": "right", "kind": "Exact", "weight": 2.0},
            {"name": "form", "kind": "Format", "pattern": "[a-z]+", "weight": 0.5},
            {"name": "elsewhere", "kind": "Exact", "dataSources": ["b"]},
        ],
        "clip": {"min": 0.0, "max": 2.0},
        "overlong": {"bufferTokens": 50, "penaltyFactor": 1.0},
    }));
    let long = "x".repeat(75);
    let rewards = score(&pool(functions.unwrap(), 2, 10_000), &["right", "wrong", "42", &long]);
    let values: Vec<f64> = rewards.iter().map(|reward| reward.value).collect();
    assert_eq!(values, [2.0, 0.5, 0.0, 0.0]);
    assert_eq!(rewards[0].parts.keys().collect::<Vec<_>>(), ["form", "right"]);
}

#[test]
fn every_kind_of_function_can_be_named() {
    for (kind, settings, text) in [
        ("Exact", json!({}), "right"),
        ("Gsm8k", json!({}), "#### 1"),
        ("Gsm8kFlexible", json!({}), "so 1."),
        ("MatchingCharacters", json!({}), "right"),
        ("Math", json!({}), "\\boxed{right}"),
        ("MathStrict", json!({}), "\\boxed{right}"),
        ("MathDapo", json!({}), "Answer: right"),
        ("Regex", json!({"pattern": "<(?<answer>.*)>"}), "<right>"),
        ("Regex", json!({"pattern": "is (.*)$"}), "it is right"),
        ("Regex", json!({"pattern": "[a-z]+"}), "42 right"),
        ("Format", json!({"pattern": "r.*t"}), "right"),
        ("JsonSchema", json!({"schema": {"type": "string"}}), "\"right\""),
        ("Length", json!({"targetTokens": 50}), "right"),
    ] {
        let mut function = json!({"name": "f", "kind": kind});
        function.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let pool = pool(functions(json!({"functions": [function]})).unwrap(), 1, 10_000);
        let expected = if ["Gsm8k", "Gsm8kFlexible", "Length"].contains(&kind) { 0.0 } else { 1.0 };
        assert_eq!(score(&pool, &[text])[0].value, expected, "{kind}");
        assert_eq!(score(&pool, &[text])[0].status, RewardStatus::Ok, "{kind}");
    }
}

#[test]
fn the_name_of_a_kind_leads_to_its_own_formula() {
    let object = json!({"type": "object"});
    let kinds: [(&str, Value, Arc<dyn RewardFunction>); 11] = [
        ("Exact", json!({}), Arc::new(Exact)),
        ("Gsm8k", json!({}), Arc::new(Gsm8k::default())),
        ("Gsm8kFlexible", json!({}), Arc::new(Gsm8k { flexible: true })),
        ("MatchingCharacters", json!({}), Arc::new(MatchingCharacters)),
        ("Math", json!({}), Arc::new(Math)),
        ("MathStrict", json!({}), Arc::new(MathStrict)),
        ("MathDapo", json!({}), Arc::new(MathDapo::new().unwrap())),
        ("Regex", json!({"pattern": "<(?<answer>.*)>"}), Arc::new(Pattern::new("<(?<answer>.*)>").unwrap())),
        ("Format", json!({"pattern": "<.*>"}), Arc::new(Format::matching("<.*>").unwrap())),
        ("JsonSchema", json!({"schema": object}), Arc::new(JsonSchema::new(&object).unwrap())),
        ("Length", json!({"targetTokens": 50}), Arc::new(LengthPenalty::new(50, 100).unwrap())),
    ];
    let long = "x".repeat(75);
    let probes = [
        "72",
        "#### 72",
        "it is 72.",
        "\\boxed{72}",
        "\\boxed{72.0}",
        "Answer: 72",
        "<72>",
        "<7>",
        "7",
        "{}",
        &long,
    ];
    let computed_here = RewardKind::ALL.into_iter().filter(|kind| kind.sections().is_empty());
    assert_eq!(computed_here.map(RewardKind::name).collect::<Vec<_>>().len(), kinds.len());
    let values = |functions: RewardFunctions| -> Vec<f64> {
        let rewards = score_by("72", &pool(functions, 1, 10_000), &probes);
        rewards.iter().map(|reward| reward.value).collect()
    };
    let mut seen: Vec<Vec<f64>> = Vec::new();
    for (kind, settings, formula) in kinds {
        let mut function = json!({"name": "f", "kind": kind});
        function.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let named = values(functions(json!({"functions": [function]})).unwrap());
        assert_eq!(named, values(RewardFunctions::default().with("f", 1.0, formula)), "{kind}");
        assert!(!seen.contains(&named), "the probes do not distinguish {kind} from another: {named:?}");
        seen.push(named);
    }
}

#[test]
fn impossible_functions_are_refused_by_name() {
    for function in [
        json!({"name": "f", "kind": "Regex"}),
        json!({"name": "f", "kind": "Regex", "pattern": "("}),
        json!({"name": "f", "kind": "JsonSchema"}),
        json!({"name": "f", "kind": "JsonSchema", "schema": {"type": 1}}),
        json!({"name": "f", "kind": "Length"}),
        json!({"name": "f", "kind": "Length", "targetTokens": 100}),
    ] {
        let error = functions(json!({"functions": [function]})).err().unwrap();
        assert!(error.to_string().contains("\"f\""), "{error}");
    }
    let overlong = json!({"functions": [], "overlong": {"bufferTokens": 101}});
    assert!(matches!(functions(overlong), Err(RewardSetupError::Shaping(_))));
}

#[test]
fn rows_that_nothing_judges_are_refused_before_training() {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("rows.jsonl");
    let row = |source: &str, truth: Value| {
        let reward_model = json!({"ground_truth": truth});
        json!({"prompt": "q", "data_source": source, "reward_model": reward_model})
    };
    let check = |rows: [Value; 2]| {
        std::fs::write(&path, rows.map(|row| format!("{row}\n")).concat()).unwrap();
        let spec = DataSpec { train: vec![path.display().to_string()], ..DataSpec::default() };
        let tokenizer = Tokenizer::characters("q").unwrap();
        let prompts = Dataset::prompts(&spec, Split::Train, &tokenizer).unwrap();
        let known = json!({"functions": [{"name": "f", "kind": "Exact", "dataSources": ["known"]}]});
        functions(known).unwrap().check(&prompts)
    };
    assert!(check([row("known", json!("1")), row("known", json!(2))]).is_ok());
    let error = check([row("known", json!("1")), row("unknown", json!("1"))]).unwrap_err();
    assert!(matches!(error, RewardSetupError::UnknownDataSource { .. }));
    assert!(error.to_string().contains("rows.jsonl row 2"), "{error}");
    let error = check([row("known", Value::Null), row("known", json!("1"))]).unwrap_err();
    assert!(matches!(error, RewardSetupError::Row { .. }), "{error}");
}

#[test]
fn one_thread_and_many_agree() {
    let texts: Vec<&str> = ["right", "wrong"].into_iter().cycle().take(1000).collect();
    let functions = RewardFunctions::default().with("f", 1.0, Arc::new(Exact));
    assert_eq!(
        score(&pool(functions.clone(), 1, 10_000), &texts),
        score(&pool(functions, 8, 10_000), &texts)
    );
}
