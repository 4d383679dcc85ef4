//! Vision-language models beside transformers, on the fixtures of `fixtures/vision/make.py`: positions, the
//! tower, log-probs, gradients of the text model, greedy completions of prompts with several images.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rlt_api::spec::LoraSpec;
use rlt_core::batch::{Batch, BatchSequence};
use rlt_core::engine::DetokenizeError;
use rlt_core::images::{ImageGrid, ImageLayout, PromptImage};
use rlt_core::loss::{Aggregation, Denominators, Gpg, LossInputs, Objective};
use rlt_core::mesh::SpShard;
use rlt_core::rows::Rows;
use rlt_core::sampling::SamplingParams;
use rlt_core::types::{Completion, Prompt, TokenId};
use rlt_torch::collectives::serve_store;
use rlt_trainer::model::{Adapter, Decoder, ExportOptions, LoadOptions, Weights};
use rlt_trainer::parallel::{RankEnvironment, Ranks, ShardedParameters};
use rlt_trainer::roles::actor::{Actor, ActorOptions, MicroBatch};
use rlt_trainer::roles::optim::{AdamW, AdamWOptions};
use rlt_trainer::roles::rollout::{Detokenizer, RolloutEngine, RolloutOptions, RolloutRequest};
use rlt_trainer::roles::update::{UpdatePlan, update};
use tch::Tensor;

const MODELS: [&str; 3] = ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"];
/// What two f32 implementations may differ by: sums of a few hundred products, added in another order.
const TOLERANCE: f64 = 1e-4;

struct Fixture {
    dir: PathBuf,
    tensors: BTreeMap<String, Tensor>,
}

impl Fixture {
    fn open(name: &str) -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vision").join(name);
        let tensors = Tensor::read_safetensors(dir.join("expected.safetensors")).unwrap();
        Self { dir, tensors: tensors.into_iter().collect() }
    }

    fn load(&self) -> Decoder {
        Decoder::load(&self.dir, &LoadOptions { trainable: true, ..LoadOptions::default() }).unwrap()
    }

    fn expected(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("{} has no {name}", self.dir.display()))
    }

    fn tokens(&self, name: &str) -> Vec<TokenId> {
        Vec::<i64>::try_from(self.expected(name)).unwrap().into_iter().map(|id| id as TokenId).collect()
    }

    /// A prompt with its images.
    fn prompt(&self, idx: usize) -> Arc<Prompt> {
        let pixels = self.expected(&format!("pixels.{idx}"));
        let mut start = 0;
        let image = |sides: Tensor| {
            let [rows, columns] = [0, 1].map(|side| sides.int64_value(&[side]) as usize);
            let grid = ImageGrid { frames: 1, rows, columns };
            let patches = pixels.narrow(0, start, grid.num_patches() as i64).flatten(0, 1);
            start += grid.num_patches() as i64;
            Arc::new(PromptImage { digest: start as u64, grid, patches: Vec::try_from(patches).unwrap() })
        };
        Arc::new(Prompt {
            row_idx: idx as u64,
            text: String::new(),
            messages: serde_json::Value::Null,
            tokens: self.tokens(&format!("prompt.{idx}")),
            data_source: String::new(),
            ground_truth: serde_json::Value::Null,
            extra_info: serde_json::Value::Null,
            images: self.expected(&format!("grids.{idx}")).unbind(0).into_iter().map(image).collect(),
        })
    }
}

