//! `rlctl export`: checkpoints of runs as Hugging Face folders, chosen by step or by reward, and on the hub.

use std::fs;
use std::path::Path;
use std::process::Command;

use rlt_tests::hub_push_server::{HubPushServer, Storage, TOKEN};
use rlt_tests::hub_server::Files;
use serde_json::{Value, json};

use crate::job::{Ended, Place, copy_of_small_model, merge, on_files, small_model, tiny_with};

fn export_in(place: &Place, options: &[&str], environment: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    command.arg("export").arg(place.run("")).args(options).current_dir(place.file(""));
    command.env_remove("HF_TOKEN").envs(environment.iter().copied());
    Ended::of(command.output().unwrap())
}

pub(crate) fn export(place: &Place, options: &[&str]) -> Ended {
    export_in(place, options, &[])
}

fn files(folder: &Path) -> Files {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let named = entries
        .filter(|path| path.is_file())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap()));
    named.collect()
}

#[test]
fn any_checkpoint_exports_the_model_that_a_run_to_its_step_exports() {
    let (long, short) = (Place::new(), Place::new());
    let changes = |steps: u64| {
        json!({
            "training": { "steps": steps, "schedule": { "kind": "Constant" } },
            "checkpoint": { "everySteps": 1, "keep": 9 },
        })
    };
    long.train(&tiny_with(changes(3))).expect(0, &[]);
    short.train(&tiny_with(changes(2))).expect(0, &[]);
    export(&long, &[]).expect(0, &["step 3"]);
    assert!(files(&long.run("exports/step-000003")) == files(&long.run("export")), "the last step differs");
    export(&long, &["--step", "2", "-d", "two"]).expect(0, &[]);
    assert!(files(&long.file("two")) == files(&short.run("export")), "the second step differs");
    export(&long, &["--step", "2", "-d", "half", "--dtype", "bf16"]).expect(0, &[]);
    let config: Value = serde_json::from_slice(&fs::read(long.file("half/config.json")).unwrap()).unwrap();
    assert_eq!(config["torch_dtype"], "bfloat16");
    export(&long, &["--step", "7"]).expect(2, &["expected a step with a checkpoint, 1, 2, 3, got 7"]);
    export(&long, &["--layout", "peft"]).expect(2, &["no model.lora"]);
}

