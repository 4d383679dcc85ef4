//! Decoding on a GPU: the batch's state lives there and is changed in place, and a step is launched before
//! the tokens of the one before are read.
//!
//! ```text
//! host     plan n+1, write what changes    read the tokens of n     plan n+2 ...
//! device   ... step n                      step n+1                 ...
//! ```
//! A step is one copy of what changed to the device, launches, and one copy of tokens and log-probs to
//! pinned memory, for which the host waits while the next step runs. The launches of a number of rows (1, 2,
//! 4, 8 and so on) are captured as a graph when they come for the second time. [`rows`] decides what is
//! written where, [`layers`] launches. No policy of scheduling lives here.

mod generate;
pub(super) use generate::run;
mod layers;
mod prefill;
mod rows;

use std::collections::{HashMap, VecDeque};

use rlt_core::engine::Sequence;
use rlt_core::sampling::SamplingParams;
use rlt_torch::Error;
use rlt_torch::cuda::driver::{Attribute, Driver};
use rlt_torch::cuda::{
    Advance, ApplyChanges, Event, Graph, Kernels, SAMPLING_ROW_WORDS, Sample, SamplingRow, Stream, pinned,
    sampling_workspace_bytes,
};
use tch::{Device, Kind, Tensor};

use super::kv_cache::KvCache;
use super::sampler::Drawn;
use super::weights::RolloutWeights;
use layers::{Buffers, Inputs, Model};
use rows::{Layout, PerRow, Rows};

/// Steps that are under way at the same time: one that runs, and the next one.
const STEPS_UNDER_WAY: usize = 2;

/// Decodes on a GPU, in one call of `generate`.
pub(super) struct DeviceDecoder<'a> {
    model: Model<'a>,
    cache: &'a mut KvCache,
    stream: Stream,
    layout: Layout,
    rows: Rows,
    /// i32 words, see [`Layout`].
    state: Tensor,
    /// i32, what [`ApplyChanges`] takes.
    changes: Tensor,
    /// The same in pinned memory, for each step under way.
    staged_changes: Vec<Tensor>,
    /// i32 `[2, max_rows]`: tokens drawn, and the bits of their log-probs.
    drawn: Tensor,
    /// The same in pinned memory, for each step under way.
    read_back: Vec<Tensor>,
    is_read: Vec<Event>,
    /// Pinned memory from which prompts are copied, with the number of the step that they come before.
    staged: VecDeque<(usize, Tensor)>,
    buffers: Buffers,
    logits: Tensor,
    sampling_workspace: Tensor,
    passes: HashMap<usize, Pass>,
    uses_graphs: bool,
    num_steps: usize,
}

/// The decode of a number of rows.
struct Pass {
    inputs: Inputs,
    buffers: Buffers,
    logits: Tensor,
    params: Tensor,
    steps: Tensor,
    seen: Option<Tensor>,
    tokens: Tensor,
    logprobs: Tensor,
    graph: Option<Graph>,
    /// Whether it has run, so that libraries have what they allocate.
    has_run: bool,
}

/// A step whose tokens are not read yet.
pub(super) struct Launched {
    /// Where they will lie.
    place: usize,
    /// The row of each sequence that ran.
    rows: Vec<usize>,
}

/// What bounds a decoder.
pub(super) struct Bounds {
    pub(super) max_rows: usize,
    pub(super) max_blocks: usize,
    /// Whether a request penalises tokens that occurred.
    pub(super) has_penalty: bool,
    pub(super) uses_graphs: bool,
}

/// Whether sequences of such weights are decoded here.
pub(super) fn is_for(weights: &RolloutWeights) -> bool {
    weights.frame.device().is_cuda() && !weights.is_sliced() && layers::supports(&weights.frame.config)
}

