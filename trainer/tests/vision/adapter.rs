//! Adapters of text model and vision tower: compared with PEFT's, in rollout, export and on several ranks.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use rlt_api::spec::{LoraSpec, VlmLora};
use rlt_decoder::{Adapter, Decoder, ExportOptions, LoadOptions, LoraError, Weights};
use rlt_engine::{Engine, EngineOptions};
use rlt_parallel::{Ranks, ShardedParameters};
use rlt_trainer::roles::actor::Actor;
use rlt_trainer::roles::optim::{AdamW, AdamWOptions};
use tch::Tensor;

use super::fixture::{
    Fixture, MODELS, TOLERANCE, actor, check_gradients, largest, on_ranks, options, sample, step,
};

/// The frozen model of a fixture with PEFT's adapter of all linear layers.
fn adapted(name: &str) -> (Fixture, Decoder) {
    let fixture = Fixture::adapted(name);
    let mut decoder = Decoder::load(&fixture.dir, &LoadOptions::default()).unwrap();
    decoder.load_adapter(&fixture.dir.join("adapter")).unwrap();
    (fixture, decoder)
}

fn of(parts: VlmLora) -> LoraSpec {
    LoraSpec { rank: 4, vlm_lora: parts, ..LoraSpec::default() }
}

fn is_of_tower(name: &str) -> bool {
    name.starts_with("base_model.model.visual.")
}

fn logprobs(decoder: Decoder, fixture: &Fixture) -> Vec<f64> {
    actor(decoder, false).score(&fixture.batch(), Adapter::On, usize::MAX).unwrap().logprobs
}

fn stored(folder: &Path) -> BTreeMap<String, Tensor> {
    Tensor::read_safetensors(folder.join("adapter_model.safetensors")).unwrap().into_iter().collect()
}

/// Sequences are packed together or one per micro-batch, and images may be computed again in the backward
/// pass.
#[test]
fn an_adapter_of_peft_gives_its_log_probs_and_gradients_in_tower_and_text() {
    for name in MODELS {
        for (max_tokens, checkpointing) in [(usize::MAX, false), (usize::MAX, true), (90, true)] {
            let (fixture, decoder) = adapted(name);
            assert!(decoder.trainable_parameters().iter().any(|(name, _)| is_of_tower(name)), "{name}");
            let actor = actor(decoder, checkpointing);
            let batch = fixture.batch();
            let scores = actor.score(&batch, Adapter::On, max_tokens).unwrap();
            let error = largest(&scores.logprobs, &fixture.logprobs());
            let by_gradient = check_gradients(&fixture, &actor, &batch, max_tokens);
            println!("{name}, {max_tokens} tokens: log-probs {error:.1e}, gradients {by_gradient:.1e}");
            assert!(error <= TOLERANCE, "{name}: log-probs differ by {error:.1e}");
            let base = actor.score(&batch, Adapter::Off, max_tokens).unwrap();
            let error = largest(&base.logprobs, &Fixture::open(name).logprobs());
            assert!(error <= TOLERANCE, "{name}: without the adapter {error:.1e}");
        }
    }
}

#[test]
fn the_file_of_an_adapter_is_the_one_that_peft_wrote() {
    for name in MODELS {
        let (fixture, decoder) = adapted(name);
        let folder = tempfile::tempdir().unwrap();
        decoder.save_adapter(folder.path(), None).unwrap();
        let (own, of_peft) = (stored(folder.path()), stored(&fixture.dir.join("adapter")));
        assert_eq!(own.keys().collect::<Vec<_>>(), of_peft.keys().collect::<Vec<_>>(), "{name}");
        assert!(own.iter().all(|(name, tensor)| tensor.equal(&of_peft[name])), "{name}");
        let flag = "it adapts no vision tower without `--enable-tower-connector-lora`";
        assert_eq!(decoder.not_served_by_vllm(), [flag], "{name}");
    }
}

#[test]
fn weights_with_the_adapter_folded_in_compute_the_same() {
    for name in MODELS {
        let (fixture, decoder) = adapted(name);
        let folder = tempfile::tempdir().unwrap();
        let merged = ExportOptions { merge_lora: true, dtype: tch::Kind::Float };
        decoder.export(folder.path(), &merged).unwrap();
        let trainable = LoadOptions { trainable: true, ..LoadOptions::default() };
        let again = Decoder::load(folder.path(), &trainable).unwrap();
        let error = largest(&logprobs(again, &fixture), &fixture.logprobs());
        assert!(error <= TOLERANCE, "{name}: {error:.1e}");
    }
}