#[test]
fn an_export_keeps_the_sampling_settings_of_its_model_and_unknown_fields_are_reported() {
    let place = Place::new();
    let model = place.file("model");
    copy_of_small_model(&model);
    let read = |folder: &Path| -> Value {
        serde_json::from_slice(&fs::read(folder.join("generation_config.json")).unwrap()).unwrap()
    };
    let mut settings = read(&model);
    let sampling =
        json!({ "do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "of_the_next_release": 3 });
    merge(&mut settings, sampling);
    fs::write(model.join("generation_config.json"), settings.to_string()).unwrap();
    place
        .train(&on_files(&model, json!({})))
        .expect(0, &["generation_config.json has fields", "`of_the_next_release`"]);
    let exported = read(&place.run("export"));
    for (field, value) in settings.as_object().unwrap() {
        assert_eq!(exported[field], *value, "{field} of {exported}");
    }
}

#[test]
fn a_model_sharded_over_ranks_is_exported_with_and_without_its_adapter() {
    let place = Place::new();
    let changes = json!({
        "model": { "lora": { "rank": 2 } },
        "training": { "steps": 2 },
        "workers": { "ranksPerWorker": 2, "mesh": { "dpShard": 2 } },
    });
    place.train(&on_files(small_model(), changes)).expect(0, &[]);
    export(&place, &[]).expect(0, &[]);
    assert!(files(&place.run("exports/step-000002")) == files(&place.run("export")), "merged weights differ");
    export(&place, &["--layout", "peft", "-d", "adapter"]).expect(0, &[]);
    let exported = files(&place.file("adapter"));
    for (name, content) in files(&place.run("export/adapter")) {
        assert!(exported.get(&name) == Some(&content), "{name} differs");
    }
}

/// The adapter is merged into the quantized weights on which it was trained, by the command as well.
#[test]
fn a_quantized_model_is_exported_as_its_run_does() {
    let place = Place::new();
    let changes = json!({
        "model": { "lora": { "rank": 2, "init": "Loftq" }, "quantization": { "format": "Nf4" } },
        "training": { "steps": 1 },
    });
    place.train(&on_files(small_model(), changes)).expect(0, &[]);
    export(&place, &[]).expect(0, &[]);
    assert!(files(&place.run("exports/step-000001")) == files(&place.run("export")), "merged weights differ");
}

#[test]
fn an_adapter_that_is_not_merged_is_exported_alone_where_its_base_is_elsewhere() {
    let place = Place::new();
    let changes = json!({
        "model": { "lora": { "rank": 2 } },
        "training": { "steps": 1 },
        "checkpoint": { "export": { "mergeLora": false } },
    });
    place.train(&on_files(small_model(), changes.clone())).expect(0, &[]);
    assert_eq!(files_and_folders(&place.run("export")), ["adapter"]);
    let exported = files(&place.run("export/adapter"));
    export(&place, &["--layout", "peft", "-d", "adapter"]).expect(0, &[]);
    assert!(exported == files(&place.file("adapter")), "rlctl export writes another folder");
    assert!(exported.contains_key("adapter_model.safetensors") && exported.contains_key("tokenizer.json"));
    // The base of a new model's adapter exists only in the run folder.
    let new = Place::new();
    new.train(&tiny_with(changes)).expect(0, &[]);
    assert!(new.run("export/model.safetensors").exists() && new.run("export/adapter").exists());
    let config = fs::read(new.run("export/adapter/adapter_config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert!(config["base_model_name_or_path"].as_str().unwrap().ends_with("export"), "{config}");
}

/// Returns the step of a run with the highest held-out reward, and the first one in a tie.
fn best_step(place: &Place) -> usize {
    let rewards = place.steps().into_iter().map(|line| line["val-core/reward/mean"].as_f64().unwrap());
    let (mut best, mut highest) = (0, f64::NEG_INFINITY);
    for (step, reward) in (1..).zip(rewards) {
        if reward > highest {
            (best, highest) = (step, reward);
        }
    }
    best
}

#[test]
fn the_checkpoint_of_the_highest_held_out_reward_is_kept_and_exported() {
    let train = |seed: u64, keeps: bool| {
        let place = Place::new();
        let changes = json!({
            "training": { "steps": 8, "seed": seed, "evaluateEvery": 1, "optimizer": { "learningRate": 0.05 } },
            "checkpoint": { "everySteps": 3, "keep": 1, "keepBest": keeps },
        });
        place.train(&tiny_with(changes)).expect(0, &[]);
        place
    };
    // The last step and every third step are saved anyway. The rounding of the CPU decides which seeds have
    // another best step.
    let is_kept_as_best = |best: usize| best < 8 && !best.is_multiple_of(3);
    let runs = (0..20).map(|seed| (seed, train(seed, true)));
    let found = runs.map(|(seed, place)| (seed, best_step(&place), place)).find(|run| is_kept_as_best(run.1));
    let (seed, best, place) = found.unwrap();
    let mut kept: Vec<_> = files_and_folders(&place.run("checkpoints"));
    kept.sort();
    assert_eq!(kept, [format!("step-{best:06}"), "step-000008".to_owned()]);
    export(&place, &["--step", "best"]).expect(0, &[&format!("step {best}")]);
    assert!(place.run(&format!("exports/step-{best:06}/model.safetensors")).exists());
    assert_eq!(files_and_folders(&train(seed, false).run("checkpoints")), ["step-000008"]);
}

fn files_and_folders(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.to_string_lossy().into_owned()).collect()
}

#[test]
fn a_checkpoint_without_an_evaluation_is_not_the_best() {
    let place = Place::new();
    export(&place, &[]).expect(2, &["expected a run folder with a manifest.yaml"]);
    let changes = json!({ "training": { "steps": 2 }, "data": { "task": { "numHeldOut": 0 } } });
    place.train(&tiny_with(changes)).expect(0, &[]);
    export(&place, &["--step", "best"]).expect(2, &["no checkpoint (1, 2) is of a step with an evaluation"]);
    fs::remove_dir_all(place.run("checkpoints")).unwrap();
    export(&place, &[]).expect(79, &["has no checkpoint"]);
}

#[test]
fn an_export_is_pushed_to_the_hub_as_one_commit() {
    let place = Place::new();
    place.train(&tiny_with(json!({ "training": { "steps": 1 } }))).expect(0, &[]);
    for storage in [Storage::Whole, Storage::Parts] {
        let server = HubPushServer::start(storage).unwrap();
        let environment = [("HF_TOKEN", TOKEN), ("HF_ENDPOINT", server.endpoint())];
        export_in(&place, &["--push-to", "hub:owner/tiny"], &environment)
            .expect(0, &["hub:owner/tiny is at commit"]);
        let exported = files(&place.run("exports/step-000001"));
        let [(message, files)] = &server.commits()[..] else { panic!("expected one commit") };
        assert!(message.ends_with(": step 1"), "{message}");
        assert!(*files == exported && files.contains_key("tokenizer.json"), "other files are on the hub");
        // Files that the hub already has are not uploaded again.
        export_in(&place, &["--push-to", "hub:owner/tiny"], &environment).expect(0, &[]);
        let num_parts = server.requests().iter().filter(|request| request.starts_with("PUT")).count();
        let num_bytes = exported["model.safetensors"].len();
        let expected = if storage == Storage::Whole { 1 } else { num_bytes.div_ceil(30_000) };
        assert!(num_parts == expected && (storage == Storage::Whole || expected > 1), "{num_parts} uploads");
        assert_eq!(server.commits().len(), 2);
    }
}

#[test]
fn a_push_that_fails_says_why_and_commits_nothing() {
    let place = Place::new();
    place.train(&tiny_with(json!({ "training": { "steps": 1 } }))).expect(0, &[]);
    let server = HubPushServer::start(Storage::Broken).unwrap();
    let push = ["--push-to", "hub:owner/tiny"];
    let with =
        |token: &str| export_in(&place, &push, &[("HF_TOKEN", token), ("HF_ENDPOINT", server.endpoint())]);
    let words = [
        "--push-to hub:owner/tiny: nothing was exported",
        "HF_TOKEN: expected a token of the hub with write access, got none",
    ];
    let refused = export(&place, &push).expect(2, &words);
    assert!(!refused.stderr.contains("the export is in"), "{}", refused.stderr);
    assert!(!place.run("exports").exists(), "exported before it was known that it cannot be pushed");
    let wrong = with("hf_wrong")
        .expect(78, &["creating the repository owner/tiny", "401", "Invalid credentials: [redacted]"]);
    assert!(!wrong.stderr.contains("hf_wrong"), "{}", wrong.stderr);
    with(TOKEN).expect(75, &["uploading model.safetensors", "500", "the disk is full"]);
    assert!(server.commits().is_empty());
    export(&place, &["--push-to", "owner/tiny"]).expect(2, &["expected hub:OWNER/NAME"]);
}