impl<'a> DeviceDecoder<'a> {
    /// Takes the memory of a decoder on the device of `weights`; work of this thread's present stream is done
    /// before its own begins.
    pub(super) fn new(
        weights: &'a RolloutWeights,
        cache: &'a mut KvCache,
        bounds: &Bounds,
    ) -> Result<Self, Error> {
        let Device::Cuda(device) = weights.frame.device() else {
            let (expected, got) = ("weights on a GPU".into(), format!("{:?}", weights.frame.device()));
            return Err(Error::Argument { act: "decoding on a device", expected, got });
        };
        let stream = Stream::from_pool(device)?;
        follow(&stream, &Stream::current(device)?)?;
        let _on_stream = stream.enter()?;
        let kernels = Kernels::load(device)?;
        let multiprocessors = Driver::get()?.attribute(device, Attribute::MultiprocessorCount)?;
        let Some(model) = Model::new(kernels, weights, multiprocessors.max(1) as usize) else {
            let expected = "an activation that our kernels have".into();
            let got = format!("{:?}", weights.frame.config.hidden_activation);
            return Err(Error::Argument { act: "decoding on a device", expected, got });
        };
        let (vocab_size, block_size) = (model.vocab_size(), cache.block_size());
        let layout = Layout {
            max_rows: bounds.max_rows,
            max_blocks: bounds.max_blocks,
            seen_words: if bounds.has_penalty { vocab_size.div_ceil(32) } else { 0 },
            block_size,
        };
        let rows = Rows::new(layout);
        let (max_rows, change_words) = (bounds.max_rows as i64, layout.max_change_words() as i64);
        let ints = |size: &[i64]| Tensor::empty(size, (Kind::Int, model.device()));
        let for_each_step = |size: &[i64]| -> Result<Vec<Tensor>, Error> {
            (0..STEPS_UNDER_WAY).map(|_| pinned(size, Kind::Int)).collect()
        };
        let workspace = sampling_workspace_bytes(bounds.max_rows, vocab_size) / size_of::<f32>();
        let buffers = model.buffers(bounds.max_rows);
        let logits_size = [max_rows, vocab_size as i64];
        Ok(Self {
            state: Tensor::from_slice(&rows.empty_state()).to_device(model.device()),
            changes: ints(&[change_words]),
            staged_changes: for_each_step(&[change_words])?,
            drawn: ints(&[2, max_rows]),
            read_back: for_each_step(&[2, max_rows])?,
            is_read: (0..STEPS_UNDER_WAY).map(|_| Event::new(device)).collect::<Result<_, _>>()?,
            logits: Tensor::empty(logits_size, (weights.frame.compute_kind(), model.device())),
            sampling_workspace: Tensor::empty([workspace as i64], (Kind::Float, model.device())),
            staged: VecDeque::new(),
            passes: HashMap::new(),
            uses_graphs: bounds.uses_graphs,
            num_steps: 0,
            buffers,
            model,
            cache,
            stream,
            layout,
            rows,
        })
    }

