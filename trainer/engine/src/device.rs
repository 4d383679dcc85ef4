//! Decoding on a GPU: the state of the batch is on the device and changed in place, and a step is launched
//! before the tokens of the previous step are read.
//!
//! ```text
//! host     plan n+1, write what changes    read the tokens of n     plan n+2 ...
//! device   ... step n                      step n+1                 ...
//! ```
//! A step consists of one copy of the changed state to the device, kernel launches, and one copy of tokens
//! and log-probs to pinned memory, for which the host waits while the next step runs. The launches for a
//! number of rows (1, 2, 4, 8 and so on) are captured as a CUDA graph when they are needed for the second
//! time. [`batch_state`] assigns sequences to rows, [`layers`] launches kernels, [`runner`] starts and reads
//! steps. Sequences are scheduled in `rlt_core::engine`.
//!
//! Ranks of a tensor-parallel group launch the same steps, whose collectives run on the same stream. The
//! tokens of all ranks are gathered at the end of a step, so the host waits only once.

mod batch_state;
mod experts;
mod layers;
mod logit_buffers;
mod prefill;
mod runner;
mod splits;
mod stream_tensor_parallel;

use std::collections::{HashMap, VecDeque};

use rlt_api::conflicts::{Fact, conflict_of};
use rlt_core::types::TokenId;
use rlt_parallel::RankError;
use rlt_torch::Error;
use rlt_torch::collectives::{CollectiveError, Traffic};
use rlt_torch::cuda::driver::{Attribute, Driver};
use rlt_torch::cuda::{
    Advance, ApplyUpdates, Event, Graph, Kernels, SAMPLING_ROW_WORDS, Sample, Stream, pinned,
    sampling_workspace_bytes,
};
use tch::{Device, Kind, Tensor};

use super::EngineError;
use super::images::RequestImages;
use super::kv_cache::KvCache;
use super::weights::RolloutWeights;
use batch_state::{BatchState, BatchStateLayout, RowArray};
use layers::{ActivationBuffers, AttentionInputs, Model, ModelInput};
use logit_buffers::LogitBuffers;
use stream_tensor_parallel::StreamTensorParallel;

/// Number of steps in flight: one that runs, and the next one.
const MAX_IN_FLIGHT: usize = 2;

/// The model runner on a GPU, in one run of the engine.
pub(super) struct CudaRunner<'a> {
    model: Model<'a>,
    cache: &'a mut KvCache,
    stream: Stream,
    layout: BatchStateLayout,
    rows: BatchState,
    images: RequestImages,
    /// Tokens that are never drawn.
    banned: Vec<TokenId>,
    /// State of the batch in i32 words, see [`BatchStateLayout`].
    state: Tensor,
    /// Changes of the state in i32 words, the input of [`ApplyUpdates`].
    changes: Tensor,
    /// Copies of `changes` in pinned memory, one for each step in flight.
    staged_changes: Vec<Tensor>,
    /// Tokens and log-probs of all ranks, concatenated, in i32 words ([`BatchStateLayout::drawn`]).
    drawn: Tensor,
    /// Copies of `drawn` in pinned memory, one for each step in flight.
    read_back: Vec<Tensor>,
    is_read: Vec<Event>,
    /// Pinned memory from which prompts are copied, with the number of the step that follows the copy.
    staged: VecDeque<(usize, Tensor)>,
    buffers: ActivationBuffers,
    scores: LogitBuffers,
    sampling_workspace: Tensor,
    passes: HashMap<usize, Pass>,
    uses_graphs: bool,
    /// Number of failed captures; the first one ends the use of graphs.
    num_failed_captures: usize,
    num_steps: usize,
    /// Sequence number of the last step in the rollout TP group; 0 without one.
    sequence: u64,
    /// Steps that are launched and not read, oldest first.
    launched: VecDeque<Launched>,
    /// Whether this rank was asked to stop.
    wants_stop: bool,
    /// Whether any rank wanted to stop in the last step read.
    is_stop_wanted: bool,
}

