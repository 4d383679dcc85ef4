//! The predictions of `rlctl plan` for the measured loads, reported next to the measurements.
//!
//! An emulated device has no data sheet. Its loads are planned for [`STAND_IN_AS`], so that tests cover the
//! comparison; its predictions mean as little as its times.

use rlt_models::ModelConfig;
use rlt_plan::{Machine, Models, SpeedPlan, plan_on};
use serde_json::{Value, json};

use super::super::trainings::job;
use super::super::workload::GrpoLoad;
use super::super::{Failure, Finding, error_text, is_stand_in};
use super::peak;

/// GPU for which the loads of an emulated device are planned.
const STAND_IN_AS: &str = "h100";

/// A predicted figure of a finding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Predicted {
    /// Name of the measured figure.
    name: &'static str,
    value: f64,
    /// Whether the figure is a time, of which a ratio is reported.
    is_time: bool,
}

impl Predicted {
    fn time(name: &'static str, value: f64) -> Self {
        Self { name, value, is_time: true }
    }

    fn rate(name: &'static str, value: f64) -> Self {
        Self { name, value, is_time: false }
    }
}

/// Completions of one prompt that are decoded together.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecodeLoad {
    pub(super) batch: usize,
    pub(super) prompt_len: usize,
    /// New tokens of the two runs whose difference is measured, the fewer first.
    pub(super) new_tokens: [usize; 2],
}

/// Requests that are sampled together, of one sample each.
#[derive(Clone, Copy, Debug)]
pub(super) struct GenerationLoad {
    pub(super) num_requests: usize,
    /// Mean numbers of tokens of a prompt and of a completion.
    pub(super) prompt_len: usize,
    pub(super) new_tokens: usize,
}

/// An update with demonstrations of one length.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateLoad {
    pub(super) num_sequences: usize,
    pub(super) len: usize,
    /// Maximum number of tokens of a micro-batch.
    pub(super) max_tokens: usize,
}

/// Adds the prediction to a finding: `predicted` and the name of each figure, and for each time
/// `ratioToPredicted` and its name, the measurement as a multiple of the prediction. `predict` gets the
/// machine; `predictedFor` is its name, or null for a GPU that is not in the table of plans.
pub(super) fn with_prediction(
    finding: Finding,
    predict: impl FnOnce(&Machine) -> Result<Vec<Predicted>, Failure>,
) -> Finding {
    let machine = if is_stand_in() { Machine::gpu(STAND_IN_AS).ok() } else { peak() };
    add_prediction(finding, machine.as_ref(), predict)
}

fn add_prediction(
    mut finding: Finding,
    machine: Option<&Machine>,
    predict: impl FnOnce(&Machine) -> Result<Vec<Predicted>, Failure>,
) -> Finding {
    let all = match machine.map(predict) {
        None => Vec::new(),
        Some(Ok(all)) => all,
        Some(Err(error)) => return finding.with([("predictionError", json!(error_text(error.as_ref())))]),
    };
    finding.figures.insert("predictedFor".to_owned(), json!(machine.map(|machine| &machine.name)));
    for Predicted { name, value, is_time } in all {
        finding.figures.insert(key("predicted", name), json!(value));
        if let Some(measured) = finding.figures.get(name).and_then(Value::as_f64).filter(|_| is_time) {
            finding.figures.insert(key("ratioToPredicted", name), json!(measured / value));
        }
    }
    finding
}

/// Joins a prefix and a name in camel case.
fn key(prefix: &str, name: &str) -> String {
    let (first, rest) = name.split_at(name.len().min(1));
    format!("{prefix}{}{rest}", first.to_uppercase())
}

