//! Scripts and settings of other projects that are not as they should be: what is made of them is a manifest
//! or an error in words. Nothing panics.

#![expect(clippy::unwrap_used, reason = "a broken fixture should end the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use rlt_convert::{Launch, Project, convert, launches, launches_of_markdown};
use rlt_mutations::{cases, mutated};

fn fixtures(ending: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let fitting = paths.iter().filter(|path| path.to_string_lossy().ends_with(ending));
    fitting.map(|path| fs::read(path).unwrap()).collect()
}

/// Converts every launch; a manifest is YAML.
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
    fn settings_of_any_text_become_a_manifest_or_an_error(bytes in mutated(fixtures(".yaml"))) {
        let launch = Launch::new(Project::Trl, "grpo", &[]);
        check(&[launch], &[String::from_utf8_lossy(&bytes).into_owned()])?;
    }
}
