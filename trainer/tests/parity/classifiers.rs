//! Compares sequence classifiers with one label with those of transformers.

use rlt_decoder::Classifier;
use tch::Tensor;

use super::fixture::{Fixture, TRAINABLE, max_error};

#[test]
fn a_classifier_scores_packed_and_single_sequences_as_transformers_does() {
    for name in ["reward-llama", "reward-qwen3-tied"] {
        let fixture = Fixture::open(name, "expected.safetensors");
        let classifier = Classifier::load(&fixture.dir, &TRAINABLE).unwrap();
        let (sequences, expected) = (fixture.sequences(), fixture.expected("scores"));
        let sequences: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
        let packed = max_error(&classifier.scores(&sequences), expected);
        let alone: Vec<Tensor> = sequences.iter().map(|one| classifier.scores(&[one])).collect();
        let alone = max_error(&Tensor::cat(&alone, 0), expected);
        println!("{name}: packed {packed:.1e}, alone {alone:.1e}");
        assert!(packed <= 1e-5 && alone <= 1e-5, "{name}: {packed:.2e} {alone:.2e}");
    }
}

#[test]
fn a_classifier_reads_the_last_token_that_is_no_padding() {
    let fixture = Fixture::open("reward-llama", "expected.safetensors");
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture.dir.join(name), folder.path().join(name)).unwrap();
    }
    let path = folder.path().join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["pad_token_id"] = 3.into();
    std::fs::write(&path, config.to_string()).unwrap();
    let classifier = Classifier::load(folder.path(), &TRAINABLE).unwrap();
    let padded = classifier.scores(&[&[5, 6, 7, 3, 3], &[8, 3]]);
    let plain = classifier.scores(&[&[5, 6, 7], &[8]]);
    assert!(max_error(&padded, &plain) <= 1e-5);
}
