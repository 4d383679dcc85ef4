//! The matrices of an adapter under every initialization that a manifest can choose.

use tch::{Kind, Tensor};

use super::*;

/// Modules of the tiny model that all have [`NUM_INPUTS`] inputs.
const MODULES: [&str; 6] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"];
/// Number of inputs of each of [`MODULES`].
const NUM_INPUTS: f64 = 32.0;
const RANK: f64 = 8.0;

#[test]
fn every_initialization_of_an_adapter_draws_its_matrices() {
    // Root mean squares of A and of B; those of LoftQ follow from the quantization error.
    let table = [
        ("Peft", Some([(1.0 / NUM_INPUTS / 3.0).sqrt(), 0.0])),
        ("Gaussian", Some([1.0 / RANK, 0.0])),
        ("Orthogonal", Some([0.5_f64.sqrt() / 10.0; 2])),
        ("Xavier", Some([(2.0 / (NUM_INPUTS + RANK)).sqrt(), 0.0])),
        ("Loftq", None),
    ];
    assert_complete("spec.model.lora.init", &table);
    for (init, expected) in table {
        let quantization = if init == "Loftq" { json!({ "format": "Nf4" }) } else { Value::Null };
        let lora = json!({ "rank": RANK as u32, "init": init, "targetModules": MODULES });
        let job = tiny_job_with(json!({ "model": { "lora": lora, "quantization": quantization } }));
        let root = tempfile::tempdir().unwrap();
        let (mut run, mut roles, mut data) = set_up(&job.to_string(), &root.path().join("run"));
        state::resume(&mut run, &mut roles, &mut data).unwrap();
        let matrices = roles.actor.decoder().adapter_parameters();
        assert_eq!(matrices.len(), 2 * MODULES.len(), "{init}");
        let rms = |name: &str| {
            let named = matrices.iter().filter(|(full_name, _)| full_name.contains(name));
            let values: Vec<Tensor> = named.map(|(_, matrix)| matrix.flatten(0, -1)).collect();
            Tensor::cat(&values, 0).square().mean(Kind::Double).sqrt().double_value(&[])
        };
        let got = [rms("lora_A"), rms("lora_B")];
        if let Some(expected) = expected {
            // The tolerance is four standard errors of a sample of this size.
            let is_close = got.iter().zip(expected).all(|(got, mean)| (got - mean).abs() <= 0.1 * mean);
            assert!(is_close, "{init}: {got:?}, expected {expected:?}");
        }
        let products = matrices.chunks_exact(2).map(|pair| pair[1].1.matmul(&pair[0].1));
        let largest = products.map(|product| product.abs().max().double_value(&[])).fold(0.0_f64, f64::max);
        assert_eq!(largest > 1e-6, init == "Loftq", "{init}: the adapter adds {largest}");
    }
}
