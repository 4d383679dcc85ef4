//! Rewards of a whole run: functions that hang, and their records.

use serde_json::{Value, json};

use crate::job::{Place, end_of, tiny_with};

/// A schema that refers to itself twice at each of 40 depths: validating any JSON document takes 2^40 steps.
fn endless_schema() -> Value {
    let twice = |depth: usize| json!({ "$ref": format!("#/$defs/depth{depth}") });
    let depths = (0..40).map(|depth| {
        let definition = json!({ "allOf": [twice(depth + 1), twice(depth + 1)] });
        (format!("depth{depth}"), definition)
    });
    let mut definitions: serde_json::Map<_, _> = depths.collect();
    definitions.insert("depth40".to_owned(), json!({ "type": ["number", "string"] }));
    json!({ "$ref": "#/$defs/depth0", "$defs": definitions })
}

/// Returns the tiny job with a second function that hangs on every completion that is a JSON document, which
/// is a number here.
fn with_hanging_reward(on_error: &str) -> Value {
    tiny_with(json!({
        "rewards": {
            "functions": [
                { "name": "small", "kind": "Format", "pattern": "[0-4].*" },
                { "name": "endless", "kind": "JsonSchema", "schema": endless_schema() }
            ],
            "timeoutSeconds": 0.05,
            "onError": on_error
        },
        "data": { "task": { "numHeldOut": 0 } }
    }))
}

#[test]
fn a_hanging_reward_function_masks_its_samples_and_the_run_continues() {
    for on_error in ["Mask", "Zero"] {
        let place = Place::new();
        // A run that waited for the function would never end.
        end_of(place.start(&with_hanging_reward(on_error))).expect(0, &[]);
        let steps = place.steps();
        assert_eq!(steps.len(), 3);
        let ratio = |step: &Value| step["reward/error_ratio"].as_f64().unwrap();
        assert!(steps.iter().any(|step| ratio(step) > 0.0), "nothing hung: {steps:?}");
        let completions = place.completions();
        // On a busy machine the other function may be late, too.
        let late: Vec<_> = completions.iter().filter(|c| c["reward_status"] == "timeout").collect();
        assert!(late.iter().all(|completion| completion["reward"] == 0.0), "{late:?}");
        let hung = |completion: &Value| {
            let message = completion["reward_message"].as_str().unwrap();
            message.contains("endless: no answer within")
        };
        assert!(late.into_iter().any(hung), "{completions:?}");
    }
}

#[test]
fn several_held_out_samples_are_summed_up_as_verl_does() {
    let place = Place::new();
    let manifest = tiny_with(json!({
        "rewards": { "functions": [{ "name": "right", "kind": "Exact" }] },
        "rollout": { "heldOut": { "temperature": 1.0, "samplesPerPrompt": 4 } },
        "training": { "steps": 1 }
    }));
    place.train(&manifest).expect(0, &[]);
    let metrics = place.metrics();
    let evaluated = metrics.iter().find(|line| line["step"] == 0).unwrap();
    for name in ["mean@4", "best@4/mean", "best@4/std", "maj@4/mean", "maj@4/std"] {
        assert!(evaluated[format!("val-core/arithmetic/reward/{name}")].is_number(), "{name}: {evaluated}");
    }
    for name in ["std@4", "worst@4/mean", "best@2/mean", "maj@2/std"] {
        assert!(evaluated[format!("val-aux/arithmetic/reward/{name}")].is_number(), "{name}: {evaluated}");
    }
    assert!(place.completions().iter().all(|completion| completion["answer"] == completion["completion"]));
}