impl Fixture {
    /// Two completions of a prompt with two images, and one of a prompt with one.
    fn batch(&self) -> Batch {
        let rows = [(0, 0), (0, 1), (1, 0)];
        let prompts = [0, 1].map(|idx| self.prompt(idx));
        let sequence = |(prompt, sample): (usize, usize)| BatchSequence {
            prompt: Arc::clone(&prompts[prompt]),
            sample_idx: 0,
            completion: self.tokens(&format!("completion.{prompt}.{sample}")),
        };
        let sequences: Vec<BatchSequence> = rows.map(sequence).into();
        let rows = Rows::unmasked(sequences.iter().map(|sequence| sequence.completion.len()));
        Batch {
            rewards: vec![0.0; sequences.len()],
            groups: vec![0, 0, 1],
            token_rewards: vec![0.0; rows.num_tokens()],
            greedy_rewards: None,
            reward_parts: Vec::new(),
            reward_names: Vec::new(),
            rollout_logprobs: vec![0.0; rows.num_tokens()],
            old_logprobs: None,
            ref_logprobs: None,
            values: None,
            returns: None,
            advantages: vec![1.0; rows.num_tokens()],
            importance_weights: None,
            sequences,
            rows,
        }
    }

    /// Log-probs of all completions by the fixture's logits.
    fn logprobs(&self) -> Vec<f64> {
        let of_sample = |(prompt, sample): (usize, usize)| {
            let logits = self.expected(&format!("logits.{prompt}.{sample}"));
            let completion = self.expected(&format!("completion.{prompt}.{sample}"));
            let (len, all) = (completion.numel() as i64, logits.size()[0]);
            let logprobs = logits.narrow(0, all - len - 1, len).log_softmax(-1, tch::Kind::Double);
            Vec::<f64>::try_from(logprobs.gather(1, &completion.unsqueeze(1), false).squeeze_dim(1)).unwrap()
        };
        [(0, 0), (0, 1), (1, 0)].into_iter().flat_map(of_sample).collect()
    }
}

fn actor(decoder: Decoder, activation_checkpointing: bool) -> Actor {
    let optimizer = AdamW::new(decoder.trainable_parameters(), AdamWOptions::default()).unwrap();
    Actor::new(decoder, optimizer, options(activation_checkpointing), Ranks::alone())
}

fn options(activation_checkpointing: bool) -> ActorOptions {
    ActorOptions { temperature: 1.0, head_chunk_tokens: 4, activation_checkpointing, max_grad_norm: 1.0 }
}

/// The mean negative log-likelihood of all tokens.
fn likelihood() -> Objective {
    Objective {
        policy: Gpg {}.into(),
        aggregation: Aggregation::TokenMean,
        kl: None,
        entropy_coefficient: 0.0,
        positive: None,
    }
}

fn max_error(got: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(got.size(), expected.size());
    (got - expected).abs().max().double_value(&[])
}

fn largest(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f64::max)
}

#[test]
fn positions_count_rows_and_columns_of_images_as_transformers_does() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let vision = fixture.load().config.vision.unwrap();
        for idx in [0, 1] {
            let prompt = fixture.prompt(idx);
            let grids = prompt.images.iter().map(|image| image.grid);
            let layout =
                ImageLayout::new(&prompt.tokens, grids, vision.image_token, vision.spatial_merge_size)
                    .unwrap();
            let got = Tensor::from_slice(&layout.positions.concat()).view([3, -1]);
            assert!(got.equal(fixture.expected(&format!("positions.{idx}"))), "{name}, prompt {idx}");
        }
    }
}

#[test]
fn the_tower_computes_what_transformers_computes() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let decoder = fixture.load();
        for idx in [0, 1] {
            let features = decoder.image_features(&fixture.prompt(idx).images);
            let error = max_error(&features, fixture.expected(&format!("features.{idx}")));
            println!("{name}, prompt {idx}: features differ by {error:.1e}");
            assert!(error <= TOLERANCE, "{name}, prompt {idx}: {error:.1e}");
        }
    }
}

