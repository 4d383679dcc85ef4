//! Adapters of other kinds than plain LoRA compared with PEFT: values, initialization and a step of LoRA+, on
//! the fixtures of `fixtures/make_adapters.py`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rlt_api::spec::LoraSpec;
use rlt_decoder::{Adapter, Decoder, ExportOptions};
use rlt_trainer::roles::optim::{AdamW, AdamWOptions};
use tch::{Kind, Tensor};

use super::fixture::{Fixture, TOLERANCE, TRAINABLE, loss, max_error, packed};

/// Models, each with the name of the adapter that is stored for it.
const STORED: [(&str, &str); 5] = [
    ("qwen2", "dora"),
    ("llama", "dora-rslora"),
    ("llama", "patterns"),
    ("mistral", "saved"),
    ("qwen3", "saved-tied"),
];

/// PEFT's `loraplus_lr_ratio` in the fixtures.
const LORAPLUS_RATIO: f64 = 8.0;

fn folder(base: &Fixture, variant: &str) -> PathBuf {
    base.dir.join("adapters").join(variant)
}

fn open(base: &str, variant: &str) -> [Fixture; 2] {
    ["expected.safetensors".to_owned(), format!("adapters/{variant}.safetensors")]
        .map(|file| Fixture::open(base, &file))
}

fn logits(decoder: &Decoder, base: &Fixture, adapter: Adapter) -> Tensor {
    decoder.logits(&decoder.hidden_states(&packed(&base.sequences()), adapter), adapter)
}

/// Returns the largest error of any tensor from the expected tensor `prefix` + name.
fn worst(tensors: &[(String, Tensor)], expected: &Fixture, prefix: &str) -> f64 {
    assert_eq!(tensors.len(), expected.with_prefix(prefix).count());
    let error = |(name, tensor): &(String, Tensor)| {
        max_error(&tensor.detach(), expected.expected(&format!("{prefix}{name}")))
    };
    tensors.iter().map(error).fold(0.0, f64::max)
}

/// Makes one step of AdamW with PEFT's parameter groups for LoRA+.
fn step(decoder: &Decoder) {
    let options =
        AdamWOptions { betas: (0.9, 0.99), epsilon: 1e-3, weight_decay: 0.1, lora_b_ratio: LORAPLUS_RATIO };
    let mut optimizer = AdamW::new(decoder.trainable_parameters(), options).unwrap();
    optimizer.step(1e-2, None).unwrap();
}

/// Compares the logits, the gradients and one LoRA+ update of `decoder` with PEFT's.
fn assert_computes_and_trains(decoder: &Decoder, [base, expected]: &[Fixture; 2], variant: &str) {
    let with_adapter = logits(decoder, base, Adapter::On);
    let error = max_error(&with_adapter, expected.expected("logits"));
    assert!(error <= TOLERANCE, "{variant}: {error:.2e}");
    loss(&with_adapter, &packed(&base.sequences()), base.expected("loss_weights")).backward();
    let trainable = decoder.trainable_parameters();
    let gradients: Vec<_> = trainable.iter().map(|(name, leaf)| (name.clone(), leaf.grad())).collect();
    let error = worst(&gradients, expected, "grad.");
    assert!(error <= TOLERANCE, "{variant}: gradients {error:.2e}");
    step(decoder);
    let error = worst(&trainable, expected, "loraplus.");
    assert!(error <= TOLERANCE, "{variant}: after a step of LoRA+ {error:.2e}");
    let error = max_error(&logits(decoder, base, Adapter::On), expected.expected("logits_after"));
    assert!(error <= 10.0 * TOLERANCE, "{variant}: logits after it {error:.2e}");
}

#[test]
fn adapters_of_every_kind_compute_and_learn_as_in_peft() {
    for (name, variant) in STORED {
        let fixtures = open(name, variant);
        let mut decoder = fixtures[0].load();
        let base = logits(&decoder, &fixtures[0], Adapter::On);
        decoder.load_adapter(&folder(&fixtures[0], variant)).unwrap();
        let off = logits(&decoder, &fixtures[0], Adapter::Off);
        assert_eq!(off, base, "{variant}: without the adapter the base, bit for bit");
        assert_computes_and_trains(&decoder, &fixtures, variant);
    }
}