/// Predicts a GRPO step of one rank.
///
/// # Errors
/// If no valid job has this load.
pub(super) fn of_step(
    config: &ModelConfig,
    load: &GrpoLoad,
    machine: &Machine,
) -> Result<Vec<Predicted>, Failure> {
    let plan = planned(config, machine, |spec| {
        set_lengths(spec, load.prompt_len, load.new_tokens);
        set_prompts(spec, load.num_prompts);
        spec["training"]["maxTokensPerMicroBatch"] = json!(load.max_tokens);
        spec["rollout"]["samplesPerPrompt"] = json!(load.samples_per_prompt);
        // The measured step decodes all samples together.
        spec["rollout"]["maxConcurrentSequences"] = json!(load.num_prompts * load.samples_per_prompt);
        spec["algorithm"]["kl"] = json!({ "placement": "Loss", "coefficient": 0.04 });
    })?;
    let num_tokens = (load.num_prompts * load.samples_per_prompt * load.new_tokens) as f64;
    // The measured rollout begins with the weight sync.
    let rollout = seconds(&plan, "weight sync") + seconds(&plan, "rollout");
    Ok(vec![
        Predicted::time("stepSeconds", plan.step_seconds),
        Predicted::time("rolloutSeconds", rollout),
        Predicted::time("referenceSeconds", seconds(&plan, "log-probs")),
        Predicted::time("updateSeconds", seconds(&plan, "update")),
        Predicted::rate("rolloutTokensPerSecond", num_tokens / rollout),
        Predicted::rate("updateMfu", plan.update_mfu),
    ])
}

/// Predicts an update of one rank.
///
/// # Errors
/// If no valid job has this load.
pub(super) fn of_update(
    config: &ModelConfig,
    load: &UpdateLoad,
    machine: &Machine,
) -> Result<Vec<Predicted>, Failure> {
    let plan = planned(config, machine, |spec| {
        // All tokens of a demonstration but the first are learned.
        set_lengths(spec, 1, load.len.saturating_sub(1));
        spec["algorithm"] = json!({ "kind": "SFT" });
        spec["rewards"]["functions"] = json!([]);
        set_prompts(spec, load.num_sequences);
        spec["training"]["maxTokensPerMicroBatch"] = json!(load.max_tokens);
    })?;
    let update = seconds(&plan, "update");
    Ok(vec![
        Predicted::time("updateSeconds", update),
        Predicted::rate("tokensPerSecond", (load.num_sequences * load.len) as f64 / update),
        Predicted::rate("mfu", plan.update_mfu),
    ])
}

/// Predicts a decoding step, as it is measured: the difference of two rollouts, which have the same prefill.
///
/// # Errors
/// If no valid job has this load.
pub(super) fn of_decoding(
    config: &ModelConfig,
    load: &DecodeLoad,
    machine: &Machine,
) -> Result<Vec<Predicted>, Failure> {
    let rollout = |new_tokens: usize| -> Result<f64, Failure> {
        let plan = planned(config, machine, |spec| {
            set_lengths(spec, load.prompt_len, new_tokens);
            // This algorithm takes a single sample per prompt.
            spec["algorithm"] = json!({ "kind": "ReinforcePlusPlus" });
            spec["training"]["promptsPerStep"] = json!(1);
            spec["rollout"]["samplesPerPrompt"] = json!(load.batch);
            spec["rollout"]["maxConcurrentSequences"] = json!(load.batch);
        })?;
        Ok(seconds(&plan, "rollout"))
    };
    let [few, many] = load.new_tokens;
    let step = (rollout(many)? - rollout(few)?) / (many as f64 - few as f64);
    Ok(vec![
        Predicted::time("stepMilliseconds", 1e3 * step),
        Predicted::rate("tokensPerSecond", load.batch as f64 / step),
    ])
}

