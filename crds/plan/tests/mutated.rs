//! Tests with mutated manifests and model configurations: each results in a plan or in a refusal. Nothing
//! panics, no sum overflows, and no memory is allocated for sizes that a file merely states.

#![expect(clippy::unwrap_used, reason = "a test that can not go on says where")]

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use rlt_api::{ValidatedJob, validate};
use rlt_models::ModelConfig;
use rlt_mutations::{cases, mutated};
use rlt_plan::{Machine, Models, plan, plan_on, planned_model};

/// Returns the contents of the files called `name` in the folders below `folder` of the workspace.
fn files(folder: &str, name: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let mut folders: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders.iter().filter_map(|folder| fs::read(folder.join(name)).ok()).collect()
}

fn lora_job() -> ValidatedJob {
    let manifest = files("examples", "job.yaml").remove(0);
    validate(&String::from_utf8(manifest).unwrap()).unwrap()
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn a_manifest_of_any_text_is_planned_or_refused(bytes in mutated(files("examples", "job.yaml"))) {
        match validate(&String::from_utf8_lossy(&bytes)) {
            Ok(job) => {
                let policy = planned_model(&job).unwrap_or_default();
                let _ = plan(&job, &Models { policy, ..Models::default() });
            }
            Err(problems) => prop_assert!(problems.iter().all(|problem| problem.to_string().len() > 10)),
        }
    }

    #[test]
    fn a_model_of_any_configuration_is_planned_or_refused(
        bytes in mutated(files("trainer/tests/fixtures/models", "config.json")),
    ) {
        let Ok(document) = serde_json::from_slice(&bytes) else { return Ok(()) };
        match ModelConfig::from_json(&document) {
            Ok(model) => {
                let models = Models { policy: Some(model), ..Models::default() };
                let _ = plan_on(&lora_job(), &models, &Machine::gpu("h100").unwrap());
            }
            Err(error) => prop_assert!(error.to_string().len() > 10, "{error}"),
        }
    }
}
