//! Model runners: they compute the scheduler's steps with tensors and decide nothing.
//!
//! A step is launched, then read. On a CPU ([`CpuRunner`]) the launch computes it. On a GPU (`CudaRunner` in
//! `device`) the launch only submits its work, so that the next step can be launched before it is read.

mod cpu;

use std::time::{Duration, Instant};

use rlt_core::engine::{Sequence, Step};
use rlt_core::sampling::SamplingParams;

pub(super) use cpu::CpuRunner;

use super::sampler::SampledToken;
use super::{EngineError, Request, RolloutStats};

/// The work of one step.
pub(super) struct StepInput<'a> {
    /// Prefills and block copies, which precede the decode.
    pub(super) step: &'a Step,
    /// The sequences of the decode: each one's last token is fed in, and the next one sampled.
    pub(super) running: &'a [Sequence],
    /// Returns the sampling parameters of a sequence.
    pub(super) sampling: &'a dyn Fn(&Sequence) -> &'a SamplingParams,
}

/// The results of one step, in the order of its sequences.
#[derive(Debug, Default)]
pub(super) struct StepOutput {
    /// Sampled tokens of the step. A log-prob is NaN if logits were not finite.
    pub(super) sampled: Vec<SampledToken>,
    /// Digests of the routes of each sequence, one for each layer with experts.
    pub(super) routes: Vec<Vec<u16>>,
}

/// Computes steps in the order in which they are launched.
pub(super) trait Runner {
    /// Number of steps that may be launched before the oldest of them is read.
    fn max_in_flight(&self) -> usize;

    /// Takes the images of a request whose sequences will run.
    fn add_request(&mut self, request_idx: usize, request: &Request) -> Result<(), EngineError>;

    /// Drops the images of a request whose sequences no longer exist.
    fn remove_request(&mut self, request_idx: usize);

    /// Starts a step: its prefills, its block copies, and the decode of its sequences.
    fn launch(&mut self, input: &StepInput<'_>, stats: &mut RolloutStats) -> Result<(), EngineError>;

    /// Waits for the oldest launched step, which is step number `stats.num_steps` of the run.
    fn read(&mut self, stats: &mut RolloutStats) -> Result<StepOutput, EngineError>;

    /// Returns whether the run stops after step `step`, the last step read. Without a tensor-parallel group
    /// that is `wants_stop`. Ranks of a group stop together, once all of them know that one wants to. Fails
    /// on all ranks if they are found to have sampled different tokens.
    fn agrees_to_stop(&mut self, wants_stop: bool, step: usize) -> Result<bool, EngineError>;

    /// Ends the run after its last step. Returns whether a rank has made a stop request that no step
    /// reported.
    fn finish(&mut self) -> Result<bool, EngineError>;
}

/// Adds the time that `work` takes to `total`.
pub(super) fn timed<T>(total: &mut Duration, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = work();
    *total += started.elapsed();
    result
}
