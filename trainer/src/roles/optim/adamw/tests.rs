//! The optimizer: which values a gradient changes, which parameters decay, and where moments are stored.

use rlt_models::{ModelConfig, TensorShape};
use tch::Device;

use super::*;

fn leaf(values: &[f32]) -> Tensor {
    Tensor::from_slice(values).set_requires_grad(true)
}

fn optimizer(leaf: &Tensor) -> AdamW {
    AdamW::new(vec![("w".into(), leaf.shallow_clone())], AdamWOptions::default()).expect("one parameter")
}

fn give_gradient(leaf: &Tensor, gradient: &[f32]) {
    (leaf * Tensor::from_slice(gradient)).sum(Kind::Float).backward();
}

fn values(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.detach().to_kind(Kind::Float)).expect("float32")
}

#[test]
fn a_non_finite_gradient_changes_nothing() {
    for bad in [f32::NAN, f32::INFINITY] {
        let leaf = leaf(&[1.0, -2.0]);
        let mut optimizer = optimizer(&leaf);
        give_gradient(&leaf, &[0.5, 0.5]);
        optimizer.step(0.1, None).expect("finite");
        let state = optimizer.state_tensors().expect("here");
        let before: Vec<_> = state.iter().map(|(_, tensor)| tensor.copy()).collect();
        let weights = values(&leaf);
        optimizer.clear_gradients();
        give_gradient(&leaf, &[bad, 1.0]);
        assert_eq!(optimizer.step(0.1, Some(1.0)).expect("no error"), StepOutcome::SkippedNonFinite);
        assert_eq!(values(&leaf), weights);
        let after = optimizer.state_tensors().expect("here");
        assert!(before.iter().zip(&after).all(|(before, (_, after))| before.equal(after)));
    }
}

#[test]
fn the_norm_is_measured_before_clipping() {
    let leaf = leaf(&[0.0, 0.0]);
    let mut optimizer = optimizer(&leaf);
    give_gradient(&leaf, &[3.0, 4.0]);
    let outcome = optimizer.step(0.1, Some(1.0)).expect("finite");
    assert_eq!(outcome, StepOutcome::Applied { grad_norm: 5.0 });
}

#[test]
fn narrow_parameters_have_wide_moments() {
    let leaf = Tensor::ones([3], (Kind::BFloat16, Device::Cpu)).set_requires_grad(true);
    let mut optimizer = optimizer(&leaf);
    (&leaf * 2.0).sum(Kind::BFloat16).backward();
    optimizer.step(0.25, None).expect("finite");
    assert_eq!(leaf.kind(), Kind::BFloat16);
    // The first step moves by the learning rate, and decay takes a hundredth of that: 0.7475 before
    // rounding.
    assert_eq!(values(&leaf), [0.746_093_75; 3]);
    let state = optimizer.state_tensors().expect("here");
    assert!(state[..2].iter().all(|(_, tensor)| tensor.kind() == Kind::Float));
}

/// A step without a gradient only decays weights.
#[test]
fn matrices_decay_and_norms_and_biases_do_not() {
    let config = ModelConfig::from_json(&serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 5, "hidden_size": 4, "intermediate_size": 6,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2,
        "attention_bias": true, "tie_word_embeddings": false,
    }));
    let ones = |shape: &[i64]| Tensor::ones(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let named = |tensor: TensorShape| {
        let shape: Vec<i64> = tensor.shape.iter().map(|len| *len as i64).collect();
        (tensor.name, ones(&shape))
    };
    let mut leaves: Vec<_> = config.expect("a model").tensors().into_iter().map(named).collect();
    let adapter = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
    leaves.extend([(adapter.to_owned(), ones(&[2, 4])), ("critic.value_head.weight".into(), ones(&[4]))]);
    let of_tower = ["blocks.0.norm1.weight", "merger.ln_q.weight", "deepstack_merger_list.0.norm.bias"];
    leaves.extend(of_tower.map(|name| (format!("visual.{name}"), ones(&[4]))));
    leaves.push(("visual.merger.mlp.0.weight".to_owned(), ones(&[4, 4])));
    let of = |(name, leaf): &(String, Tensor)| (name.clone(), leaf.shallow_clone());
    let options = AdamWOptions { weight_decay: 0.5, ..AdamWOptions::default() };
    let mut optimizer = AdamW::new(leaves.iter().map(of).collect(), options).expect("named once");
    optimizer.gradients();
    optimizer.step(0.5, None).expect("finite");
    for (name, leaf) in &leaves {
        // A shard of a matrix is flat, too, so the name decides.
        let expected = if leaf.dim() == 2 || name.contains("value_head") { 0.75 } else { 1.0 };
        assert!(values(&leaf.reshape([-1])).iter().all(|value| *value == expected), "{name}");
    }
    assert!(leaves.iter().filter(|(_, leaf)| leaf.dim() == 1).count() > 6);
}

#[test]
fn offloaded_moments_equal_those_in_memory_and_can_be_dropped() {
    let folder = tempfile::tempdir().expect("a folder");
    let trained = |is_offloaded: bool| {
        let leaves = [leaf(&[1.0, -2.0, 3.0]), leaf(&[]), leaf(&[0.5])];
        let named = |(idx, leaf): (usize, &Tensor)| (format!("w{idx}"), leaf.shallow_clone());
        let named = leaves.iter().enumerate().map(named).collect();
        let mut optimizer = match is_offloaded {
            true => AdamW::with_offloaded_moments(named, AdamWOptions::default(), folder.path()),
            false => AdamW::new(named, AdamWOptions::default()),
        }
        .expect("room");
        for step in 1..4 {
            // The last parameter lacks a gradient in step 2.
            give_gradient(&leaves[0], &[0.3, 0.1, -0.2]);
            if step != 2 {
                give_gradient(&leaves[2], &[step as f32]);
            }
            optimizer.step(0.1, Some(0.4)).expect("finite");
            optimizer.clear_gradients();
        }
        let state = |optimizer: &AdamW| -> Vec<Vec<f32>> {
            let state = optimizer.state_tensors().expect("there");
            state.iter().map(|(_, tensor)| values(&tensor.reshape([-1]))).collect()
        };
        let (weights, learned) = (leaves.each_ref().map(values), state(&optimizer));
        optimizer.reset().expect("written");
        assert!(state(&optimizer).concat().iter().all(|number| *number == 0.0));
        (weights, learned)
    };
    assert_eq!(trained(true), trained(false));
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing is left");
}

#[test]
fn two_parameters_of_one_name_are_refused() {
    let twice = vec![("w".to_owned(), leaf(&[1.0])), ("w".to_owned(), leaf(&[1.0]))];
    let error = AdamW::new(twice, AdamWOptions::default()).expect_err("refused");
    assert!(matches!(error, OptimError::DuplicateParameter { .. }));
}