/// Samples before and after an update, during which the engine sleeps.
#[test]
fn the_rollout_samples_with_the_towers_present_adapter() {
    for (name, merges) in MODELS.into_iter().flat_map(|name| [(name, true), (name, false)]) {
        let (_, decoder) = adapted(name);
        let mut actor = actor(decoder, false);
        let options = EngineOptions { block_size: 4, merge_lora: merges, ..EngineOptions::default() };
        let mut engine = Engine::new(options);
        let mut seen = Vec::new();
        for version in 0..2 {
            engine.sync_weights(actor.learner.decoder(), version).unwrap();
            let prompt = Fixture::open(name).prompt(0);
            let (batch, rollout) = sample(&mut engine, actor.learner.decoder(), &prompt);
            let scores = actor.score(&batch, Adapter::On, usize::MAX).unwrap();
            let error = largest(&rollout, &scores.logprobs);
            assert!(error <= 5e-5, "{name}, merged {merges}, version {version}: {error:.1e}");
            engine.sleep();
            step(&mut actor, name);
            seen.push(actor.learner.decoder().image_features(&prompt.images, Adapter::On));
        }
        assert!(!seen[0].equal(&seen[1]), "{name}: updates change the features");
    }
}

/// Update of each rank: the norm of the gradient, and the log-probs after it.
#[test]
fn two_ranks_train_the_adapter_of_one_with_shards_and_without() {
    const NAME: &str = "qwen3-vl";
    let by_unit = |ranks: &Ranks| {
        let weights = Weights::open(&Fixture::open(NAME).dir).unwrap();
        let mut decoder = Decoder::meta(weights.config(), &LoadOptions::default()).unwrap();
        decoder.read_vision(&weights).unwrap();
        decoder.load_adapter(&Fixture::open(NAME).dir.join("adapter")).unwrap();
        let shards = ShardedParameters::new(&decoder, Rc::new(ranks.on_mesh(2).unwrap()), None).unwrap();
        shards.read(&weights).unwrap();
        let optimizer = AdamW::new(shards.local_shards(), AdamWOptions::default()).unwrap();
        Actor::new(decoder, optimizer, options(true), ranks.clone()).with_shards(shards)
    };
    let whole = |ranks: &Ranks| {
        let (_, decoder) = adapted(NAME);
        let optimizer = AdamW::new(decoder.trainable_parameters(), AdamWOptions::default()).unwrap();
        Actor::new(decoder, optimizer, options(false), ranks.clone())
    };
    let alone = step(&mut whole(&Ranks::alone()), NAME);
    let sharded = on_ranks(2, |ranks| step(&mut by_unit(&ranks), NAME));
    let replicated = on_ranks(2, |ranks| step(&mut whole(&ranks), NAME));
    for (norm, logprobs) in sharded.into_iter().chain(replicated) {
        let error = largest(&logprobs, &alone.1);
        println!("gradient norms {norm} and {}, log-probs differ by {error:.1e}", alone.0);
        assert!((norm - alone.0).abs() <= 1e-4 * alone.0 && error <= TOLERANCE, "{norm}, {error:.1e}");
    }
}

/// A sharded engine copies the adapter, merged or not, at every sync.
#[test]
fn an_engine_of_a_sharded_policy_samples_with_the_present_adapter_of_the_tower() {
    const NAME: &str = "qwen3-vl";
    for merges in [true, false] {
        on_ranks(2, |ranks| {
            let weights = Weights::open(&Fixture::open(NAME).dir).unwrap();
            let mut decoder = Decoder::meta(weights.config(), &LoadOptions::default()).unwrap();
            decoder.read_vision(&weights).unwrap();
            decoder.load_adapter(&Fixture::open(NAME).dir.join("adapter")).unwrap();
            let shards = ShardedParameters::new(&decoder, Rc::new(ranks.on_mesh(2).unwrap()), None).unwrap();
            shards.read(&weights).unwrap();
            let optimizer = AdamW::new(shards.local_shards(), AdamWOptions::default()).unwrap();
            let mut actor = Actor::new(decoder, optimizer, options(false), ranks.clone()).with_shards(shards);
            let options = EngineOptions { block_size: 4, merge_lora: merges, ..EngineOptions::default() };
            let mut engine = Engine::new(options);
            for version in 0..2 {
                engine.sync_weights(actor.learner.units(), version).unwrap();
                let (batch, rollout) =
                    sample(&mut engine, actor.learner.units(), &Fixture::open(NAME).prompt(0));
                let scores = actor.score(&batch, Adapter::On, usize::MAX).unwrap();
                let error = largest(&rollout, &scores.logprobs);
                assert!(error <= 5e-5, "merged {merges}, version {version}: {error:.1e}");
                engine.sleep();
                step(&mut actor, NAME);
            }
        });
    }
}

