//! Checkpoints with mutated bytes. Reading one gives the tensors of its manifest or an error, and allocates
//! no memory for data that no file contains. Digests of mutated manifests are computed again, so that a wrong
//! digest does not hide later checks.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use rlt_mutations::{cases, mutated};
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::manifest::Manifest;
use super::*;

/// Saves two small tensors, and returns the folder of the checkpoint.
fn saved(dir: &Path) -> std::path::PathBuf {
    let tensors = vec![
        ("weight".to_owned(), Tensor::arange(12, (Kind::Float, Device::Cpu)).view([3, 4])),
        ("count".to_owned(), Tensor::from(7i64)),
    ];
    let mut store = CheckpointStore::open(dir, 1).unwrap();
    store.save(5, &CheckpointContent { tensors, state: json!({ "step": 5 }) }).unwrap();
    dir.join("step-000005")
}

fn file(name: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    fs::read(saved(dir.path()).join(name)).unwrap()
}

/// Opens the checkpoint and reads every tensor of its manifest.
fn read(folder: &Path) -> Result<Vec<Tensor>, CheckpointError> {
    let checkpoint = Checkpoint::open(folder)?;
    checkpoint.manifest().tensors.keys().map(|name| checkpoint.tensor(name)).collect()
}

/// Returns `bytes` with a correct digest if they are a manifest.
fn signed(bytes: &[u8]) -> Vec<u8> {
    match serde_json::from_slice::<Manifest>(bytes) {
        Ok(manifest) => manifest.to_json().unwrap(),
        Err(_) => bytes.to_vec(),
    }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn a_manifest_of_any_bytes_is_that_of_its_files_or_refused(bytes in mutated(vec![file("manifest.json")])) {
        let dir = tempfile::tempdir().unwrap();
        let folder = saved(dir.path());
        fs::write(folder.join("manifest.json"), signed(&bytes)).unwrap();
        if let Err(error) = read(&folder) {
            let said = error.to_string();
            prop_assert!(said.contains("step-000005") || said.contains("tensor"), "{said}");
        }
    }

    #[test]
    fn another_file_that_changed_is_refused_by_its_path(
        (name, bytes) in prop::sample::select(vec!["state.json", "shard-00000.safetensors"])
            .prop_flat_map(|name| (Just(name), mutated(vec![file(name)]))),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let folder = saved(dir.path());
        let is_other = *bytes != *file(name);
        fs::write(folder.join(name), &*bytes).unwrap();
        match read(&folder) {
            Ok(_) => prop_assert!(!is_other, "{name} was changed and taken"),
            Err(error) => prop_assert!(error.to_string().contains(name), "{error}"),
        }
    }
}