/// Predicts a rollout, prefill included, with the mean lengths of its requests.
///
/// # Errors
/// If no valid job has this load.
pub(super) fn of_generation(
    config: &ModelConfig,
    load: &GenerationLoad,
    machine: &Machine,
) -> Result<Vec<Predicted>, Failure> {
    let GenerationLoad { num_requests, prompt_len, new_tokens } = *load;
    let plan = planned(config, machine, |spec| {
        set_lengths(spec, prompt_len, new_tokens);
        // This algorithm takes a single sample per prompt.
        spec["algorithm"] = json!({ "kind": "ReinforcePlusPlus" });
        set_prompts(spec, num_requests);
        spec["rollout"]["samplesPerPrompt"] = json!(1);
        spec["rollout"]["maxConcurrentSequences"] = json!(num_requests);
    })?;
    let rollout = seconds(&plan, "rollout");
    Ok(vec![
        Predicted::time("generationSeconds", rollout),
        Predicted::rate("tokensPerSecond", (num_requests * new_tokens) as f64 / rollout),
    ])
}

/// Sets the number of prompts per step, with a task that has enough of them: about 5000 sums.
fn set_prompts(spec: &mut Value, num_prompts: usize) {
    spec["training"]["promptsPerStep"] = json!(num_prompts);
    spec["data"]["task"]["numTrain"] = json!(num_prompts.max(16));
    spec["data"]["task"]["maxOperand"] = json!(99);
}

fn set_lengths(spec: &mut Value, prompt_len: usize, new_tokens: usize) {
    spec["data"]["maxPromptTokens"] = json!(prompt_len);
    spec["rollout"]["maxCompletionTokens"] = json!(new_tokens);
    spec["model"]["architecture"]["maxPositionEmbeddings"] = json!(prompt_len + new_tokens);
}

/// Predicts the times of a job of one rank in bf16, whose specification `change` completes.
fn planned(
    config: &ModelConfig,
    machine: &Machine,
    change: impl FnOnce(&mut Value),
) -> Result<SpeedPlan, Failure> {
    let mut job = job(1, 1, "Cuda")?;
    let spec = &mut job["spec"];
    spec["training"]["precision"] = json!("Bf16");
    // The measured actors keep their activations, whatever their size.
    spec["training"]["activationCheckpointing"] = json!(false);
    change(spec);
    let job = rlt_api::validate(&job.to_string())
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let models = Models { policy: Some(config.clone()), reward: Vec::new() };
    Ok(plan_on(&job, &models, machine).speed.ok_or("the plan predicts no times")?)
}

/// Returns the seconds of a phase; 0 if the plan has no such phase.
fn seconds(plan: &SpeedPlan, name: &str) -> f64 {
    plan.phases.iter().filter(|phase| phase.name == name).map(|phase| phase.seconds).sum()
}

#[cfg(test)]
mod tests {
    use super::super::super::shapes;
    use super::*;

    fn h100() -> Machine {
        Machine::gpu("h100").unwrap()
    }

    fn value(all: &[Predicted], name: &str) -> f64 {
        all.iter().find(|predicted| predicted.name == name).unwrap().value
    }

    #[test]
    fn a_step_is_predicted_from_its_model_and_load() {
        let config = shapes::config(&shapes::tiny()).unwrap();
        let load = GrpoLoad {
            num_prompts: 8,
            samples_per_prompt: 8,
            prompt_len: 256,
            new_tokens: 256,
            max_tokens: 4096,
        };
        let all = of_step(&config, &load, &h100()).unwrap();
        let seconds = |load: &GrpoLoad| value(&of_step(&config, load, &h100()).unwrap(), "stepSeconds");
        assert!(seconds(&load) > 1.5 * seconds(&GrpoLoad { new_tokens: 128, ..load }), "half the tokens");
        let phases = ["rolloutSeconds", "referenceSeconds", "updateSeconds"].map(|name| value(&all, name));
        assert!(phases.iter().all(|seconds| *seconds > 0.0), "{all:?}");
        let difference = phases.iter().sum::<f64>() / value(&all, "stepSeconds") - 1.0;
        assert!(difference.abs() < 1e-9, "a step is its phases: {all:?}");
        let large = GrpoLoad { num_prompts: 64, samples_per_prompt: 5, new_tokens: 330, ..load };
        assert!(seconds(&large) > 1.1 * seconds(&load), "longer completions of more samples");
    }