#[test]
fn adapters_of_every_kind_are_saved_and_merged_as_in_peft() {
    for (name, variant) in STORED {
        let [base, expected] = open(name, variant);
        let (mut decoder, dir) = (base.load(), tempfile::tempdir().unwrap());
        decoder.load_adapter(&folder(&base, variant)).unwrap();
        decoder.save_adapter(&dir.path().join("adapter"), None).unwrap();
        let tensors = |dir: PathBuf| -> BTreeMap<_, _> {
            Tensor::read_safetensors(dir.join("adapter_model.safetensors")).unwrap().into_iter().collect()
        };
        assert_eq!(tensors(dir.path().join("adapter")), tensors(folder(&base, variant)), "{variant}");
        let mut again = base.load();
        again.load_adapter(&dir.path().join("adapter")).unwrap();
        assert_eq!(logits(&again, &base, Adapter::On), logits(&decoder, &base, Adapter::On), "{variant}");

        decoder.export(dir.path(), &ExportOptions { merge_lora: true, dtype: Kind::Float }).unwrap();
        let merged = Decoder::load(dir.path(), &TRAINABLE).unwrap();
        let weights: BTreeMap<String, Tensor> = merged.named_parameters().into_iter().collect();
        let error = max_error(&logits(&merged, &base, Adapter::On), expected.expected("logits"));
        assert!(error <= TOLERANCE, "{variant}: merged {error:.2e}");
        for (name, weight) in expected.with_prefix("merged.") {
            assert!(max_error(&weights[name], weight) <= 1e-6, "{variant}: {name}");
        }
    }
}

/// The magnitudes in the fixture, as PEFT initializes them, are the norms of the base's rows, for any A.
#[test]
fn dora_starts_with_peft_s_magnitudes_and_computes_the_base() {
    let [base, expected] = open("qwen2", "dora");
    let mut decoder = base.load();
    let untrained = logits(&decoder, &base, Adapter::On);
    let spec = LoraSpec { rank: 3, alpha: 6.0, dora: true, ..LoraSpec::default() };
    decoder.attach_lora_spec(&spec, 1).unwrap();
    let mut num_magnitudes = 0;
    for (name, tensor) in decoder.trainable_parameters() {
        if name.ends_with("lora_magnitude_vector") {
            num_magnitudes += 1;
            assert!(max_error(&tensor, expected.expected(&format!("start.{name}"))) <= 1e-5, "{name}");
        }
    }
    assert_eq!(num_magnitudes, 14);
    let error = max_error(&logits(&decoder, &base, Adapter::On), &untrained);
    assert!(error <= 1e-4, "{error:.2e}");
}

#[test]
fn patterns_of_a_specification_give_the_ranks_and_scalings_of_peft() {
    let [base, _] = open("llama", "patterns");
    let patterns =
        |pairs: &[(&str, u32)]| pairs.iter().map(|(name, rank)| ((*name).to_owned(), *rank)).collect();
    let alphas: BTreeMap<String, u32> = patterns(&[("o_proj", 3), (r"layers\.1\.self_attn\.q_proj", 5)]);
    let path = folder(&base, "patterns").to_string_lossy().into_owned();
    let spec = LoraSpec {
        rank: 4,
        alpha: 8.0,
        rank_pattern: patterns(&[("down_proj", 2), (r"layers\.0\..*[kv]_proj", 1)]),
        alpha_pattern: alphas.into_iter().map(|(name, alpha)| (name, alpha.into())).collect(),
        adapter_path: Some(path),
        ..LoraSpec::default()
    };
    let (mut continued, mut loaded) = (base.load(), base.load());
    continued.attach_lora_spec(&spec, 0).unwrap();
    loaded.load_adapter(&folder(&base, "patterns")).unwrap();
    assert_eq!(logits(&continued, &base, Adapter::On), logits(&loaded, &base, Adapter::On));
    let other = LoraSpec { rank_pattern: patterns(&[("down_proj", 2)]), ..spec.clone() };
    let refused = base.load().attach_lora_spec(&other, 0).unwrap_err().to_string();
    assert!(refused.contains("field `rank_pattern`: expected {\"down_proj\":2}"), "{refused}");
    let unused = LoraSpec { rank_pattern: patterns(&[("dawn_proj", 2)]), adapter_path: None, ..spec };
    let refused = base.load().attach_lora_spec(&unused, 0).unwrap_err().to_string();
    assert!(refused.contains("rankPattern: the pattern \"dawn_proj\" matches none"), "{refused}");
}

/// A larger rank computes the same values; a smaller rank has the product truncated by its singular values.
#[test]
fn an_adapter_continues_at_another_rank() {
    for (name, variant, rank) in [("llama", "dora-rslora", 2), ("llama", "patterns", 4)] {
        let [base, expected] = open(name, variant);
        let path = folder(&base, variant).to_string_lossy().into_owned();
        let targets = ["q_proj", "down_proj"].map(str::to_owned).to_vec();
        let is_dora = variant.starts_with("dora");
        let spec = |rank, alpha| LoraSpec {
            rank,
            alpha,
            dora: is_dora,
            target_modules: if is_dora { targets.clone() } else { vec!["all-linear".to_owned()] },
            adapter_path: Some(path.clone()),
            resize_adapter: true,
            ..LoraSpec::default()
        };
        for (rank, alpha) in [(rank, 5.0), (rank + 3, 7.0)] {
            let mut resized = base.load();
            resized.attach_lora_spec(&spec(rank, alpha), 3).unwrap();
            let error = max_error(&logits(&resized, &base, Adapter::On), expected.expected("logits"));
            assert!(error <= TOLERANCE, "{variant} at rank {rank}: {error:.2e}");
        }
        let mut fewer = base.load();
        fewer.attach_lora_spec(&spec(1, 2.0), 3).unwrap();
        assert_is_best_of_rank_1(&fewer, &folder(&base, variant), is_dora);
        let other = LoraSpec { dora: !is_dora, ..spec(rank, 5.0) };
        let refused = base.load().attach_lora_spec(&other, 0).unwrap_err().to_string();
        assert!(refused.contains("field `use_dora`"), "{refused}");
    }
}

