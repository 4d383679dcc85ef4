//! Launching and reading the steps of a device. The host waits only for the tokens of a step that is read.

use rlt_core::engine::Sequence;
use rlt_core::sampling::SamplingParams;
use rlt_torch::cuda::{SAMPLING_ROW_WORDS, SamplingRow, Stream};

use super::batch_state::OfRequest;
use super::stream_tensor_parallel::StreamTensorParallel;
use super::{CudaError, CudaRunner, Launched, MAX_IN_FLIGHT, follow};
use crate::runner::{Runner, StepInput, StepOutput, timed};
use crate::sampler::SampledToken;
use crate::{EngineError, Request, RolloutStats};

/// Results of a step, copied to pinned memory.
struct ReadBack {
    output: StepOutput,
    /// Whether all ranks have sampled the same tokens.
    is_alike: bool,
    /// Whether a rank wants to stop.
    is_stop_wanted: bool,
}

impl Runner for CudaRunner<'_> {
    fn max_in_flight(&self) -> usize {
        MAX_IN_FLIGHT
    }

    fn add_request(&mut self, request_idx: usize, request: &Request) -> Result<(), EngineError> {
        self.images.add(&self.model.weights.unpacked, request_idx, request)
    }

    fn remove_request(&mut self, request_idx: usize) {
        self.images.remove(request_idx);
    }

    fn launch(&mut self, input: &StepInput<'_>, stats: &mut RolloutStats) -> Result<(), EngineError> {
        timed(&mut stats.prefill_time, || self.prepare(input.step))?;
        let launched = timed(&mut stats.decode_time, || self.launch_decode(input))?;
        stats.num_failed_captures = self.num_failed_captures;
        self.launched.push_back(launched);
        Ok(())
    }

    fn read(&mut self, stats: &mut RolloutStats) -> Result<StepOutput, EngineError> {
        let Some(launched) = self.launched.pop_front() else { return Ok(StepOutput::default()) };
        let read = timed(&mut stats.sampling_time, || self.read_back(&launched))?;
        if !read.is_alike {
            return Err(EngineError::Disagreement { step: stats.num_steps });
        }
        self.is_stop_wanted = read.is_stop_wanted;
        Ok(read.output)
    }

    /// Returns whether the run stops. A rank without a group stops at once; ranks of a group stop once all of
    /// them know of the request, from the results of the next step.
    fn agrees_to_stop(&mut self, wants_stop: bool, _: usize) -> Result<bool, EngineError> {
        self.wants_stop |= wants_stop;
        Ok(if self.model.peers.is_some() { self.is_stop_wanted } else { wants_stop })
    }

    fn finish(&mut self) -> Result<bool, EngineError> {
        self.rejoin().map_err(EngineError::from)
    }
}

impl CudaRunner<'_> {
    /// Makes later work of this thread's current stream wait for the work launched here. Returns whether a
    /// rank wants to stop, including a request that came too late for a step.
    fn rejoin(&self) -> Result<bool, CudaError> {
        follow(&Stream::current(self.stream.device())?, &self.stream)?;
        let Some(ranks) = self.model.weights.ranks() else { return Ok(self.wants_stop) };
        let [stops] = ranks.all_reduce_max([self.wants_stop.into()])?;
        Ok(stops > 0)
    }

    /// Launches the decode of a step: each sequence's last token is fed in, and the next one sampled.
    fn launch_decode(&mut self, input: &StepInput<'_>) -> Result<Launched, CudaError> {
        let _on_stream = self.stream.enter()?;
        let place = self.num_steps % MAX_IN_FLIGHT;
        self.num_steps += 1;
        self.sequence = self.model.peers.as_ref().map_or(0, StreamTensorParallel::begin);
        let images = &self.images;
        let of_request = |sequence: &Sequence| OfRequest {
            sampling: sampling_words(sequence.seed, (input.sampling)(sequence)),
            position_offset: images.position_offset(sequence.request_idx),
        };
        let mut changes = self.rows.follow(input.running, &of_request);
        if self.wants_stop {
            changes.ask_for_end(&self.layout);
        }
        // The last step that used this buffer has been read, so its copy is complete.
        let mut staged = self.staged_changes[place].narrow(0, 0, changes.words().len() as i64);
        rlt_torch::i32_slice_mut(&mut staged)?.copy_from_slice(changes.words());
        self.stream.copy_to_device(&self.changes.narrow(0, 0, staged.size()[0]), &staged)?;
        self.decode(self.layout.bucket(input.running.len()))?;
        self.stream.copy_to_host(&self.read_back[place], &self.drawn)?;
        self.is_read[place].record(&self.stream)?;
        Ok(Launched { place, rows: self.rows.rows_of(input.running), sequence: self.sequence })
    }

    /// Waits for the results of a step.
    fn read_back(&self, launched: &Launched) -> Result<ReadBack, CudaError> {
        let is_read = &self.is_read[launched.place];
        match &self.model.peers {
            None => is_read.synchronize()?,
            Some(peers) => peers.wait(launched.sequence, is_read)?,
        }
        let words = rlt_torch::i32_slice(&self.read_back[launched.place])?;
        let ranks: Vec<&[i32]> = words.chunks_exact(self.layout.num_drawn_words()).collect();
        let max_rows = self.layout.max_rows;
        let of_row = |rank: &[i32], row: usize| [rank[row], rank[max_rows + row]];
        let is_alike = |&row: &usize| ranks.iter().all(|rank| of_row(rank, row) == of_row(ranks[0], row));
        let sampled = |&row: &usize| {
            let [token, logprob] = of_row(ranks[0], row);
            SampledToken { token: token as u32, logprob: f32::from_bits(logprob as u32) }
        };
        let digest =
            |row: usize, layer: usize| ranks[0][self.layout.routes() + layer * max_rows + row] as u16;
        let routes = |&row: &usize| (0..self.layout.route_layers).map(|layer| digest(row, layer)).collect();
        let output = StepOutput {
            sampled: launched.rows.iter().map(sampled).collect(),
            routes: launched.rows.iter().map(routes).collect(),
        };
        Ok(ReadBack {
            output,
            is_alike: launched.rows.iter().all(is_alike),
            is_stop_wanted: ranks.iter().any(|rank| rank[self.layout.end_word()] != 0),
        })
    }
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
