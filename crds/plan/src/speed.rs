//! Predicted time of a step on a machine, from the bytes and products of every phase: a roofline with stated
//! efficiencies (`work`), over counts of the trainer's operations (`passes`, `sampling`).
//!
//! ```text
//! seconds of a phase = roofline(bytes of memory, FLOP, operations, bytes exchanged and to the host)
//! step               = rollout + weight sync + log-probs + values + update     phases follow each other
//! MFU of the update  = FLOP of the model (no recomputation) / (seconds x FLOP/s of the machine)
//! ```
//! Sequences have the lengths that the caller expects, by default the maximal ones, as in the memory plan.
//! Rewards, data and checkpoints are not counted. The busiest rank decides.

mod lengths;
mod passes;
mod sampling;
mod sharing;
mod work;

use rlt_api::resolved::ResolvedSpec;
use rlt_models::ModelConfig;
use serde::Serialize;

use super::batch::BatchPlan;
use super::machine::Machine;
use super::memory;
pub use lengths::{MeanLengths, UnfitLength};
use passes::Passes;
pub use work::Bound;
use work::{Kind, Work};

/// Predicted times of one step.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SpeedPlan {
    /// Name of each rank's machine.
    pub machine: String,
    /// Mean lengths of the step's sequences.
    pub lengths: MeanLengths,
    /// Phases of a step, in order.
    pub phases: Vec<PhaseSpeed>,
    /// Seconds of a step: the sum of its phases.
    pub step_seconds: f64,
    /// Tokens that all ranks sample in a second of the rollout.
    pub rollout_tokens_per_second: f64,
    /// Tokens of prompts and completions that all ranks train on in a second of the update; a prompt counts
    /// once for its samples in a pass.
    pub update_tokens_per_second: f64,
    /// Model FLOPs utilization (MFU) of the update: its model FLOP/s as a fraction of the machine's FLOP/s.
    pub update_mfu: f64,
}

/// Predicted time of one phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseSpeed {
    /// Name of the phase.
    pub name: &'static str,
    /// Duration in seconds.
    pub seconds: f64,
    /// FLOP of the busiest rank.
    pub flop: f64,
    /// Bytes that the busiest rank's device reads and writes.
    pub bytes: f64,
    /// The limit that dominates the duration.
    pub bound: Bound,
}

impl PhaseSpeed {
    /// Adds work in another dtype that belongs to the same phase.
    fn and(self, next: Self) -> Self {
        Self {
            name: self.name,
            seconds: self.seconds + next.seconds,
            flop: self.flop + next.flop,
            bytes: self.bytes + next.bytes,
            bound: if next.seconds > self.seconds { next.bound } else { self.bound },
        }
    }
}

impl SpeedPlan {
    /// Predicts a step of a specification whose device is decided, on `machine`.
    pub(super) fn new(
        spec: &ResolvedSpec,
        model: &ModelConfig,
        machine: &Machine,
        lengths: MeanLengths,
    ) -> Self {
        let spec = &lengths.as_longest(spec);
        let model = &model.clone().with_head(spec.algorithm.head());
        let batch = &BatchPlan::new(spec);
        let own = &memory::cut(spec, model);
        let trained = memory::trained(spec, own, &memory::LocalCount::trained(spec, model));
        let passes = Passes::new(spec, own, model, batch, trained.num_parameters);
        let phase = |name, kind, work: Work| {
            let (seconds, bound) = work.seconds(machine, kind);
            PhaseSpeed { name, seconds, flop: work.flop(), bytes: work.bytes, bound }
        };
        let mut phases = Vec::new();
        let mut rollout_tokens_per_second = 0.0;
        if spec.algorithm.samples() {
            phases.push(phase("weight sync", Kind::Stream, passes.weight_sync()));
            let rollout = sampling::of_step(spec, model, batch, machine);
            let groups = f64::from(spec.workers.num_ranks() / spec.workers.mesh.rollout_tp);
            rollout_tokens_per_second = groups * rollout.tokens / rollout.speed.seconds;
            phases.push(rollout.speed);
        }
        if !spec.algorithm.is_supervised() {
            let scoring = passes.scoring().into_iter().map(|work| phase("log-probs", Kind::Products, work));
            phases.extend(scoring.reduce(PhaseSpeed::and));
        }
        if memory::has_critic(spec) {
            phases.push(phase("critic", Kind::Products, passes.critic()));
        }
        let update = passes.update();
        let update_speed = phase("update", Kind::Products, update.work);
        let streams =
            f64::from(spec.workers.num_ranks() / (spec.workers.mesh.sp * spec.workers.mesh.tp).max(1));
        let peak = update.peak(machine);
        let update_mfu = update.model_flop / (update_speed.seconds * peak);
        let update_tokens_per_second = streams * update.tokens / update_speed.seconds;
        phases.push(update_speed);
        phases.retain(|phase| phase.seconds > 0.0);
        let step_seconds = phases.iter().map(|phase| phase.seconds).sum();
        let machine = machine.name.clone();
        Self {
            machine,
            lengths,
            phases,
            step_seconds,
            rollout_tokens_per_second,
            update_tokens_per_second,
            update_mfu,
        }
    }
}