/// Checks that the product of the first layer's `q_proj` is the stored product's first singular triple.
fn assert_is_best_of_rank_1(decoder: &Decoder, stored: &std::path::Path, is_dora: bool) {
    let stored: BTreeMap<String, Tensor> =
        Tensor::read_safetensors(stored.join("adapter_model.safetensors")).unwrap().into_iter().collect();
    let own: BTreeMap<String, Tensor> = decoder.trainable_parameters().into_iter().collect();
    let product = |tensors: &BTreeMap<String, Tensor>, scaling: f64| {
        let [a, b] = ["A", "B"].map(|matrix| {
            let module = "base_model.model.model.layers.0.self_attn.q_proj";
            tensors[&format!("{module}.lora_{matrix}.weight")].detach()
        });
        b.matmul(&a) * scaling
    };
    let scaling = if is_dora { 3.0 / 2f64.sqrt() } else { 8.0 / 4.0 };
    let (u, s, v) = product(&stored, scaling).svd(true, true);
    let first = |matrix: &Tensor| matrix.narrow(1, 0, 1);
    let best = first(&u).matmul(&first(&v).tr()) * s.get(0);
    let error = max_error(&product(&own, 2.0), &best);
    assert!(error <= 1e-5, "{error:.2e}");
    assert!(s.get(1).double_value(&[]) > 0.1, "something was left out");
}

#[test]
fn modules_to_save_start_as_the_base_and_those_that_cannot_be_are_refused() {
    let [base, _] = open("mistral", "saved");
    let spec = |names: &[&str]| LoraSpec {
        rank: 2,
        alpha: 4.0,
        target_modules: ["q_proj", "down_proj"].map(str::to_owned).to_vec(),
        modules_to_save: names.iter().map(|name| (*name).to_owned()).collect(),
        ..LoraSpec::default()
    };
    let mut decoder = base.load();
    let untrained = logits(&decoder, &base, Adapter::On);
    decoder.attach_lora_spec(&spec(&["lm_head", "embed_tokens", "norm"]), 1).unwrap();
    assert_eq!(logits(&decoder, &base, Adapter::On), untrained);
    let saved = decoder.trainable_parameters();
    let saved: Vec<&str> =
        saved.iter().map(|(name, _)| name.as_str()).filter(|name| !name.contains("lora_")).collect();
    let expected = ["model.embed_tokens", "model.norm", "lm_head", "model.layers.0.input_layernorm"];
    for module in expected {
        assert!(saved.contains(&format!("base_model.model.{module}.weight").as_str()), "{saved:?}");
    }
    assert_eq!(saved.len(), 3 + 2 * 2);

    let refused = |names: &[&str]| base.load().attach_lora_spec(&spec(names), 1).unwrap_err().to_string();
    for name in ["lm_heads", "down_proj"] {
        let message = refused(&["lm_head", name]);
        assert!(message.contains(&format!("modulesToSave: \"{name}\" is not the end of")), "{message}");
    }
    let tied = Fixture::open("qwen3", "expected.safetensors");
    let message = tied.load().attach_lora_spec(&spec(&["lm_head"]), 1).unwrap_err().to_string();
    assert!(message.contains("expected \"embed_tokens\", which trains both"), "{message}");

    let path = folder(&base, "saved").to_string_lossy().into_owned();
    let continued = |names: &[&str]| LoraSpec { adapter_path: Some(path.clone()), ..spec(names) };
    let all = ["lm_head", "embed_tokens", "input_layernorm", "model.norm"];
    for resize_adapter in [false, true] {
        let (mut loaded, mut again) = (base.load(), base.load());
        loaded.load_adapter(&folder(&base, "saved")).unwrap();
        again.attach_lora_spec(&LoraSpec { resize_adapter, ..continued(&all) }, 0).unwrap();
        assert_eq!(logits(&again, &base, Adapter::On), logits(&loaded, &base, Adapter::On));
    }
    let message = base.load().attach_lora_spec(&continued(&["lm_head"]), 0).unwrap_err().to_string();
    assert!(message.contains("field `modules_to_save`: expected {\"lm_head\"}"), "{message}");
}
