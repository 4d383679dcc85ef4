//! The fixtures of `fixtures/vision/make.py`, and what tests compute with them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rlt_core::batch::{Batch, BatchSequence};
use rlt_core::engine::DetokenizeError;
use rlt_core::fixtures;
use rlt_core::images::{ImageGrid, PromptImage};
use rlt_core::loss::{Aggregation, Denominators, Gpg, LossInputs, Objective};
use rlt_core::sampling::SamplingParams;
use rlt_core::types::{Completion, Prompt, TokenId};
use rlt_decoder::{Adapter, Decoder, LoadOptions};
use rlt_engine::{Detokenizer, Engine, EngineOptions, Request};
use rlt_layout::AxisPlace;
use rlt_parallel::{DecoderUnits, RankEnvironment, Ranks};
use rlt_torch::collectives::serve_store;
use rlt_trainer::roles::actor::update::{UpdatePlan, update};
use rlt_trainer::roles::actor::{Actor, ActorOptions};
use rlt_trainer::roles::learner::MicroBatch;
use rlt_trainer::roles::optim::{AdamW, AdamWOptions};
use tch::{Device, Tensor};

pub(crate) const MODELS: [&str; 3] = ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"];
/// Tolerance between two f32 implementations, which add a few hundred products in another order.
pub(crate) const TOLERANCE: f64 = 1e-4;

pub(crate) struct Fixture {
    pub(crate) dir: PathBuf,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

impl Fixture {
    pub(crate) fn open(name: &str) -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vision").join(name);
        let tensors = Tensor::read_safetensors(dir.join("expected.safetensors")).unwrap();
        Self { dir, tensors: tensors.into_iter().collect() }
    }

    /// Opens a fixture with the values of the model with its adapter, by the names of the trainer.
    pub(crate) fn adapted(name: &str) -> Self {
        let mut fixture = Self::open(name);
        let path = fixture.dir.join("adapter/expected.safetensors");
        let own = |name: String| {
            name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")
        };
        let tensors = Tensor::read_safetensors(path).unwrap();
        fixture.tensors.extend(tensors.into_iter().map(|(name, tensor)| (own(name), tensor)));
        fixture
    }

    pub(crate) fn load(&self) -> Decoder {
        self.load_on(Device::Cpu)
    }

    pub(crate) fn load_on(&self, device: Device) -> Decoder {
        let options = LoadOptions { trainable: true, device, ..LoadOptions::default() };
        Decoder::load(&self.dir, &options).unwrap()
    }

    pub(crate) fn expected(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("{} has no {name}", self.dir.display()))
    }

    pub(crate) fn tokens(&self, name: &str) -> Vec<TokenId> {
        Vec::<i64>::try_from(self.expected(name)).unwrap().into_iter().map(|id| id as TokenId).collect()
    }

    /// A prompt with its images.
    pub(crate) fn prompt(&self, idx: usize) -> Arc<Prompt> {
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
            images: self.expected(&format!("grids.{idx}")).unbind(0).into_iter().map(image).collect(),
            ..Prompt::from_tokens(idx as u64, self.tokens(&format!("prompt.{idx}")))
        })
    }
}

impl Fixture {
    /// Two completions of a prompt with two images, and one of a prompt with one.
    pub(crate) fn batch(&self) -> Batch {
        let rows = [(0, 0), (0, 1), (1, 0)];
        let prompts = [0, 1].map(|idx| self.prompt(idx));
        let sequence = |(prompt, sample): (usize, usize)| BatchSequence {
            prompt: Arc::clone(&prompts[prompt]),
            sample_idx: 0,
            completion: self.tokens(&format!("completion.{prompt}.{sample}")),
        };
        let sequences: Vec<BatchSequence> = rows.map(sequence).into();
        of_sequences(sequences, vec![0, 0, 1])
    }

    /// Two completions of a prompt without images.
    pub(crate) fn text_batch(&self) -> Batch {
        let prompt = fixtures::prompt(&self.tokens("completion.0.0"));
        let sequence = |completion: &str| BatchSequence {
            prompt: Arc::clone(&prompt),
            sample_idx: 0,
            completion: self.tokens(completion),
        };
        of_sequences(["completion.0.1", "completion.1.0"].map(sequence).into(), vec![0, 1])
    }

