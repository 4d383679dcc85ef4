//! The prediction of `rlctl plan` for the load of a GRPO step, to compare with the measurement.

use rlt_api::plan::model_config::ModelConfig;
use rlt_api::plan::{Machine, Models, SpeedPlan, plan_on};
use serde_json::{Value, json};

use super::super::Failure;
use super::super::trainings::job;
use super::super::workload::GrpoLoad;

/// Predicts the times of a step of one rank on `machine`.
///
/// # Errors
/// If no valid job has this load.
pub(super) fn of_step(
    config: &ModelConfig,
    load: &GrpoLoad,
    machine: &Machine,
) -> Result<SpeedPlan, Failure> {
    let mut job = job(1, 1, "Cuda")?;
    let spec = &mut job["spec"];
    spec["training"]["precision"] = json!("Bf16");
    spec["training"]["promptsPerStep"] = json!(load.num_prompts);
    spec["training"]["maxTokensPerMicroBatch"] = json!(load.max_tokens);
    spec["rollout"]["samplesPerPrompt"] = json!(load.samples_per_prompt);
    spec["rollout"]["maxCompletionTokens"] = json!(load.new_tokens);
    spec["data"]["maxPromptTokens"] = json!(load.prompt_len);
    spec["data"]["task"]["numTrain"] = json!(load.num_prompts.max(16));
    spec["model"]["architecture"]["maxPositionEmbeddings"] = json!(load.prompt_len + load.new_tokens);
    spec["algorithm"]["kl"] = json!({ "placement": "Loss", "coefficient": 0.04 });
    let job = rlt_api::validate(&job.to_string())
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let models = Models { policy: Some(config.clone()), reward: Vec::new() };
    Ok(plan_on(&job, &models, machine).speed.ok_or("the plan predicts no times")?)
}

/// Returns the predictions for the measured figures of a step.
pub(super) fn figures(plan: &SpeedPlan) -> [(&'static str, Value); 4] {
    let update = plan.phases.iter().find(|phase| phase.name == "update").map(|phase| phase.seconds);
    [
        ("predictedStepSeconds", json!(plan.step_seconds)),
        ("predictedUpdateSeconds", json!(update)),
        ("predictedRolloutTokensPerSecond", json!(plan.rollout_tokens_per_second)),
        ("predictedUpdateMfu", json!(plan.update_mfu)),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::super::shapes;
    use super::*;

    #[test]
    fn a_step_is_predicted_from_its_model_and_load() {
        let machine = Machine::gpu("h100").unwrap();
        let config = shapes::config(&shapes::tiny()).unwrap();
        let load = GrpoLoad {
            num_prompts: 8,
            samples_per_prompt: 8,
            prompt_len: 256,
            new_tokens: 256,
            max_tokens: 4096,
        };
        let seconds = |load: &GrpoLoad| of_step(&config, load, &machine).unwrap().step_seconds;
        assert!(seconds(&load) > 0.0);
        assert!(seconds(&load) > 1.5 * seconds(&GrpoLoad { new_tokens: 128, ..load }), "half the tokens");
    }
}