    /// Launches the decode of `running`: each sequence's last token is fed in, and the next one drawn.
    pub(super) fn launch<'p>(
        &mut self,
        running: &[Sequence],
        params: &dyn Fn(&Sequence) -> &'p SamplingParams,
    ) -> Result<Launched, Error> {
        let _on_stream = self.stream.enter()?;
        let place = self.num_steps % STEPS_UNDER_WAY;
        self.num_steps += 1;
        let parameters = |sequence: &Sequence| sampling_words(sequence.seed, params(sequence));
        let changes = self.rows.follow(running, &parameters);
        // Whoever was launched from here before has been read, so its copy is over.
        let mut staged = self.staged_changes[place].narrow(0, 0, changes.words().len() as i64);
        rlt_torch::i32_slice_mut(&mut staged)?.copy_from_slice(changes.words());
        self.stream.copy_to_device(&self.changes.narrow(0, 0, staged.size()[0]), &staged)?;
        self.decode(self.layout.bucket(running.len()))?;
        self.stream.copy_to_host(&self.read_back[place], &self.drawn)?;
        self.is_read[place].record(&self.stream)?;
        Ok(Launched { place, rows: self.rows.rows_of(running) })
    }

    /// Waits for the tokens and log-probs of a step, in the order of the sequences that ran. A log-prob is
    /// NaN where logits were not finite.
    pub(super) fn read(&self, launched: &Launched) -> Result<Vec<Drawn>, Error> {
        self.is_read[launched.place].synchronize()?;
        let words = rlt_torch::i32_slice(&self.read_back[launched.place])?;
        let (tokens, logprobs) = words.split_at(self.layout.max_rows);
        let drawn =
            |&row: &usize| Drawn { token: tokens[row] as u32, logprob: f32::from_bits(logprobs[row] as u32) };
        Ok(launched.rows.iter().map(drawn).collect())
    }

    /// One step of the first `rows` rows: as a graph where it has run before.
    fn decode(&mut self, rows: usize) -> Result<(), Error> {
        let mut pass = match self.passes.remove(&rows) {
            Some(pass) => pass,
            None => self.pass(rows),
        };
        if !self.uses_graphs || !pass.has_run {
            self.launch_pass(&pass)?;
            pass.has_run = true;
        } else {
            let graph = match pass.graph.take() {
                Some(graph) => graph,
                None => {
                    let stream = self.stream;
                    Graph::capture(&stream, || self.launch_pass(&pass))?
                }
            };
            graph.launch(&self.stream)?;
            pass.graph = Some(graph);
        }
        self.passes.insert(rows, pass);
        Ok(())
    }

    fn launch_pass(&mut self, pass: &Pass) -> Result<(), Error> {
        let kernels = self.model.kernels.clone();
        ApplyChanges { changes: &self.changes, state: &self.state }.launch(&kernels)?;
        let normed = self.model.run(&pass.inputs, self.cache, &pass.buffers)?;
        self.model.logits(normed, &pass.logits)?;
        Sample {
            logits: &pass.logits,
            params: &pass.params,
            steps: &pass.steps,
            seen: pass.seen.as_ref(),
            workspace: &self.sampling_workspace,
            tokens: &pass.tokens,
            logprobs: &pass.logprobs,
        }
        .launch(&kernels)?;
        Advance {
            drawn: &pass.tokens,
            block_tables: &pass.inputs.block_tables,
            block_size: self.layout.block_size,
            tokens: &pass.inputs.tokens,
            positions: &pass.inputs.positions,
            slots: &pass.inputs.slots,
            context_lens: &pass.inputs.context_lens,
            steps: &pass.steps,
        }
        .launch(&kernels)
    }

    /// Views of the state and of the buffers for `rows` rows.
    fn pass(&self, rows: usize) -> Pass {
        let (layout, first_rows) = (self.layout, rows as i64);
        let words = |start: usize, num_words: usize| self.state.narrow(0, start as i64, num_words as i64);
        let per_row = |array| words(layout.start_of(array), rows);
        let matrix = |start, width: usize| words(start, rows * width).view([first_rows, width as i64]);
        let drawn = |array: i64| self.drawn.select(0, array).narrow(0, 0, first_rows);
        Pass {
            inputs: Inputs {
                tokens: per_row(PerRow::Token),
                positions: per_row(PerRow::Position),
                slots: per_row(PerRow::Slot),
                context_lens: per_row(PerRow::ContextLen),
                block_tables: matrix(layout.tables(), layout.max_blocks),
            },
            buffers: self.buffers.of_rows(rows),
            logits: self.logits.narrow(0, 0, first_rows),
            params: matrix(0, 2 * SAMPLING_ROW_WORDS).view_dtype(Kind::Int64),
            steps: per_row(PerRow::Step),
            seen: (layout.seen_words > 0).then(|| matrix(layout.seen(), layout.seen_words)),
            tokens: drawn(0),
            logprobs: drawn(1).view_dtype(Kind::Float),
            graph: None,
            has_run: false,
        }
    }

    /// Lets work of this thread's present stream wait for what was launched here.
    pub(super) fn finish(self) -> Result<(), Error> {
        follow(&Stream::current(self.stream.device())?, &self.stream)
    }
}

impl Drop for DeviceDecoder<'_> {
    fn drop(&mut self) {
        // Pinned memory and graphs may be in use after an error; there is nobody to tell of another one.
        let _ = self.stream.synchronize();
        for pass in self.passes.values_mut() {
            pass.graph = None;
        }
    }
}

/// Lets what comes later in `stream` wait for all that `other` was given so far.
fn follow(stream: &Stream, other: &Stream) -> Result<(), Error> {
    let event = Event::new(other.device())?;
    event.record(other)?;
    stream.wait_for(&event)
}

fn sampling_words(seed: u64, params: &SamplingParams) -> [i64; SAMPLING_ROW_WORDS] {
    SamplingRow {
        seed,
        repetition_penalty: params.repetition_penalty,
        top_p: params.top_p,
        min_p: params.min_p,
        temperature: params.temperature as f32,
        top_k: params.top_k.map_or(0, |k| u32::try_from(k).unwrap_or(0)),
    }
    .words()
}