    /// Log-probs of all completions by the fixture's logits.
    pub(crate) fn logprobs(&self) -> Vec<f64> {
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

pub(crate) fn actor(decoder: Decoder, activation_checkpointing: bool) -> Actor {
    let optimizer = AdamW::new(decoder.trainable_parameters(), AdamWOptions::default()).unwrap();
    Actor::new(decoder, optimizer, options(activation_checkpointing), Ranks::alone())
}

pub(crate) fn options(activation_checkpointing: bool) -> ActorOptions {
    ActorOptions { temperature: 1.0, head_chunk_tokens: 4, activation_checkpointing, max_grad_norm: 1.0 }
}

/// The mean negative log-likelihood of all tokens.
pub(crate) fn likelihood() -> Objective {
    Objective {
        policy: Gpg {}.into(),
        aggregation: Aggregation::TokenMean,
        kl: None,
        entropy_coefficient: 0.0,
        positive: None,
    }
}

pub(crate) fn max_error(got: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(got.size(), expected.size());
    (got.to_device(expected.device()) - expected).abs().max().double_value(&[])
}

pub(crate) fn largest(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f64::max)
}

/// Adds the gradients of a batch.
pub(crate) fn accumulate(actor: &Actor, batch: &Batch, max_tokens: usize) {
    let objective = likelihood();
    let rows: Vec<usize> = (0..batch.rows.num_rows()).collect();
    for micro_batch in
        MicroBatch::split(batch, &rows, actor.learner.decoder(), max_tokens, AxisPlace::ALONE).unwrap()
    {
        let advantages = batch.gather(&micro_batch.row_idxs, &batch.advantages);
        let inputs = LossInputs::new(&micro_batch.rows, &advantages);
        let loss = objective.prepare(inputs, &Denominators::of(&batch.rows)).unwrap();
        actor.accumulate(&micro_batch, &loss).unwrap();
    }
}

pub(crate) fn check_gradients(fixture: &Fixture, actor: &Actor, batch: &Batch, max_tokens: usize) -> f64 {
    accumulate(actor, batch, max_tokens);
    let parameters = actor.learner.decoder().trainable_parameters();
    let error = |(name, leaf): &(String, Tensor)| {
        let error = max_error(&leaf.grad(), fixture.expected(&format!("grad.{name}")));
        assert!(error <= TOLERANCE, "{name}: {error:.1e}");
        error
    };
    parameters.iter().map(error).fold(0.0, f64::max)
}

/// Runs `body` on every rank, each a thread.
pub(crate) fn on_ranks<T: Send>(size: usize, body: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    let store = serve_store(0, 1, size).unwrap();
    let environment = |rank| RankEnvironment {
        rank,
        world_size: size,
        local_world_size: size,
        master_address: "localhost".into(),
        master_port: store.port(),
        attempt: 1,
        key: None,
    };
    let run = |rank| body(Ranks::join(&environment(rank), Duration::from_secs(60)).unwrap());
    thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> = (0..size).map(|rank| scope.spawn(move || run(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

struct Silent;

impl Detokenizer for Silent {
    fn decode(&self, _: &[TokenId]) -> Result<String, DetokenizeError> {
        Ok(String::new())
    }
}

/// Generates completions, and returns them with the number of preemptions.
pub(crate) fn generate(
    decoder: &Decoder,
    options: EngineOptions,
    requests: &[Request],
) -> (Vec<Vec<Completion>>, usize) {
    let mut engine = Engine::new(options);
    engine.sync_weights(decoder, 0).unwrap();
    let mut go_on = |_| ControlFlow::Continue(());
    let completions = engine.generate(decoder, requests, &Silent, &mut go_on).unwrap();
    (completions, engine.stats().num_preemptions)
}

pub(crate) fn request(
    prompt: &Prompt,
    seeds: u64,
    sampling: SamplingParams,
    max_new_tokens: usize,
) -> Request {
    Request {
        prompt: prompt.tokens.as_slice().into(),
        images: prompt.images.clone(),
        seeds: (0..seeds).collect(),
        sampling: SamplingParams { ignore_eos: true, ..sampling },
        max_new_tokens,
    }
}

/// Makes an update on the batch of a fixture. Returns the norm of its gradient and the log-probs after it.
pub(crate) fn step(actor: &mut Actor, name: &str) -> (f64, Vec<f64>) {
    step_on(actor, &Fixture::open(name).batch())
}

/// Makes an update on `batch`.
pub(crate) fn step_on(actor: &mut Actor, batch: &Batch) -> (f64, Vec<f64>) {
    let plan = UpdatePlan {
        objective: likelihood(),
        groups_per_update: usize::MAX,
        num_epochs: 1,
        max_tokens: 200,
        learning_rate: 0.01,
        seed: 1,
    };
    let report = update(actor, batch, &plan).unwrap();
    let scores = actor.score(batch, Adapter::On, 200).unwrap();
    (report.updates.grad_norms[0], scores.logprobs)
}

/// Four samples of a prompt as a batch, with the log-probs that the engine reports.
pub(crate) fn sample<'a>(
    engine: &mut Engine,
    policy: impl Into<DecoderUnits<'a>>,
    prompt: &Arc<Prompt>,
) -> (Batch, Vec<f64>) {
    let requests = [request(prompt, 4, SamplingParams::default(), 6)];
    let mut go_on = |_| ControlFlow::Continue(());
    let completions = engine.generate(policy, &requests, &Silent, &mut go_on).unwrap();
    batch_of(&completions, std::slice::from_ref(prompt))
}

/// Completions of each prompt as a batch, with the log-probs that the engine reported.
pub(crate) fn batch_of(completions: &[Vec<Completion>], prompts: &[Arc<Prompt>]) -> (Batch, Vec<f64>) {
    let of_prompt = completions.iter().zip(prompts).enumerate();
    let sampled: Vec<(usize, &Arc<Prompt>, &Completion)> = of_prompt
        .flat_map(|(group, (samples, prompt))| samples.iter().map(move |sample| (group, prompt, sample)))
        .collect();
    let sequence = |(_, prompt, sample): &(usize, &Arc<Prompt>, &Completion)| BatchSequence {
        prompt: Arc::clone(prompt),
        sample_idx: 0,
        completion: sample.tokens.clone(),
    };
    let reported = sampled.iter().flat_map(|(.., sample)| &sample.rollout_logprobs);
    let rollout: Vec<f64> = reported.map(|logprob| f64::from(*logprob)).collect();
    let groups = sampled.iter().map(|(group, ..)| *group).collect();
    (of_sequences(sampled.iter().map(sequence).collect(), groups), rollout)
}

fn of_sequences(sequences: Vec<BatchSequence>, groups: Vec<usize>) -> Batch {
    let batch = fixtures::batch(sequences, groups);
    Batch { advantages: vec![1.0; batch.rows.num_tokens()], ..batch }
}