/// Views, buffers and CUDA graph of a decode step with a fixed number of rows.
struct Pass {
    inputs: ModelInput,
    context_lens: Tensor,
    block_tables: Tensor,
    buffers: ActivationBuffers,
    scores: LogitBuffers,
    params: Tensor,
    steps: Tensor,
    seen: Option<Tensor>,
    tokens: Tensor,
    logprobs: Tensor,
    graph: Option<Graph>,
    /// Whether the pass has run before, so that libraries have allocated their workspaces.
    has_run: bool,
    /// Bytes that this rank exchanges in one run of the pass.
    traffic: Traffic,
}

/// A step whose tokens are not read yet.
struct Launched {
    /// Index of the pinned tensor that the tokens are copied to, below [`MAX_IN_FLIGHT`].
    place: usize,
    /// The row of each sequence that ran.
    rows: Vec<usize>,
    /// Sequence number of the step in the rollout TP group; 0 without one.
    sequence: u64,
}

/// An error while a step is launched or read.
#[derive(Debug)]
pub(super) enum CudaError {
    Device(Error),
    Ranks(RankError),
}

impl From<Error> for CudaError {
    fn from(source: Error) -> Self {
        Self::Device(source)
    }
}

impl From<CollectiveError> for CudaError {
    fn from(source: CollectiveError) -> Self {
        Self::Ranks(source.into())
    }
}

impl From<RankError> for CudaError {
    fn from(source: RankError) -> Self {
        Self::Ranks(source)
    }
}

impl From<CudaError> for EngineError {
    fn from(failure: CudaError) -> Self {
        match failure {
            CudaError::Device(source) => Self::Tensor { what: "decoding on the device".into(), source },
            CudaError::Ranks(source) => Self::Ranks(source),
        }
    }
}

/// Returns the index of the GPU that holds `weights`. Fails if GPUs cannot sample from such a model.
fn gpu_of(weights: &RolloutWeights) -> Result<usize, CudaError> {
    let Device::Cuda(device) = weights.unpacked.device() else {
        let (expected, got) = ("weights on a GPU".into(), format!("{:?}", weights.unpacked.device()));
        return Err(Error::Argument { act: "decoding on a device", expected, got }.into());
    };
    let config = &weights.unpacked.config;
    let facts = config.facts().with(Fact::Sampling, true);
    if let Some(conflict) = conflict_of(Fact::OnGpu, &facts) {
        let expected = format!("a CPU, as {}", conflict.reason());
        let got = format!("a GPU and {:?} with head_dim {}", config.family, config.head_dim);
        return Err(Error::Argument { act: "sampling", expected, got }.into());
    }
    Ok(device)
}

/// Limits of the runner, which follow from the requests of a run.
pub(super) struct RunnerLimits {
    pub(super) max_rows: usize,
    pub(super) max_blocks: usize,
    /// Whether any request has a repetition penalty.
    pub(super) has_penalty: bool,
    pub(super) uses_graphs: bool,
}

impl RunnerLimits {
    /// Layout of the state of a batch within these limits.
    fn layout(&self, weights: &RolloutWeights, vocab_size: usize, block_size: usize) -> BatchStateLayout {
        BatchStateLayout {
            max_rows: self.max_rows,
            max_blocks: self.max_blocks,
            seen_words: if self.has_penalty { vocab_size.div_ceil(32) } else { 0 },
            block_size,
            route_layers: weights.unpacked.config.num_expert_layers(),
        }
    }
}

