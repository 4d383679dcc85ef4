//! What a manifest says about sampling and about which samples count shows in a whole run.

use serde_json::{Value, json};

use crate::job::{Place, merge, tiny_with};

/// The first step of the tiny job with `changes`.
struct FirstStep {
    completions: Vec<String>,
    metrics: Value,
}

fn first_step(mut changes: Value) -> FirstStep {
    let one = json!({
        "training": { "steps": 1, "promptsPerStep": 8 }, "tracking": { "completionsPerStep": 8 }
    });
    merge(&mut changes, one);
    let place = Place::new();
    place.train(&tiny_with(changes)).expect(0, &[]);
    let trained = place.completions().into_iter().filter(|line| line["held_out"] == false);
    let completions = trained.map(|line| line["completion"].as_str().unwrap().to_owned()).collect();
    FirstStep { completions, metrics: place.steps().remove(0) }
}

fn sampled(rollout: Value) -> Vec<String> {
    let completions = first_step(json!({ "rollout": rollout })).completions;
    assert_eq!(completions.len(), 8, "one of each prompt");
    completions
}

#[test]
fn each_limit_that_leaves_one_token_leaves_the_most_probable_one() {
    let free = sampled(json!({}));
    let greedy = sampled(json!({ "topK": 1 }));
    assert_ne!(free, greedy);
    for narrow in [json!({ "topP": 1e-6 }), json!({ "minP": 1.0 }), json!({ "temperature": 0.01 })] {
        assert_eq!(sampled(narrow.clone()), greedy, "{narrow}");
    }
    let fresh = sampled(json!({ "topK": 1, "repetitionPenalty": 100 }));
    let repeats = |text: &String| text.chars().enumerate().any(|(at, c)| text[..at].contains(c));
    assert!(greedy.iter().any(repeats) && !fresh.iter().any(repeats), "{greedy:?} {fresh:?}");
}

#[test]
fn samples_are_the_same_however_many_decode_together() {
    assert_eq!(sampled(json!({ "maxConcurrentSequences": 1 })), sampled(json!({})));
}

#[test]
fn texts_and_tokens_that_stop_a_completion_do() {
    let whole = first_step(json!({ "rollout": { "ignoreEos": true } }));
    assert_eq!(
        whole.metrics["response_length/min"], 4.0,
        "nothing but the budget ends them: {}",
        whole.metrics
    );
    let free = whole.completions;
    let digit = free[0].chars().next().unwrap().to_string();
    let cut: Vec<String> = free.iter().map(|text| text.split(&digit).next().unwrap().to_owned()).collect();
    assert_eq!(sampled(json!({ "ignoreEos": true, "stop": [digit] })), cut, "cut off before {digit}");

    // Behind the four special tokens, characters are numbered in the order in which the manifest names them.
    let id = 4 + "0123456789+=".find(&digit).unwrap();
    let stopped = first_step(json!({ "rollout": { "ignoreEos": true, "stopTokenIds": [id] } }));
    let shortest = stopped.metrics["response_length/min"].as_f64().unwrap();
    assert!(shortest < 4.0, "token {id} ends the first completion: {}", stopped.metrics);
}

#[test]
fn groups_without_a_difference_are_sampled_again() {
    let never = json!({ "functions": [{ "name": "never", "kind": "Format", "pattern": "none of this" }] });
    let batches = |rewards: Value| {
        let algorithm = json!({ "dynamicSampling": { "maxBatches": 3 } });
        let changes =
            json!({ "algorithm": algorithm, "rewards": rewards, "rollout": { "samplesPerPrompt": 2 } });
        first_step(changes).metrics["train/num_gen_batches"].as_f64().unwrap()
    };
    assert_eq!(batches(never), 3.0, "no group ever differs");
    // Half of all answers begin with a small digit, so that about half of all pairs differ.
    let needed = batches(json!({}));
    assert!(needed > 1.0 && needed <= 3.0, "{needed}");
    assert_eq!(first_step(json!({})).metrics["train/num_gen_batches"], 1.0);
}

#[test]
fn importance_weights_scale_what_is_learnt_and_rejected_tokens_teach_nothing() {
    let gradient = |correction: Value| {
        let metrics = first_step(json!({ "algorithm": { "importanceCorrection": correction } })).metrics;
        (metrics["actor/grad_norm"].as_f64().unwrap(), metrics)
    };
    // Rollout and actor are one policy here, so that every ratio is 1 up to rounding.
    let (whole, metrics) = gradient(json!({}));
    assert!((metrics["rollout_corr/rollout_is_mean"].as_f64().unwrap() - 1.0).abs() < 1e-4, "{metrics}");
    let (half, _) = gradient(json!({ "threshold": 0.5 }));
    assert!(
        (half / whole - 0.5).abs() < 1e-4,
        "weights above the threshold are cut to it: {half} of {whole}"
    );
    for level in ["Token", "Sequence"] {
        let (none, _) = gradient(json!({ "level": level, "threshold": 3.0, "lowerThreshold": 2.0 }));
        assert_eq!(none, 0.0, "{level}: weights outside of the band are 0");
    }
    let (none, metrics) =
        gradient(json!({ "rejection": { "statistic": "TokenK1", "lower": 0.1, "upper": 0.5 } }));
    assert_eq!(none, 0.0, "{metrics}");
    assert!(metrics["rollout_corr/rollout_rs_masked_fraction"].as_f64().unwrap() > 0.999, "{metrics}");
}
