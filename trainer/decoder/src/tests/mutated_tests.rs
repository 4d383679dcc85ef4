//! Model folders with mutated bytes. Whatever was changed, a folder loads or is refused with an error
//! message. Nothing panics, and no memory is allocated for data that no file contains.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rlt_mutations::{cases, mutated};

use super::{Decoder, LoadOptions};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models")
}

/// The files of this name in the folders of all families.
fn files(name: &str) -> Vec<Vec<u8>> {
    let mut folders: Vec<_> = fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders.iter().filter_map(|folder| fs::read(folder.join(name)).ok()).collect()
}

/// Loads a model folder of Qwen3 in which the file `name` holds `bytes`.
fn load_with(name: &str, bytes: &[u8]) -> Result<Decoder, super::ModelError> {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::os::unix::fs::symlink(fixtures().join("qwen3").join(file), folder.path().join(file)).unwrap();
    }
    let _ = fs::remove_file(folder.path().join(name));
    fs::write(folder.path().join(name), bytes).unwrap();
    Decoder::load(folder.path(), &LoadOptions::default())
}

/// Checks that a refused folder has an error message.
fn check(loaded: Result<Decoder, super::ModelError>) -> Result<(), TestCaseError> {
    if let Err(error) = loaded {
        prop_assert!(error.to_string().len() > 10, "{error}");
    }
    Ok(())
}

/// The header of a file of weights, and a few of its numbers.
fn beginning_of_weights() -> Vec<u8> {
    let whole = fs::read(fixtures().join("qwen3/model.safetensors")).unwrap();
    let header_len = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    whole[..8 + header_len + 64].to_vec()
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn a_configuration_of_any_bytes_is_a_model_or_refused(bytes in mutated(files("config.json"))) {
        check(load_with("config.json", &bytes))?;
    }

    #[test]
    fn weights_of_any_header_are_those_of_the_model_or_refused(
        bytes in mutated(vec![beginning_of_weights()]),
        is_whole in any::<bool>(),
    ) {
        let whole = fs::read(fixtures().join("qwen3/model.safetensors")).unwrap();
        let rest = if is_whole { &whole[beginning_of_weights().len()..] } else { &[] };
        check(load_with("model.safetensors", &[&*bytes, rest].concat()))?;
    }

    #[test]
    fn an_index_of_any_bytes_leads_to_weights_of_the_folder_or_is_refused(
        bytes in mutated(vec![br#"{"metadata": {"total_size": 104}, "weight_map": {"lm_head.weight": "model.safetensors",
            "model.norm.weight": "model-00002-of-00002.safetensors"}}"#.to_vec()]),
    ) {
        check(load_with("model.safetensors.index.json", &bytes))?;
    }
}