    #[test]
    fn a_decoding_step_is_predicted_at_the_context_at_which_it_is_measured() {
        let config = shapes::llama_135m().unwrap();
        let milliseconds = |batch, prompt_len, new_tokens| {
            let load = DecodeLoad { batch, prompt_len, new_tokens };
            value(&of_decoding(&config, &load, &h100()).unwrap(), "stepMilliseconds")
        };
        // Reading the cache takes time in proportion to the context, whose mean is that of both lengths.
        let near = milliseconds(64, 128, [95, 97]);
        assert!((milliseconds(64, 128, [32, 160]) / near - 1.0).abs() < 1e-6, "{near}");
        assert!(milliseconds(64, 16_000, [32, 160]) > 5.0 * near, "a longer context");
        // A batch of one reads the weights as a large one does.
        assert!(milliseconds(1, 128, [32, 160]) < near && near < 64.0 * milliseconds(1, 128, [32, 160]));
    }

    #[test]
    fn an_update_is_predicted_from_the_tokens_that_are_measured() {
        let config = shapes::llama_135m().unwrap();
        let load = UpdateLoad { num_sequences: 32, len: 1024, max_tokens: 8192 };
        let all = of_update(&config, &load, &h100()).unwrap();
        let (seconds, rate) = (value(&all, "updateSeconds"), value(&all, "tokensPerSecond"));
        assert!((seconds * rate / (32.0 * 1024.0) - 1.0).abs() < 1e-9, "{all:?}");
        assert!((0.0..=1.0).contains(&value(&all, "mfu")), "{all:?}");
        let half = UpdateLoad { num_sequences: 16, ..load };
        assert!(seconds > 1.5 * value(&of_update(&config, &half, &h100()).unwrap(), "updateSeconds"));
    }

    #[test]
    fn a_generation_is_predicted_from_its_requests() {
        let config = shapes::llama_135m().unwrap();
        let seconds = |num_requests, new_tokens| {
            let load = GenerationLoad { num_requests, prompt_len: 562, new_tokens };
            let all = of_generation(&config, &load, &h100()).unwrap();
            let (seconds, rate) = (value(&all, "generationSeconds"), value(&all, "tokensPerSecond"));
            assert!((seconds * rate / (num_requests * new_tokens) as f64 - 1.0).abs() < 1e-9, "{all:?}");
            seconds
        };
        assert!(seconds(256, 562) > 1.5 * seconds(256, 281), "half of the steps");
        assert!(seconds(256, 562) > seconds(64, 562), "more sequences a step");
    }

    #[test]
    fn each_time_is_compared_with_its_prediction_and_an_error_is_shown() {
        let measured = || Finding::new(true, [("stepSeconds", json!(3.0)), ("mfu", json!(0.2))]);
        let predict = |_: &Machine| {
            Ok(vec![
                Predicted::time("stepSeconds", 2.0),
                Predicted::rate("mfu", 0.4),
                Predicted::time("updateSeconds", 1.0),
            ])
        };
        let figures = add_prediction(measured(), Some(&h100()), predict).figures;
        assert_eq!([&figures["predictedStepSeconds"], &figures["ratioToPredictedStepSeconds"]], [2.0, 1.5]);
        assert_eq!([&figures["predictedMfu"], &figures["predictedUpdateSeconds"]], [0.4, 1.0]);
        assert_eq!(figures["predictedFor"], "h100");
        // There is no ratio of a rate, nor of a time that was not measured.
        assert_eq!(figures.keys().filter(|key| key.starts_with("ratio")).count(), 1);
        let fails = |_: &Machine| Err("no such job".into());
        let figures = add_prediction(measured(), Some(&h100()), fails).figures;
        assert_eq!(figures["predictionError"], "no such job");
        let figures = add_prediction(measured(), None, predict).figures;
        assert!(figures.len() == 3 && figures["predictedFor"].is_null(), "{figures:?}");
    }
}
