//! The manifest's settings of sampling, and of which samples count, in a whole run.

use serde_json::{Value, json};

use crate::job::{Place, merge, tiny_with};

/// The first step of the tiny job with `changes`.
struct FirstStep {
    completions: Vec<String>,
    metrics: Value,
}

fn first_step(mut changes: Value) -> FirstStep {
    let one = json!({
        "training": { "steps": 1, "promptsPerStep": 8 }, "tracking": { "completionsPerStep": 32 }
    });
    merge(&mut changes, one);
    let place = Place::new();
    place.train(&tiny_with(changes)).expect(0, &[]);
    let trained =
        place.completions().into_iter().filter(|line| line["held_out"] == false && line["sample"] == 0);
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

    // Four special tokens come first. After them, characters are numbered in the order of the manifest.
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
fn importance_weights_scale_gradients_and_rejected_tokens_have_none() {
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

/// A job whose cache outweighs its weights: 32 sequences of up to 63 tokens.
fn with_long_completions(rollout: Value) -> Value {
    let mut changes = json!({
        "model": { "architecture": { "maxPositionEmbeddings": 72 } },
        "rollout": { "maxCompletionTokens": 62, "ignoreEos": true }
    });
    merge(&mut changes["rollout"], rollout);
    changes
}

/// All memory that a worker of this machine has, in bytes, as the error about a too small cache reports it.
fn memory_of_worker() -> f64 {
    let place = Place::new();
    let none = with_long_completions(json!({ "memoryFraction": 1e-6 }));
    let words =
        ["spec.rollout.memoryFraction: 0.000001 of", "raise spec.rollout.memoryFraction", "maxModelTokens"];
    let ended = place.train(&tiny_with(none)).expect(78, &words);
    let text = format!("{}{}", ended.stdout, ended.stderr);
    let gib = text.split("memoryFraction: 0.000001 of ").nth(1).unwrap().split(' ').next().unwrap();
    gib.parse::<f64>().unwrap() * f64::from(1 << 30)
}

#[test]
fn preempted_sequences_are_recomputed_with_the_same_result() {
    let roomy = first_step(with_long_completions(json!({})));
    assert_eq!(roomy.metrics["rollout/num_preemptions"], 0.0);
    let cache = roomy.metrics["rollout/kv_cache_gb"].as_f64().unwrap() * f64::from(1 << 30);
    // A third of the cache; the packed weights take less than a tenth of it.
    let fraction = cache / 3.0 / memory_of_worker();
    let tight = first_step(with_long_completions(json!({ "memoryFraction": fraction })));
    assert!(tight.metrics["rollout/num_preemptions"].as_f64().unwrap() > 0.0, "{}", tight.metrics);
    assert!(tight.metrics["rollout/kv_cache_gb"].as_f64() < roomy.metrics["rollout/kv_cache_gb"].as_f64());
    assert_eq!(tight.completions, roomy.completions);
}

#[test]
fn chunked_prefill_and_max_model_tokens_are_obeyed() {
    let whole = first_step(json!({}));
    let pieces = sampled(json!({ "maxBatchedTokens": 2, "maxConcurrentSequences": 2 }));
    assert_eq!(pieces, whole.completions, "prompts of up to 8 tokens in passes of 2");
    assert_eq!(whole.metrics["response_length/max"], 4.0);
    let place = Place::new();
    let short = json!({
        "data": { "maxPromptTokens": 6 },
        "rollout": { "maxModelTokens": 7, "ignoreEos": true }, "training": { "steps": 1 }
    });
    place.train(&tiny_with(short)).expect(0, &[]);
    let metrics = place.steps().remove(0);
    let longest =
        metrics["prompt_length/min"].as_f64().unwrap() + metrics["response_length/max"].as_f64().unwrap();
    assert_eq!(longest, 7.0, "{metrics}");
}