/// All packed together, and one sequence a micro-batch.
#[test]
fn logprobs_and_gradients_are_those_of_transformers_however_prompts_are_packed() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let (batch, expected) = (fixture.batch(), fixture.logprobs());
        for (max_tokens, checkpointing) in [(usize::MAX, false), (usize::MAX, true), (90, false)] {
            let actor = actor(fixture.load(), checkpointing);
            let scores = actor.score(&batch, Adapter::On, max_tokens).unwrap();
            let error = largest(&scores.logprobs, &expected);
            assert!(error <= TOLERANCE, "{name}: log-probs differ by {error:.1e}");
            let by_gradient = check_gradients(&fixture, &actor, &batch, max_tokens);
            println!("{name}, {max_tokens} tokens: log-probs {error:.1e}, gradients {by_gradient:.1e}");
        }
    }
}

fn check_gradients(fixture: &Fixture, actor: &Actor, batch: &Batch, max_tokens: usize) -> f64 {
    let objective = likelihood();
    let rows: Vec<usize> = (0..batch.rows.num_rows()).collect();
    for micro_batch in MicroBatch::split(batch, &rows, &actor.decoder, max_tokens, SpShard::WHOLE).unwrap() {
        let advantages = batch.gather(&micro_batch.row_idxs, &batch.advantages);
        let inputs = LossInputs::new(&micro_batch.rows, &advantages);
        let loss = objective.prepare(inputs, &Denominators::of(&batch.rows)).unwrap();
        actor.accumulate(&micro_batch, &loss).unwrap();
    }
    let parameters = actor.decoder.trainable_parameters();
    assert!(parameters.iter().all(|(name, _)| !name.starts_with("visual.")), "the tower is frozen");
    let error = |(name, leaf): &(String, Tensor)| {
        let error = max_error(&leaf.grad(), fixture.expected(&format!("grad.{name}")));
        assert!(error <= TOLERANCE, "{name}: {error:.1e}");
        error
    };
    parameters.iter().map(error).fold(0.0, f64::max)
}

struct Silent;

impl Detokenizer for Silent {
    fn decode(&self, _: &[TokenId]) -> Result<String, DetokenizeError> {
        Ok(String::new())
    }
}

/// Completions, and how many sequences were preempted.
fn generate(
    decoder: &Decoder,
    options: RolloutOptions,
    requests: &[RolloutRequest],
) -> (Vec<Vec<Completion>>, usize) {
    let mut engine = RolloutEngine::new(options);
    engine.sync_weights(decoder, 0).unwrap();
    let mut go_on = |_| std::ops::ControlFlow::Continue(());
    let completions = engine.generate(decoder, requests, &Silent, &mut go_on).unwrap();
    (completions, engine.stats().num_preemptions)
}

fn request(prompt: &Prompt, seeds: u64, sampling: SamplingParams, max_new_tokens: usize) -> RolloutRequest {
    RolloutRequest {
        prompt: prompt.tokens.as_slice().into(),
        images: prompt.images.clone(),
        seeds: (0..seeds).collect(),
        sampling: SamplingParams { ignore_eos: true, ..sampling },
        max_new_tokens,
    }
}

/// Prompts prefilled whole, and in chunks that split images.
#[test]
fn greedy_completions_are_those_of_transformers() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let decoder = fixture.load();
        for max_prefill_tokens in [4096, 7] {
            let options = RolloutOptions { block_size: 4, max_prefill_tokens, ..RolloutOptions::default() };
            let prompts = [0, 1].map(|idx| fixture.prompt(idx));
            let requests = prompts.map(|prompt| request(&prompt, 1, SamplingParams::greedy(), 8));
            let (completions, _) = generate(&decoder, options, &requests);
            for (idx, samples) in completions.iter().enumerate() {
                assert_eq!(
                    samples[0].tokens,
                    fixture.tokens(&format!("greedy.{idx}")),
                    "{name}, prompt {idx}"
                );
            }
        }
    }
}

