//! Rule of the settings of editors: an editor shows the same findings that `make check` reports later.

use std::fs;

use rlt_rules::workspace_root;
use serde_json::Value;

fn read(path: &str) -> String {
    fs::read_to_string(workspace_root().join(path)).unwrap()
}

#[test]
fn editors_lint_by_the_command_and_features_of_make_check() {
    let settings: Value = serde_json::from_str(&read(".vscode/settings.json")).unwrap();
    let features = settings["rust-analyzer.cargo.features"].as_array().unwrap();
    let features: Vec<&str> = features.iter().map(|feature| feature.as_str().unwrap()).collect();
    let suite = read("tests/suite.sh");
    let of_suite = suite.lines().find_map(|line| line.strip_prefix("WORKSPACE=(")).unwrap();
    assert!(of_suite.contains(&format!("--features {} ", features.join(","))), "{of_suite}");
    let command = settings["rust-analyzer.check.command"].as_str().unwrap();
    assert!(suite.contains(&format!("RUSTC_WORKSPACE_WRAPPER={command}-driver")), "{command}");
}
