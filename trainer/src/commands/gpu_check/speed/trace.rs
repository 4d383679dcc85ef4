//! Records traces of decoding and of an update by libtorch's profiler, as files that Perfetto shows.
//!
//! The recorded work is small, so that a file stays below [`MAX_BYTES`]. An emulated device executes nothing
//! that CUPTI could report, so its traces have operators and no kernels.

use std::fs;
use std::path::Path;

use rlt_decoder::{Decoder, LoadOptions};
use rlt_torch::Profile;
use serde_json::json;
use tch::Kind;

use super::super::shapes::{llama_135m, llama_135m_with_layers, on_device};
use super::super::workload::random_demonstrations;
use super::super::{Failure, Finding, Report, is_stand_in};
use super::{GPU, actor, decode_tail};
use crate::commands::measure::wait;
use crate::roles::actor::update::{UpdatePlan, update};
use crate::roles::objective::supervised_objective;

/// Maximum size of a file.
const MAX_BYTES: usize = 16 << 20;
/// Layers of the updated model: an update has about 500 events a layer, of about 350 bytes.
const UPDATED_LAYERS: u32 = 8;

pub(in super::super) fn check(folder: &Path, report: &mut Report<'_>) -> Result<(), Failure> {
    report(decoding(&folder.join("trace-decode.json"))?)?;
    report(updating(&folder.join("trace-update.json"))?)
}

/// Traces the prefill and the first decoding steps of a batch.
fn decoding(path: &Path) -> Result<Finding, Failure> {
    let config = llama_135m()?;
    let options = LoadOptions {
        device: GPU,
        param_dtype: Kind::BFloat16,
        compute: Kind::BFloat16,
        ..LoadOptions::default()
    };
    let decoder = Decoder::from_config(&config, 0, &options)?;
    let [batch, prompt_len, new_tokens] = on_device([16, 128, 8], [2, 4, 3]);
    let mut engine = decode_tail::engine(&decoder, batch)?;
    let mut generate = || decode_tail::generate(&mut engine, &decoder, [batch, prompt_len, new_tokens]);
    // The first call allocates and loads kernels.
    generate()?;
    recorded("decoding", path, generate)
}

/// Traces an update of one micro-batch.
fn updating(path: &Path) -> Result<Finding, Failure> {
    let config = llama_135m_with_layers(UPDATED_LAYERS)?;
    let (num_sequences, len, max_tokens) = on_device((8, 1024, 8192), (2, 16, 32));
    let mut actor = actor(&config)?;
    let batch = random_demonstrations(&vec![len; num_sequences], config.vocab_size);
    let plan = UpdatePlan {
        objective: supervised_objective(),
        groups_per_update: num_sequences,
        num_epochs: 1,
        max_tokens,
        learning_rate: 1e-5,
        seed: 0,
    };
    let mut updated = || -> Result<(), Failure> {
        update(&mut actor, &batch, &plan)?;
        Ok(())
    };
    updated()?;
    recorded("update", path, updated)
}

/// Records `work` to a file, which is deleted if it is too large.
fn recorded(name: &str, path: &Path, work: impl FnOnce() -> Result<(), Failure>) -> Result<Finding, Failure> {
    let records_device = !is_stand_in();
    wait(GPU);
    let profile = Profile::start(records_device)?;
    work()?;
    wait(GPU);
    profile.save(path)?;
    let bytes = fs::read(path).map_err(|error| format!("no trace in {}: {error}", path.display()))?;
    if bytes.len() > MAX_BYTES {
        fs::remove_file(path)?;
    }
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let finding = judged(name, &String::from_utf8_lossy(&bytes), records_device);
    Ok(finding.with([("file", json!(file))]))
}

/// Judges a trace: it has operators, kernels if a GPU was recorded, and a bounded size.
fn judged(name: &str, trace: &str, records_device: bool) -> Finding {
    let count = |category: &str| trace.matches(&format!("\"cat\": \"{category}\"")).count();
    let [num_operators, num_kernels] = ["cpu_op", "kernel"].map(count);
    let is_complete = num_operators > 0 && (num_kernels > 0 || !records_device);
    let figures = [
        ("trace", json!(name)),
        ("bytes", json!(trace.len())),
        ("maxBytes", json!(MAX_BYTES)),
        ("operators", json!(num_operators)),
        ("kernels", json!(num_kernels)),
    ];
    Finding::new(is_complete && trace.len() <= MAX_BYTES, figures)
}

#[cfg(test)]
mod tests {
    use super::super::super::Status;
    use super::*;

    #[test]
    fn a_trace_without_kernels_or_above_its_size_fails() {
        let operator = r#"{ "ph": "X", "cat": "cpu_op", "name": "aten::mm" },"#;
        let kernel = r#"{ "ph": "X", "cat": "kernel", "name": "gemm" },"#;
        let both = format!("{operator}\n{kernel}\n");
        let status = |trace: &str, records_device| judged("update", trace, records_device).status;
        assert_eq!(status(&both, true), Status::Passed);
        assert_eq!(status(operator, false), Status::Passed);
        assert_eq!(status(operator, true), Status::Failed);
        assert_eq!(status(kernel, true), Status::Failed);
        let long = format!("{both}{}", " ".repeat(MAX_BYTES));
        assert_eq!(status(&long, true), Status::Failed);
        assert_eq!(judged("update", &both, true).figures["kernels"], 1);
    }
}