impl<'a> CudaRunner<'a> {
    /// Allocates the buffers of a decoder on the device of `weights`. The decoder's work begins after all
    /// work that is already in this thread's current stream.
    pub(super) fn new(
        weights: &'a RolloutWeights,
        cache: &'a mut KvCache,
        limits: &RunnerLimits,
        images: RequestImages,
    ) -> Result<Self, CudaError> {
        let device = gpu_of(weights)?;
        let peers = weights.ranks().map(|ranks| StreamTensorParallel::new(ranks, device)).transpose()?;
        let stream = Stream::for_decoding(device)?;
        follow(&stream, &Stream::current(device)?)?;
        let _on_stream = stream.enter()?;
        let kernels = Kernels::load(device)?;
        let multiprocessors = Driver::get()?.attribute(device, Attribute::MultiprocessorCount)?;
        let num_ranks = peers.as_ref().map_or(1, StreamTensorParallel::num);
        let model = Model::new(kernels, weights, peers, multiprocessors.max(1) as usize);
        let (vocab_size, block_size) = (model.vocab_size(), cache.block_size());
        let layout = limits.layout(weights, vocab_size, block_size);
        let rows = BatchState::new(layout);
        let change_words = layout.max_change_words() as i64;
        let drawn_words = (num_ranks * layout.num_drawn_words()) as i64;
        let ints = |size: &[i64]| Tensor::empty(size, (Kind::Int, model.device()));
        let for_each_step = |size: &[i64]| -> Result<Vec<Tensor>, Error> {
            (0..MAX_IN_FLIGHT).map(|_| pinned(size, Kind::Int)).collect()
        };
        let workspace = sampling_workspace_bytes(limits.max_rows, vocab_size) / size_of::<f32>();
        let buffers = model.decode_buffers(limits.max_rows);
        let state = Tensor::from_slice(&rows.empty_state()).to_device(model.device());
        let scores = model.scores(limits.max_rows, weights.unpacked.compute_kind());
        Ok(Self {
            changes: ints(&[change_words]),
            staged_changes: for_each_step(&[change_words])?,
            drawn: if num_ranks > 1 { ints(&[drawn_words]) } else { own_drawn(&state, &layout) },
            state,
            read_back: for_each_step(&[drawn_words])?,
            is_read: (0..MAX_IN_FLIGHT).map(|_| Event::new(device)).collect::<Result<_, _>>()?,
            sampling_workspace: Tensor::empty([workspace as i64], (Kind::Float, model.device())),
            staged: VecDeque::new(),
            passes: HashMap::new(),
            uses_graphs: limits.uses_graphs,
            num_failed_captures: 0,
            num_steps: 0,
            sequence: 0,
            launched: VecDeque::new(),
            wants_stop: false,
            is_stop_wanted: false,
            buffers,
            scores,
            model,
            cache,
            stream,
            layout,
            rows,
            images,
            banned: weights.banned(),
        })
    }

    /// Runs one step of the first `rows` rows, as a CUDA graph if the pass has run before.
    fn decode(&mut self, rows: usize) -> Result<(), CudaError> {
        let mut pass = match self.passes.remove(&rows) {
            Some(pass) => pass,
            None => self.pass(rows),
        };
        match self.graph_of(&mut pass)? {
            Some(graph) => {
                graph.launch(&self.stream)?;
                pass.graph = Some(graph);
            }
            None => {
                let before = self.traffic();
                self.launch_pass(&pass)?;
                pass.traffic = self.traffic().since(before);
                pass.has_run = true;
            }
        }
        self.passes.insert(rows, pass);
        Ok(())
    }

    /// Returns the graph of a pass that has run before, or `None` in eager mode. A failed capture has
    /// executed nothing, so this step and all later ones continue in eager mode.
    fn graph_of(&mut self, pass: &mut Pass) -> Result<Option<Graph>, CudaError> {
        if !self.uses_graphs || !pass.has_run {
            return Ok(None);
        }
        if let Some(graph) = pass.graph.take() {
            self.model.peers.iter().for_each(|peers| peers.count_again(pass.traffic));
            return Ok(Some(graph));
        }
        let stream = self.stream;
        match Graph::capture(&stream, || self.launch_pass(pass)) {
            Ok(graph) => Ok(Some(graph)),
            Err(CudaError::Ranks(error)) => Err(CudaError::Ranks(error)),
            Err(CudaError::Device(error)) => {
                tracing::warn!(%error, "failed to capture a CUDA graph; decoding continues in eager mode");
                self.num_failed_captures += 1;
                self.uses_graphs = false;
                Ok(None)
            }
        }
    }

    fn traffic(&self) -> Traffic {
        self.model.peers.as_ref().map_or_else(Traffic::default, StreamTensorParallel::traffic)
    }