#[test]
fn dropout_in_the_tower_drops_the_same_where_images_are_computed_again() {
    let gradients = |checkpointing: bool| {
        let fixture = Fixture::open("qwen2-vl");
        let mut decoder = Decoder::load(&fixture.dir, &LoadOptions::default()).unwrap();
        let spec = LoraSpec { dropout: 0.3, ..of(VlmLora::Vision) };
        decoder.attach_lora_spec(&spec, 3).unwrap();
        let mut actor = actor(decoder, checkpointing);
        step(&mut actor, "qwen2-vl").0
    };
    assert!((gradients(false) - gradients(true)).abs() < 1e-6 * gradients(true));
}

#[test]
fn parts_choose_what_is_adapted_and_a_model_without_a_tower_has_one_part() {
    let attached = |spec: &LoraSpec| {
        let mut decoder = Fixture::open("qwen2.5-vl").load();
        decoder.attach_lora_spec(spec, 3)?;
        let trained = decoder.trainable_parameters();
        Ok::<_, LoraError>(trained.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
    };
    let [text, vision, both] =
        [VlmLora::Text, VlmLora::Vision, VlmLora::Both].map(|p| attached(&of(p)).unwrap());
    assert!(!text.iter().any(|name| is_of_tower(name)) && vision.iter().all(|name| is_of_tower(name)));
    assert_eq!(both.len(), text.len() + vision.len());
    // Two blocks of five linear layers, and two of the merger.
    assert_eq!(vision.len(), 2 * (2 * 5 + 2));
    let only = LoraSpec { target_modules: vec!["attn.qkv".into()], ..of(VlmLora::Both) };
    assert_eq!(attached(&only).unwrap().len(), 4);
    let only = LoraSpec { target_pattern: Some(r"model\.visual\.merger\..*".into()), ..of(VlmLora::Both) };
    assert_eq!(attached(&only).unwrap().len(), 4);
    let continued = |parts: VlmLora| {
        let folder = Fixture::open("qwen2.5-vl").dir.join("adapter").display().to_string();
        attached(&LoraSpec { rank: 3, alpha: 6.0, adapter_path: Some(folder), ..of(parts) })
    };
    assert_eq!(continued(VlmLora::Both).unwrap().len(), both.len());
    let error = continued(VlmLora::Text).unwrap_err().to_string();
    assert!(error.ends_with("`target_modules`: expected modules of Text (vlmLora), got of Both"), "{error}");
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/qwen2");
    let mut text = Decoder::load(&text, &LoadOptions::default()).unwrap();
    let error = text.attach_lora_spec(&of(VlmLora::Both), 3).unwrap_err().to_string();
    assert!(error.contains("vlmLora: expected Text, as the model has no vision tower, got Both"), "{error}");
}

/// PEFT names modules as transformers has them in memory, and the tower has modules of the same last names.
#[test]
fn an_adapter_is_on_the_text_model_alone_and_is_stored_under_its_name_in_transformers() {
    let fixture = Fixture::open("qwen2.5-vl");
    let adapted = || {
        let mut decoder = fixture.load();
        decoder.attach_lora_spec(&LoraSpec::default(), 3).unwrap();
        decoder
    };
    let decoder = adapted();
    for (_, mut leaf) in decoder.trainable_parameters() {
        let _ = tch::no_grad(|| leaf.fill_(0.1));
    }
    let folder = tempfile::tempdir().unwrap();
    decoder.save_adapter(folder.path(), None).unwrap();
    let stored = Tensor::read_safetensors(folder.path().join("adapter_model.safetensors")).unwrap();
    assert!(!stored.is_empty());
    for (name, _) in &stored {
        assert!(name.starts_with("base_model.model.model.language_model.layers."), "{name}");
    }
    let config = std::fs::read_to_string(folder.path().join("adapter_config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    let targets = config["target_modules"].as_array().unwrap();
    assert!(targets.iter().all(|one| one.as_str().unwrap().starts_with("model.language_model.layers.")));
    let mut again = fixture.load();
    again.load_adapter(folder.path()).unwrap();
    let batch = fixture.batch();
    let logprobs = |decoder| actor(decoder, false).score(&batch, Adapter::On, usize::MAX).unwrap().logprobs;
    let expected = logprobs(decoder);
    assert_eq!(logprobs(again), expected);
    assert!(largest(&logprobs(adapted()), &expected) > 1e-3, "the adapter changes log-probs");
}
