//! A complete run leaves all files of the run folder.

use std::fs;

use regex::Regex;
use serde_json::{Value, json};

use crate::job::{Place, tiny_with};

/// The names in the first column of the tables of `docs/metrics.md`, as one pattern over whole names.
fn documented_names() -> Regex {
    let text = fs::read_to_string(rlt_tests::workspace_root().join("docs/metrics.md")).unwrap();
    let rows =
        text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |").map(|(name, _)| name));
    let pattern = |name: &str| {
        let name = regex::escape(name).replace(r"\{", "(?:").replace(r"\}", ")").replace(',', "|");
        Regex::new("<[a-z_]+>").unwrap().replace_all(&name, "[^ ]+").into_owned()
    };
    let names: Vec<String> = rows.map(pattern).collect();
    assert!(names.len() > 40, "{names:?}");
    Regex::new(&format!("^(?:{})$", names.join("|"))).unwrap()
}

#[test]
fn a_complete_run_leaves_everything_that_a_run_folder_promises() {
    let place = Place::new();
    let changes = json!({ "algorithm": { "coldStart": { "steps": 2, "batchSize": 4 } } });
    place.train(&tiny_with(changes)).expect(0, &[]);

    let files = [
        "manifest.yaml",
        "metrics.jsonl",
        "completions.jsonl",
        "report.html",
        "result.json",
        "checkpoints/step-000003/manifest.json",
        "checkpoints/step-000003/state.json",
        "export/config.json",
        "export/model.safetensors",
        "export/tokenizer.json",
        "export/tokenizer_config.json",
    ];
    for file in files {
        let len = fs::metadata(place.run(file)).map_or(0, |data| data.len());
        assert!(len > 0, "{file} is missing or empty");
    }
    assert!(fs::read_dir(place.run("events")).unwrap().count() > 0);
    let manifest = fs::read_to_string(place.run("manifest.yaml")).unwrap();
    let again = rlt_api::validate(&manifest).unwrap();
    assert_eq!(again.spec().training.prompts_per_update, 2, "the default is written out");

    let result: Value = serde_json::from_slice(&fs::read(place.run("result.json")).unwrap()).unwrap();
    assert_eq!((&result["outcome"], &result["step"]), (&json!("complete"), &json!(3)));
    assert!(result["held_out_reward_before"].is_f64() && result["held_out_reward_after"].is_f64());

    let completions = place.completions();
    assert!(completions.iter().any(|c| c["step"] == 3 && c["completion"].is_string()), "{completions:?}");

    let report = fs::read_to_string(place.run("report.html")).unwrap();
    assert!(report.contains("<svg") && !report.contains("src=\"http"));
}

#[test]
fn every_step_is_logged_once_under_documented_names() {
    let place = Place::new();
    let changes = json!({ "algorithm": { "coldStart": { "steps": 2, "batchSize": 4 } } });
    place.train(&tiny_with(changes)).expect(0, &[]);
    let metrics = place.metrics();
    let positions: Vec<_> =
        metrics.iter().map(|line| (line["training/phase"].clone(), line["step"].clone())).collect();
    let expected = [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)];
    assert_eq!(positions, expected.map(|(phase, step)| (json!(phase), json!(step))));

    let documented = documented_names();
    for line in &metrics {
        for name in line.as_object().unwrap().keys() {
            assert!(documented.is_match(name), "docs/metrics.md has no {name}");
        }
    }
    let names = [
        "actor/pg_loss",
        "actor/kl_loss",
        "actor/entropy",
        "actor/grad_norm",
        "actor/lr",
        "critic/rewards/mean",
        "critic/advantages/max",
        "response_length/mean",
        "timing_s/gen",
        "timing_s/step",
        "perf/throughput",
    ];
    for step in place.steps() {
        let missing: Vec<_> = names.iter().filter(|name| !step[**name].is_number()).collect();
        assert!(missing.is_empty(), "{missing:?}");
        // Rollout and actor compute the same probabilities, up to roundings of fp32.
        assert!(step["training/rollout_probs_diff_max"].as_f64().unwrap() <= 1e-5, "{step}");
        assert!(step["actor/grad_norm"].as_f64().unwrap() > 0.0, "a run that learns nothing proves nothing");
    }
}