    fn launch_pass(&mut self, pass: &Pass) -> Result<(), CudaError> {
        let kernels = self.model.kernels.clone();
        ApplyUpdates { changes: &self.changes, state: &self.state }.launch(&kernels)?;
        let normed = self.model.run(&pass.inputs, self.cache, &pass.buffers)?;
        self.model.score(normed, &pass.scores)?;
        Sample {
            logits: &pass.scores.of_all_tokens,
            params: &pass.params,
            steps: &pass.steps,
            seen_tokens: pass.seen.as_ref(),
            banned: &self.banned,
            workspace: &self.sampling_workspace,
            tokens: &pass.tokens,
            logprobs: &pass.logprobs,
        }
        .launch(&kernels)?;
        Advance {
            drawn: &pass.tokens,
            block_tables: &pass.block_tables,
            block_size: self.layout.block_size,
            tokens: &pass.inputs.tokens,
            positions: &pass.inputs.positions,
            slots: &pass.inputs.slots,
            context_lens: &pass.context_lens,
            steps: &pass.steps,
        }
        .launch(&kernels)?;
        match &self.model.peers {
            None => Ok(()),
            Some(peers) => Ok(peers.all_gather(&self.drawn, &own_drawn(&self.state, &self.layout))?),
        }
    }

    /// Views of the state and of the buffers for `rows` rows.
    fn pass(&self, rows: usize) -> Pass {
        let (layout, first_rows) = (self.layout, rows as i64);
        let words = |start: usize, num_words: usize| self.state.narrow(0, start as i64, num_words as i64);
        let per_row = |array| words(layout.start_of(array), rows);
        let matrix = |start, width: usize| words(start, rows * width).view([first_rows, width as i64]);
        let drawn = |array: usize| words(layout.drawn() + array * layout.max_rows, rows);
        let first_route = layout.drawn() + layout.routes();
        let routes = |layer: usize| words(first_route + layer * layout.max_rows, rows);
        let context_lens = per_row(RowArray::ContextLen);
        let block_tables = matrix(layout.tables(), layout.max_blocks);
        Pass {
            inputs: ModelInput {
                tokens: per_row(RowArray::Token),
                positions: per_row(RowArray::Position),
                images: None,
                has_axes: false,
                slots: per_row(RowArray::Slot),
                attention: AttentionInputs::Paged {
                    context_lens: context_lens.shallow_clone(),
                    block_tables: block_tables.shallow_clone(),
                },
                routes: (0..layout.route_layers).map(routes).collect(),
            },
            context_lens,
            block_tables,
            buffers: self.buffers.of_rows(rows),
            scores: self.scores.of_rows(rows),
            params: matrix(0, 2 * SAMPLING_ROW_WORDS).view_dtype(Kind::Int64),
            steps: per_row(RowArray::Step),
            seen: (layout.seen_words > 0).then(|| matrix(layout.seen_tokens(), layout.seen_words)),
            tokens: drawn(0),
            logprobs: drawn(1).view_dtype(Kind::Float),
            graph: None,
            has_run: false,
            traffic: Traffic::default(),
        }
    }

    /// Waits for all work that was launched by this runner.
    fn settle(&self) -> Result<(), CudaError> {
        let Some(peers) = &self.model.peers else { return Ok(self.stream.synchronize()?) };
        let end = Event::new(self.stream.device())?;
        end.record(&self.stream)?;
        Ok(peers.wait(self.sequence, &end)?)
    }
}

impl Drop for CudaRunner<'_> {
    fn drop(&mut self) {
        // Pinned memory and graphs may be in use after an error; there is no caller left to report another
        // one to.
        let _ = self.settle();
        for pass in self.passes.values_mut() {
            pass.graph = None;
        }
    }
}

/// Makes later work of `stream` wait for all work that `other` has so far.
fn follow(stream: &Stream, other: &Stream) -> Result<(), Error> {
    let event = Event::new(other.device())?;
    event.record(other)?;
    stream.wait_for(&event)
}

/// Returns the words of `state` to which this rank writes the results of a step, see
/// [`BatchStateLayout::drawn`].
fn own_drawn(state: &Tensor, layout: &BatchStateLayout) -> Tensor {
    state.narrow(0, layout.drawn() as i64, layout.num_drawn_words() as i64)
}
