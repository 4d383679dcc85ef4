//! The loop around a device's steps: one is launched before the tokens of the one before are read.

use rlt_core::engine::{Scheduler, SequenceId};
use rlt_core::types::TokenId;

use super::{CudaRunner, Launched};
use crate::roles::rollout::completion::RequestOutputs;
use crate::roles::rollout::engine::{Watch, timed};
use crate::roles::rollout::{RolloutError, RolloutRequest, RolloutStats};

/// A step under way, with whose tokens it draws: the sample, and whether the token is the last that it may
/// have.
struct UnderWay {
    launched: Launched,
    samples: Vec<(SequenceId, bool)>,
}

/// Runs `scheduler` until nothing is left to do.
pub(in crate::roles::rollout) fn run(
    mut decoder: CudaRunner<'_>,
    scheduler: &mut Scheduler,
    outputs: &mut RequestOutputs<'_>,
    stats: &mut RolloutStats,
    watch: &mut Watch<'_>,
) -> Result<(), RolloutError> {
    let mut under_way: Option<UnderWay> = None;
    while !scheduler.is_idle() || under_way.is_some() {
        let next = match scheduler.is_idle() {
            true => None,
            false => Some(launch(&mut decoder, scheduler, outputs.requests(), stats)?),
        };
        stats.num_failed_captures = decoder.num_failed_captures();
        if let Some(step) = std::mem::replace(&mut under_way, next) {
            read(&mut decoder, scheduler, outputs, &step, stats, watch)?;
        }
    }
    if decoder.finish()? { Err(RolloutError::Interrupted) } else { Ok(()) }
}

/// Plans a step and launches it.
fn launch(
    decoder: &mut CudaRunner<'_>,
    scheduler: &mut Scheduler,
    requests: &[RolloutRequest],
    stats: &mut RolloutStats,
) -> Result<UnderWay, RolloutError> {
    let step = scheduler.schedule();
    timed(&mut stats.prefill_time, || decoder.prepare(&step))?;
    let running = scheduler.running();
    let samples = running.iter().map(|one| (one.id(), one.is_at_last_token())).collect();
    let launched = timed(&mut stats.decode_time, || {
        decoder.launch(running, &|sequence| &requests[sequence.request_idx].sampling)
    });
    scheduler.launch();
    Ok(UnderWay { launched: launched?, samples })
}

/// Reads the tokens of a step. Those of samples that were found complete a step before are dropped.
fn read(
    decoder: &mut CudaRunner<'_>,
    scheduler: &mut Scheduler,
    outputs: &mut RequestOutputs<'_>,
    step: &UnderWay,
    stats: &mut RolloutStats,
    watch: &mut Watch<'_>,
) -> Result<(), RolloutError> {
    let read = timed(&mut stats.sampling_time, || decoder.read(&step.launched))?;
    stats.num_steps += 1;
    if !read.is_alike {
        return Err(RolloutError::Disagreement { step: stats.num_steps });
    }
    let mut verdicts: Vec<(TokenId, bool)> = Vec::with_capacity(read.drawn.len());
    let mut num_new = 0;
    for ((&(sample, is_longest), drawn), routes) in step.samples.iter().zip(read.drawn).zip(read.routes) {
        if outputs.is_complete(sample) {
            verdicts.push((drawn.token, true));
            continue;
        }
        outputs.log_routes(sample, routes.into_iter());
        num_new += 1;
        verdicts.push((drawn.token, outputs.push(sample, drawn, is_longest)?));
    }
    let finished = scheduler.commit(&verdicts);
    finished.iter().try_for_each(|sequence| outputs.finish(sequence.id()))?;
    // After a stop request progress is not reported until all ranks know of it.
    let wants_end = !decoder.wants_end() && watch.should_stop(scheduler, num_new, finished.len());
    let is_over = decoder.agrees_to_end(wants_end, read.is_end_wanted);
    if is_over { Err(RolloutError::Interrupted) } else { Ok(()) }
}
