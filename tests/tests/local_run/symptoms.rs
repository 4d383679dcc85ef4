//! Symptoms in a run's metrics: reported while it trains, kept in its folder and its report, explained by
//! `rlctl why`.

use std::fs;
use std::process::Command;

use serde_json::json;

use crate::job::{Ended, Place, tiny_with};

fn why(place: &Place) -> Ended {
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    Ended::of(command.arg("why").arg(place.run("")).output().unwrap())
}

#[test]
fn a_run_that_earns_no_reward_says_so_and_one_that_learns_does_not() {
    let rewarded = |pattern: &str| {
        let place = Place::new();
        let ended = place.train(&tiny_with(json!({
            "rewards": { "functions": [{ "name": "seldom", "kind": "Format", "pattern": pattern }] },
            "training": { "steps": 20 },
        })));
        (place, ended.expect(0, &[]))
    };
    // No completion can contain this letter.
    let (place, ended) = rewarded("x");
    ended.expect(0, &["warning: this run earns nothing", "NoReward"]);
    let kept: Vec<String> =
        serde_json::from_str(&fs::read_to_string(place.run("warnings.json")).unwrap()).unwrap();
    assert!(kept[0].contains("the reward of every sample is 0"), "{kept:?}");
    let report = fs::read_to_string(place.run("report.html")).unwrap();
    assert!(report.contains("This run earns nothing"), "the report has no warning");
    why(&place).expect(0, &["is complete: 20 of 20 steps", "NoReward", "`spec.rollout.maxCompletionTokens`"]);

    let (place, ended) = rewarded("[0-4].*");
    let output = ended.stdout + &ended.stderr;
    assert!(!output.contains("warning: this run"), "{output}");
    assert!(!place.run("warnings.json").exists());
    why(&place).expect(0, &["is complete: 20 of 20 steps", "nothing is to be done"]);
}