/// Random weights are as likely to draw one of the 4 tokens as any other of 128: of 3072 draws 96 would.
#[test]
fn the_rollout_never_samples_a_token_of_images_and_their_borders() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let decoder = fixture.load();
        let vision = decoder.config.vision.clone().unwrap();
        let banned =
            [vision.image_token, vision.video_token, vision.vision_start_token, vision.vision_end_token];
        let requests = [0, 1].map(|idx| request(&fixture.prompt(idx), 96, SamplingParams::default(), 16));
        let options = RolloutOptions { block_size: 4, ..RolloutOptions::default() };
        let (completions, _) = generate(&decoder, options, &requests);
        let sampled: Vec<TokenId> =
            completions.iter().flatten().flat_map(|sample| sample.tokens.iter().copied()).collect();
        assert!(sampled.len() > 1000, "{name}: {} tokens", sampled.len());
        assert!(!sampled.iter().any(|token| banned.contains(token)), "{name}");
    }
}

/// With a cache so small that sequences are preempted and computed again.
#[test]
fn the_rollout_reports_the_log_probs_of_the_actor() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let decoder = fixture.load();
        let prompts = [0, 1].map(|idx| fixture.prompt(idx));
        let requests = prompts.each_ref().map(|prompt| request(prompt, 4, SamplingParams::default(), 12));
        // 40 blocks of 4 tokens, f32 keys and values.
        let config = &decoder.config;
        let token_bytes = 4 * 2 * config.num_layers * config.num_kv_heads * config.head_dim;
        let max_cache_bytes = Some(40 * 4 * token_bytes);
        let options = RolloutOptions { block_size: 4, max_cache_bytes, ..RolloutOptions::default() };
        let (completions, num_preemptions) = generate(&decoder, options, &requests);
        assert!(num_preemptions > 0, "the cache is small");
        let mut batch = fixture.batch();
        let sampled = completions
            .iter()
            .zip(&prompts)
            .flat_map(|(samples, prompt)| samples.iter().map(|sample| (Arc::clone(prompt), sample.clone())));
        let sampled: Vec<_> = sampled.collect();
        batch.rows = Rows::unmasked(sampled.iter().map(|(_, sample)| sample.tokens.len()));
        batch.groups = (0..sampled.len()).map(|row| row / 4).collect();
        let rollout: Vec<f64> =
            sampled.iter().flat_map(|(_, sample)| &sample.rollout_logprobs).map(|l| f64::from(*l)).collect();
        let sequence = |(prompt, sample): (Arc<Prompt>, Completion)| BatchSequence {
            prompt,
            sample_idx: 0,
            completion: sample.tokens,
        };
        batch.sequences = sampled.into_iter().map(sequence).collect();
        let scores = actor(decoder, false).score(&batch, Adapter::On, usize::MAX).unwrap();
        let error = largest(&rollout, &scores.logprobs);
        println!("{name}: rollout and actor differ by {error:.1e}");
        assert!(error <= 2e-5, "{name}: rollout and actor differ by {error:.1e}");
    }
}

#[test]
fn an_export_holds_the_tower_as_it_came_and_computes_the_same() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let decoder = fixture.load();
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        decoder.export(folder, &ExportOptions { merge_lora: true, dtype: tch::Kind::Float }).unwrap();
        let names = |folder: &Path| -> BTreeSet<String> {
            let stored = Tensor::read_safetensors(folder.join("model.safetensors")).unwrap();
            stored.into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(folder), names(&fixture.dir), "{name}: names as transformers writes them");
        let again = Decoder::load(folder, &LoadOptions::default()).unwrap();
        assert_eq!(again.config, decoder.config);
        let prompt = fixture.prompt(0);
        assert!(again.image_features(&prompt.images).equal(&decoder.image_features(&prompt.images)));
        let batch = fixture.batch();
        let logprobs =
            |decoder| actor(decoder, false).score(&batch, Adapter::On, usize::MAX).unwrap().logprobs;
        let trainable = LoadOptions { trainable: true, ..LoadOptions::default() };
        let again = Decoder::load(folder, &trainable).unwrap();
        assert_eq!(logprobs(again), logprobs(decoder));
    }
}