/// A ratio of 0.5 means 2 of the 5 steps that one epoch of 10 prompts has.
#[test]
fn a_warm_up_may_be_a_part_of_steps_that_follow_from_epochs() {
    let rates = |schedule: Value| {
        let place = Place::new();
        let changes = json!({
            "data": { "maxTrainPrompts": 10 },
            "training": { "steps": null, "epochs": 1, "promptsPerStep": 2, "evaluateEvery": 0, "schedule": schedule }
        });
        place.train(&tiny_with(changes)).expect(0, &[]);
        place.steps().iter().map(|step| step["actor/lr"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let by_ratio = rates(json!({ "kind": "Linear", "warmupSteps": 0, "warmupRatio": 0.5 }));
    assert_eq!(by_ratio, rates(json!({ "kind": "Linear", "warmupSteps": 2 })));
    assert!(by_ratio.len() == 5 && by_ratio[0] < by_ratio[1] && by_ratio[1] < by_ratio[2], "{by_ratio:?}");
}

#[test]
fn a_run_that_is_complete_is_not_run_again() {
    let place = Place::new();
    let manifest = tiny_with(json!({ "training": { "steps": 1 } }));
    place.train(&manifest).expect(0, &[]);
    let before = fs::read(place.run("metrics.jsonl")).unwrap();
    place.train(&manifest).expect(0, &["complete already", "--overwrite"]);
    assert_eq!(fs::read(place.run("metrics.jsonl")).unwrap(), before);
}

/// The page is drawn from the logs after the run has its result. A failure changes no exit code, neither at
/// the end nor when a complete run is started again.
#[test]
fn a_report_that_cannot_be_drawn_decides_no_exit_code() {
    let place = Place::new();
    let of_steps = |steps: u32| tiny_with(json!({ "training": { "steps": steps } }));
    place.train(&of_steps(1)).expect(0, &[]);
    fs::remove_file(place.run("completions.jsonl")).unwrap();
    fs::create_dir(place.run("completions.jsonl")).unwrap();
    let said = ["failed to render report.html", "completions.jsonl"];
    place.train(&of_steps(1)).expect(0, &[said[0], said[1], "complete already"]);
    place.train(&of_steps(2)).expect(0, &[said[0], said[1], "resuming after step 1"]);
    let result: Value = serde_json::from_slice(&fs::read(place.run("result.json")).unwrap()).unwrap();
    assert_eq!((&result["outcome"], &result["step"]), (&json!("complete"), &json!(2)));
}

#[test]
fn a_complete_run_whose_epochs_are_raised_goes_on() {
    let place = Place::new();
    let of_epochs = |epochs: u32| {
        tiny_with(json!({
            "data": { "maxTrainPrompts": 6 },
            "training": { "steps": null, "epochs": epochs, "promptsPerStep": 2, "evaluateEvery": 0 }
        }))
    };
    place.train(&of_epochs(1)).expect(0, &[]);
    assert_eq!(place.steps().len(), 3);
    place.train(&of_epochs(1)).expect(0, &["complete already"]);
    place.train(&of_epochs(2)).expect(0, &["resuming after step 3"]);
    assert_eq!(place.steps().len(), 6);
    place.train(&of_epochs(1)).expect(0, &["complete already"]);
}

#[test]
fn an_exported_model_is_trained_on() {
    let place = Place::new();
    place.train(&crate::job::on_files(crate::job::small_model(), json!({}))).expect(0, &[]);
    assert_eq!(place.steps().len(), 3);
    assert!(place.run("export/tokenizer.json").exists());
}
