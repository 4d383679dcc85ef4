//! The preparation of the tests, run again.

use std::process::Command;

#[test]
fn a_second_preparation_finds_everything_there() {
    if !rlt_skipped::is_prepared() {
        return rlt_skipped::skip_also_under_ci("`make prepare` was not run for these tests");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_rlt-prepare")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("building"), "{text}");
}

#[test]
fn an_argument_is_answered_with_the_usage_and_makes_nothing() {
    for (argument, code) in [("--help", 0), ("images", 2)] {
        let output = Command::new(env!("CARGO_BIN_EXE_rlt-prepare")).arg(argument).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{argument}: {text}");
        assert!(text.contains("Usage: rlt-prepare\n"), "{argument}: {text}");
        assert!(!text.contains("prepare: "), "{argument}: {text}");
    }
}
