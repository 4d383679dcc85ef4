//! Compares mixtures of experts with transformers: the routers' auxiliary loss, and both layouts in which
//! checkpoints store experts.

use rlt_decoder::{Adapter, Decoder, LoadOptions, RouterLoad, RouterObserver, Weights};
use rlt_layout::TensorRun;
use tch::{Device, Kind, Tensor};

use super::fixture::{Fixture, TOLERANCE, TRAINABLE, max_error, packed};

const MIXTURES: [&str; 4] = ["mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss"];

/// Runs all layers, each of which reports its routes to `tap`. Returns the terms of the auxiliary loss, and
/// the tap.
fn observed(decoder: &Decoder, fixture: &Fixture, tap: RouterObserver) -> (Vec<Tensor>, RouterObserver) {
    let input = packed(&fixture.sequences());
    let mut context = decoder.context(&input, Adapter::On);
    context.router = Some(tap);
    let (mut hidden, mut terms) = (decoder.embed(&input.tokens, Adapter::On), Vec::new());
    for layer in decoder.layers() {
        hidden = layer.forward(&hidden, &context);
        terms.extend(context.router.as_ref().and_then(RouterObserver::take_term));
    }
    (terms, context.router.unwrap())
}

fn load_of(decoder: &Decoder, fixture: &Fixture) -> (RouterLoad, Tensor) {
    let weights =
        Tensor::ones([packed(&fixture.sequences()).tokens.numel() as i64], (Kind::Float, Device::Cpu));
    let num_experts = decoder.config.experts.as_ref().unwrap().num_experts;
    let counting = RouterObserver::counting(weights.shallow_clone(), num_experts);
    let (terms, tap) = tch::no_grad(|| observed(decoder, fixture, counting));
    assert!(terms.is_empty());
    (tap.load(), weights)
}

#[test]
fn the_auxiliary_loss_and_its_gradients_are_those_of_transformers() {
    for family in MIXTURES {
        let fixture = Fixture::open(family, "expected.safetensors");
        let decoder = fixture.load();
        let (load, weights) = load_of(&decoder, &fixture);
        let expected = fixture.expected("aux.loss").double_value(&[]);
        assert!((load.loss() - expected).abs() <= 1e-5, "{family}: {} is not {expected}", load.loss());

        let balancing = RouterObserver::balancing(weights, &load.slopes(1.0));
        let (terms, _) = observed(&decoder, &fixture, balancing);
        let loss = terms.iter().fold(Tensor::from(0_f32), |sum, term| sum + term);
        assert!((loss.double_value(&[]) - expected).abs() <= 1e-5, "{family}");
        loss.backward();
        let gradients = fixture.with_prefix("aux.grad.").collect::<Vec<_>>();
        let parameters: std::collections::BTreeMap<_, _> = decoder.named_parameters().into_iter().collect();
        for (name, expected) in &gradients {
            let got = parameters[*name].grad();
            let got = if got.defined() { got } else { parameters[*name].detach().zeros_like() };
            let error = max_error(&got, expected);
            assert!(error <= TOLERANCE, "{family}: {name}: {error:.2e}");
        }
        let is_router =
            |name: &str| ["mlp.gate.weight", "mlp.router.weight"].iter().any(|end| name.ends_with(end));
        let routers = gradients.iter().filter(|(name, _)| is_router(name)).count();
        assert_eq!(routers, terms.len(), "{family}");
    }
}

#[test]
fn experts_are_read_one_by_one_and_in_one_tensor_alike() {
    for family in MIXTURES {
        let fixture = Fixture::open(family, "expected.safetensors");
        let decoder = fixture.load();
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(fixture.dir.join("config.json"), dir.path().join("config.json")).unwrap();
        // In memory experts have the names and shapes of transformers 5.
        let parameters = decoder.named_parameters();
        let detached: Vec<_> = parameters.iter().map(|(name, weight)| (name, weight.detach())).collect();
        Tensor::write_safetensors(&detached, dir.path().join("model.safetensors")).unwrap();
        let fused = Decoder::load(dir.path(), &TRAINABLE).unwrap();
        assert_eq!(fused.named_parameters(), parameters, "{family}");
    }
}

/// The full tensor and any range of it are equal bit for bit.
#[test]
fn experts_in_mxfp4_are_read_as_the_numbers_that_transformers_makes_of_them() {
    let fixture = Fixture::open("gpt-oss-mxfp4", "expected.safetensors");
    let numbers =
        LoadOptions { param_dtype: Kind::BFloat16, compute: Kind::BFloat16, ..LoadOptions::default() };
    let decoder = Decoder::load(&fixture.dir, &numbers).unwrap();
    let parameters: std::collections::BTreeMap<_, _> = decoder.named_parameters().into_iter().collect();
    let weights = Weights::open(&fixture.dir).unwrap();
    assert_eq!(fixture.with_prefix("model").count(), 2);
    for (name, expected) in fixture.with_prefix("model").map(|(end, tensor)| (format!("model{end}"), tensor))
    {
        assert_eq!(expected.kind(), Kind::BFloat16);
        assert!(parameters[&name].equal(expected), "{name}");
        // The range begins within one expert and ends within the next.
        let of_expert = expected.numel() / 2;
        let range = of_expert / 3..of_expert + of_expert / 5;
        let values = Tensor::empty([range.len() as i64], (Kind::BFloat16, Device::Cpu));
        let shape = expected.size();
        let own = expected.view(-1).narrow(0, range.start as i64, range.len() as i64);
        weights.fill(&TensorRun { name: &name, shape: &shape, range }, &values).unwrap();
        assert!(values.equal(&own), "{name}");
    }
}

#[test]
fn parts_in_mxfp4_of_another_shape_are_refused_by_name() {
    let fixture = Fixture::open("gpt-oss-mxfp4", "expected.safetensors");
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(fixture.dir.join("config.json"), dir.path().join("config.json")).unwrap();
    let mut tensors = Tensor::read_safetensors(fixture.dir.join("model.safetensors")).unwrap();
    for (name, tensor) in &mut tensors {
        if name.ends_with("down_proj_scales") {
            *tensor = tensor.narrow(1, 0, 16).contiguous();
        }
    }
    Tensor::write_safetensors(&tensors, dir.path().join("model.safetensors")).unwrap();
    let refused = Weights::open(dir.path()).unwrap_err().to_string();
    assert!(refused.contains("down_proj_scales") && refused.contains("[2, 16, 1]"), "{refused}");
}
