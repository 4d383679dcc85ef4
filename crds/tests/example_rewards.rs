//! Tests of the examples' rewards on rows in the form of their data sets: a right completion earns every
//! reward that the trainer computes, and a wrong one does not.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that can not go on says where")]

use std::fs;
use std::path::{Path, PathBuf};

use rlt_algorithms::reward::{Given, NO_VERDICTS, Sample};
use rlt_api::ValidatedJob;
use serde_json::{Value, json};

/// A row's ground truth with a right completion, in the form that the example's prompt requests, and a wrong
/// one.
struct Row {
    ground_truth: Value,
    right: &'static str,
    wrong: &'static str,
}

/// The columns of `openai/gsm8k`, whose `answer` is a rationale with the number behind `####`.
fn gsm8k() -> Row {
    let answer = "Each of the 4 boxes holds 12 * 25 = <<12*25=300>>300 pens.\n\
                  In all there are 4 * 300 = <<4*300=1200>>1,200 pens.\n#### 1,200";
    Row {
        ground_truth: json!(answer),
        right: "A box holds 300 pens, so there are 1200 pens.\n#### 1200",
        wrong: "A box holds 300 pens.\n#### 300",
    }
}

/// The column `reward_model.ground_truth` of DAPO-Math-17k and of AIME-2024 in the same form.
fn dapo_math() -> Row {
    Row {
        ground_truth: json!("34"),
        right: "We add the residues and get 34.\n\nAnswer: $34$",
        wrong: "We add the residues.\n\nAnswer: 43",
    }
}

/// Returns the row that stands for a data set of the hub, a file or a task.
fn row_of(source: &str) -> Row {
    match source {
        "openai/gsm8k" => gsm8k(),
        "BytedTsinghua-SIA/DAPO-Math-17k" | "BytedTsinghua-SIA/AIME-2024" => dapo_math(),
        // examples/data/job.yaml writes such a row.
        "sums.jsonl" => Row { ground_truth: json!("84"), right: "12 * 7 = 84\n#### 84", wrong: "#### 48" },
        // examples/process-reward/rows.sh writes such rows.
        file if file.starts_with("runs/count/") => {
            Row { ground_truth: json!("7+1+5+9"), right: "7+1+5+9", wrong: "7+1" }
        }
        "Arithmetic" => Row { ground_truth: json!("021"), right: "021", wrong: "1" },
        "CountingPictures" => Row { ground_truth: json!("7"), right: "7", wrong: "8" },
        other => panic!("no rows stand for {other}: add some in the form of the data set"),
    }
}

/// Returns the names of the data sets, files and tasks of a job.
fn sources(job: &ValidatedJob) -> Vec<String> {
    let data = serde_json::to_value(&job.spec().data).unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut sources: Vec<String> = Vec::new();
    for set in data["datasets"].as_array().into_iter().flatten() {
        sources.extend(text(&set["hub"]["repo"]));
        sources.extend(set["files"].as_array().into_iter().flatten().filter_map(text));
    }
    for split in ["train", "heldOut"] {
        sources.extend(data[split].as_array().into_iter().flatten().filter_map(text));
    }
    sources.extend(text(&data["task"]["kind"]));
    assert!(!sources.is_empty(), "{}: {data}", job.name());
    sources
}

/// The manifests of `examples`.
fn manifests() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("examples");
    let files =
        |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut manifests: Vec<PathBuf> = files(root).filter(|path| path.is_dir()).flat_map(files).collect();
    manifests.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    manifests.sort();
    manifests
}

#[test]
fn a_right_completion_earns_the_reward_of_every_example() {
    let mut num_checked = 0;
    for path in manifests() {
        let text = fs::read_to_string(&path).unwrap();
        // The manifest of a workflow contains its job.
        let Ok(job) = rlt_api::validate(&text) else {
            assert!(text.contains("argoproj.io"), "{} is not valid", path.display());
            continue;
        };
        for function in &job.spec().rewards.functions {
            if !function.kind.sections().is_empty() {
                continue;
            }
            let given =
                Given { name: &function.name, settings: &function.settings, max_completion_tokens: 1024 };
            let reward = function.kind.build(&given).unwrap();
            for source in sources(&job) {
                let row = row_of(&source);
                reward.check_ground_truth(&row.ground_truth).unwrap();
                let score = |completion: &str| {
                    let sample = Sample {
                        prompt: "",
                        completion,
                        num_tokens: completion.len(),
                        ground_truth: &row.ground_truth,
                        extra_info: &Value::Null,
                        verdicts: &NO_VERDICTS,
                    };
                    reward.score(&sample).unwrap()
                };
                let shown = format!("{}: {} on {source}", path.display(), function.name);
                let (lowest, highest) = reward.range();
                assert_eq!(score(row.right), highest, "{shown}");
                assert_eq!(score(row.wrong), lowest, "{shown}");
                num_checked += 1;
            }
        }
    }
    assert!(num_checked >= 20, "{num_checked}");
}
