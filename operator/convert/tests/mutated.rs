//! Tests with mutated scripts and settings of other projects: each results in a manifest or in an error
//! message. Nothing panics.

#![expect(clippy::unwrap_used, reason = "a broken fixture should end the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use rlt_convert::{Launch, Manifest, Project, convert, launches, launches_of_manifest, launches_of_markdown};
use rlt_mutations::{cases, mutated};

fn fixtures(ending: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let fitting = paths.iter().filter(|path| path.to_string_lossy().ends_with(ending));
    fitting.map(|path| fs::read(path).unwrap()).collect()
}

/// Converts every launch, and checks that each manifest is YAML.
fn check(launches: &[Launch], files: &[String]) -> Result<(), TestCaseError> {
    for launch in launches {
        match convert(launch, files, "test") {
            Ok(conversion) => {
                let read = rlt_api::read_yaml::<serde_json::Value>(&conversion.manifest);
                prop_assert!(read.is_ok(), "{}", conversion.manifest);
            }
            Err(error) => prop_assert!(error.to_string().len() > 10, "{error}"),
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn a_script_of_any_text_becomes_manifests_or_errors(bytes in mutated(fixtures(".sh"))) {
        if let Ok((launches, _)) = launches(&String::from_utf8_lossy(&bytes), &BTreeMap::new(), &[]) {
            check(&launches, &[])?;
        }
    }

    #[test]
    fn a_page_of_any_text_becomes_manifests_or_errors(bytes in mutated(fixtures(".md"))) {
        if let Ok((launches, _)) = launches_of_markdown(&String::from_utf8_lossy(&bytes), &BTreeMap::new(), &[]) {
            check(&launches, &[])?;
        }
    }

    #[test]
    fn a_manifest_of_any_text_becomes_manifests_or_errors(bytes in mutated(fixtures("-job.yaml"))) {
        let Ok(Some(manifest)) = Manifest::read(&String::from_utf8_lossy(&bytes)) else { return Ok(()) };
        if let Ok((launches, _)) = launches_of_manifest(&manifest, &BTreeMap::new(), &[]) {
            check(&launches, &[])?;
        }
    }

    #[test]
    fn settings_of_any_text_become_a_manifest_or_an_error(bytes in mutated(fixtures(".yaml"))) {
        let launch = Launch::new(Project::Trl, "grpo", &[]);
        check(&[launch], &[String::from_utf8_lossy(&bytes).into_owned()])?;
    }
}

/// Text of a script with control characters, as a value, as a variable of a template and as a key.
#[test]
fn control_characters_of_a_script_are_escapes_in_its_manifest() {
    for text in ["\u{1b}[2J", "\u{7}", "a\u{202e}b", "x: {y: 1}\u{85}z", "\u{2028}"] {
        let arguments = [
            "actor_rollout_ref.model.path=org/base".to_owned(),
            format!("data.train_files={text}.parquet"),
            format!("data.apply_chat_template_kwargs.{text}={text}"),
            format!("trainer.{text}={text}"),
        ];
        let launch = Launch::new(Project::Verl, "main_ppo", &arguments);
        let manifest = convert(&launch, &[], "test").unwrap().manifest;
        let is_safe =
            |letter: char| letter == '\n' || !(letter.is_control() || "\u{202e}\u{2028}".contains(letter));
        assert!(manifest.chars().all(is_safe), "{manifest:?}");
        let read = rlt_api::read_yaml::<serde_json::Value>(&manifest);
        assert!(read.is_ok(), "{manifest}");
    }
}

/// A page of many small scripts, each of which grows as far as one script may.
#[test]
fn the_scripts_of_a_page_share_the_limits_of_one() {
    let growing =
        format!("a=x; for i in {}; do a=$a$a; done; python3 -m verl.trainer.main_ppo a=$a", "1 ".repeat(18));
    let page = format!("```sh\n{growing}\n```\n").repeat(300);
    let (launches, notes) = launches_of_markdown(&page, &BTreeMap::new(), &[]).unwrap();
    let num_bytes: usize = launches.iter().flat_map(|launch| &launch.arguments).map(String::len).sum();
    assert!(!launches.is_empty() && num_bytes <= 8 << 20, "{} launches of {num_bytes} bytes", launches.len());
    assert!(notes.iter().any(|note| note.contains("at most 8388608 bytes")), "{notes:?}");
    let endless = "```sh\nfor i in 1 2 3 4 5 6 7 8 9; do for j in 1 2 3 4 5 6 7 8 9; do for k in 1 2 3 4 5 6 7 8 9; do :; \
                   done; done; done\n```\n";
    let page = format!("{}```sh\npython3 -m verl.trainer.main_ppo\n```\n", endless.repeat(200));
    assert!(launches_of_markdown(&page, &BTreeMap::new(), &[]).is_err(), "more than 100,000 commands");
}

/// Scripts that grow or nest without end are refused within a few seconds, without a stack overflow.
#[test]
fn scripts_that_are_huge_or_deeply_nested_are_refused() {
    let nested = |open: &str, close: &str| format!("run {}1{}", open.repeat(50_000), close.repeat(50_000));
    let scripts = [
        nested("$(", ")"),
        nested("$((", "))"),
        nested("${a:-", "}"),
        nested("{ ", "; }"),
        nested("( ", " )"),
        nested("[[ ! ", " ]]"),
        nested("\"$(", ")\""),
        nested("if true; then ", "; fi"),
        nested("`", "`"),
        format!("run $(({}1))", "-".repeat(100_000)),
        format!("[[ a {} ]]", "&& a ".repeat(100_000)),
        format!("a=x; for i in {}; do a=$a$a; done; run $a", "1 ".repeat(1000)),
        format!("a=(x); for i in {}; do a+=(${{a[@]}}); done; run ${{a[@]}}", "1 ".repeat(1000)),
        format!("a={}; run ${{a//x/{}}}", "x".repeat(100_000), "y".repeat(100_000)),
        format!("a={}; run ${{a#y*}}", "x".repeat(500_000)),
        format!("a=1; for i in {}; do a=\"($a)\"; done; run $((a)) $(($a))", "1 ".repeat(1000)),
        "x".repeat((1 << 20) + 1),
    ];
    for script in scripts {
        let outcome = launches(&script, &BTreeMap::new(), &[]);
        assert!(outcome.is_err(), "{}..", &script[..60]);
    }
    let yaml = format!("a: {}", "[".repeat(100_000));
    let launch = Launch::new(Project::Trl, "grpo", &[]);
    assert!(convert(&launch, &[yaml], "test").is_err());
    assert!(convert(&launch, &["#".repeat((1 << 20) + 1)], "test").is_err());
    let values = ["[", "{a:", "'["].map(|open| format!("--stop={}", open.repeat(100_000)));
    let launch = Launch::new(Project::Trl, "grpo", &values);
    assert!(convert(&launch, &[], "test").is_ok());
}
