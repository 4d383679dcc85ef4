//! Expert iteration, or rejection sampling fine-tuning (arXiv 2308.01825): sample, keep the right
//! completions, and train on them (SFT). A recipe in a crate of its own, in one binary with the trainer's.

use std::process::ExitCode;

use rlt_api::resolved::ResolvedSpec;
use rlt_data::Pipeline;
use rlt_trainer::recipes::{self, Recipe, Recipes};
use rlt_trainer::roles::{Roles, StepError};

struct ExpertIteration {
    prompts_per_step: usize,
    /// Completions with this reward or more are learned.
    threshold: f64,
}

impl Recipe for ExpertIteration {
    fn step(&mut self, roles: &mut Roles, data: &mut Pipeline) -> Result<(), StepError> {
        let prompts = data.next_prompts(self.prompts_per_step)?.ok_or(StepError::NoPrompts)?;
        let mut groups = roles.rewards.judge(roles.rollout.sample(&roles.actor, &prompts)?)?;
        for group in &mut groups {
            group.rollouts.retain(|rollout| rollout.reward.value >= self.threshold);
        }
        if groups.iter().all(|group| group.rollouts.is_empty()) {
            return Ok(());
        }
        let mut batch = roles.rewards.batch(&groups)?;
        batch.advantages.fill(1.0);
        roles.actor.update_supervised(&batch)
    }
}

fn recipes(spec: &ResolvedSpec) -> Recipes {
    let prompts_per_step = spec.training.prompts_per_step as usize;
    Recipes { training: Box::new(ExpertIteration { prompts_per_step, threshold: 1.0 }), ..recipes::of(spec) }
}

fn main() -> ExitCode {
    rlt_trainer::commands::main(recipes)
}