/// What transformers has called the weights in memory since 4.52, as some checkpoints do on disk, Qwen3-VL's
/// among them, and what others call them.
#[test]
fn weights_under_either_names_are_the_same_model() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(fixture.dir.join("config.json"), folder.path().join("config.json")).unwrap();
        let of_memory = |name: &str| match name.strip_prefix("model.") {
            Some(rest) => format!("model.language_model.{rest}"),
            None if name.starts_with("visual.") => format!("model.{name}"),
            None => name.to_owned(),
        };
        let of_disk =
            |name: &str| name.replace("model.language_model.", "model.").replace("model.visual.", "visual.");
        let stored = Tensor::read_safetensors(fixture.dir.join("model.safetensors")).unwrap();
        let are_of_disk = stored.iter().any(|(name, _)| name.starts_with("visual."));
        assert_eq!(are_of_disk, name != "qwen3-vl", "names as published");
        let renamed = |name: String| if are_of_disk { of_memory(&name) } else { of_disk(&name) };
        let stored: Vec<_> = stored.into_iter().map(|(name, tensor)| (renamed(name), tensor)).collect();
        Tensor::write_safetensors(&stored, folder.path().join("model.safetensors")).unwrap();
        let again = Decoder::load(folder.path(), &LoadOptions::default()).unwrap();
        let images = fixture.prompt(0).images.clone();
        let decoder = fixture.load();
        assert!(again.image_features(&images).equal(&decoder.image_features(&images)));
        for ((name, got), (_, expected)) in again.named_parameters().iter().zip(decoder.named_parameters()) {
            assert!(got.equal(&expected), "{name}");
        }
    }
}

/// Gradients of the whole batch, gathered from two ranks that keep a shard each.
#[test]
fn two_ranks_with_shards_apply_the_update_of_one() {
    const NAME: &str = "qwen2.5-vl";
    let step = |actor: &mut Actor| {
        let batch = Fixture::open(NAME).batch();
        let plan = UpdatePlan {
            objective: likelihood(),
            groups_per_update: usize::MAX,
            num_epochs: 1,
            max_tokens: 200,
            learning_rate: 0.01,
            seed: 1,
        };
        let report = update(actor, &batch, &plan).unwrap();
        let scores = actor.score(&batch, Adapter::On, 200).unwrap();
        (report.updates.grad_norms[0], scores.logprobs)
    };
    let whole = step(&mut actor(Fixture::open(NAME).load(), false));
    let sharded = on_ranks(2, |ranks| {
        let weights = Weights::open(&Fixture::open(NAME).dir).unwrap();
        let trainable = LoadOptions { trainable: true, ..LoadOptions::default() };
        let mut decoder = Decoder::outline(weights.config(), &trainable).unwrap();
        decoder.read_vision(&weights).unwrap();
        let shards = ShardedParameters::new(&decoder, Rc::new(ranks.on_mesh(2).unwrap()), None).unwrap();
        shards.read(&weights).unwrap();
        let optimizer = AdamW::new(shards.pieces(), AdamWOptions::default()).unwrap();
        step(&mut Actor::new(decoder, optimizer, options(false), ranks.clone()).with_shards(shards))
    });
    for (norm, logprobs) in sharded {
        let error = largest(&logprobs, &whole.1);
        println!("gradient norms {norm} and {}, log-probs differ by {error:.1e}", whole.0);
        assert!((norm - whole.0).abs() <= 1e-4 * whole.0 && error <= TOLERANCE, "{norm}, {error:.1e}");
    }
}

/// Runs `body` on every rank, each a thread.
fn on_ranks<T: Send>(size: usize, body: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    let store = serve_store(0, 1, size).unwrap();
    let environment = |rank| RankEnvironment {
        rank,
        world_size: size,
        local_world_size: size,
        master_address: "localhost".into(),
        master_port: store.port(),
        attempt: 1,
    };
    let run = |rank| body(Ranks::join(&environment(rank), Duration::from_secs(60)).unwrap());
    thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> = (0..size).map(|rank| scope.spawn(move || run(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
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
