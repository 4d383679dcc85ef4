//! Errors for exhausted device memory: the phase, the requested and the free amount, and the fields that give
//! more room.
//!
//! Any allocation of libtorch may fail, with an error or, within a forward or backward pass, with a panic.
//! Both are caught at the top of a run and reported with the active phase.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use rlt_terminal::panics;

use crate::observe::phases;
use crate::run::device_failure::DeviceFailed;
use crate::run::error::TrainError;

/// Text of libtorch's message before the requested amount.
const ASKED: &str = "Tried to allocate ";
/// Text of libtorch's message after the free amount.
const FREE: &str = " is free";

/// Device memory was exhausted during a phase of the run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the device ran out of memory in phase `{phase}`: {asked} were asked for, {free} were free; {advice}",
    advice = advice(phase)
)]
pub struct OutOfMemory {
    phase: &'static str,
    asked: String,
    free: String,
}

impl OutOfMemory {
    /// Parses the amounts in libtorch's `message`; `None` for messages about something else.
    fn in_message(message: &str, phase: &'static str) -> Option<Self> {
        let (_, behind) = message.split_once(ASKED)?;
        if !message.contains("out of memory") {
            return None;
        }
        let unknown = || "an unknown amount".to_owned();
        // "20.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which 1.50 GiB is free."
        let asked =
            behind.split(". ").next().map_or_else(unknown, |asked| asked.trim_end_matches('.').into());
        let free = behind.split_once(FREE).and_then(|(before, _)| before.rsplit_once("of which "));
        let free = free.map_or_else(unknown, |(_, free)| free.to_owned());
        Some(Self { phase, asked, free })
    }
}

/// Returns advice that names the fields of the manifest which give `phase` more memory.
fn advice(phase: &str) -> &'static str {
    match phase {
        "gen" | "update_weights" => {
            "lower spec.rollout.memoryFraction or spec.rollout.maxBatchedTokens, or spread the model by \
             spec.workers.mesh.rolloutTp"
        }
        "old_log_prob" | "ref" | "values" | "adv" | "reward" => "lower spec.training.maxLogprobTokens",
        "update_actor" | "update_critic" => {
            "set spec.training.activationCheckpointing, let spec.training.offload move parameters, optimizer or \
             activations to the host, or lower spec.training.maxTokensPerMicroBatch; with demonstrations raise \
             spec.workers.mesh.sp by the same factor, because the product of both limits their length"
        }
        _ => {
            "spread the model by spec.workers.mesh.dpShard, or let spec.training.offload move parameters or \
             optimizer to the host"
        }
    }
}

/// Runs `work` and explains its failures. If device memory is exhausted or the device fails, the error names
/// the phase and says what to change. The caller has to end the run, because `work` is incomplete.
pub(crate) fn explained<T>(work: impl FnOnce() -> Result<T, TrainError>) -> Result<T, TrainError> {
    let found = |message: &str| {
        let phase = phases::under_way();
        let ran_out = OutOfMemory::in_message(message, phase).map(TrainError::OutOfMemory);
        ran_out.or_else(|| DeviceFailed::in_message(message, phase).map(TrainError::DeviceFailed))
    };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => {
            let found = error.causes().find_map(|cause| found(&cause.to_string()));
            Err(found.unwrap_or(error))
        }
        Err(panic) => match found(panics::message(&*panic)) {
            Some(error) => Err(error),
            None => resume_unwind(panic),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = "CUDA out of memory. Tried to allocate 20.50 MiB. GPU 0 has a total capacity of 79.15 GiB \
                           of which 1.50 MiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch.";

    fn explained_panic(message: &'static str) -> Result<(), TrainError> {
        explained(|| panic!("called `Result::unwrap()` on an `Err` value: Torch({message:?})"))
    }

    #[test]
    fn a_pass_without_memory_says_phase_amounts_and_fields() {
        phases::enter("update_actor");
        let error = explained_panic(MESSAGE).unwrap_err().to_string();
        for part in
            ["`update_actor`", "20.50 MiB were asked for", "1.50 MiB were free", "maxTokensPerMicroBatch"]
        {
            assert!(error.contains(part), "{part} in {error}");
        }
        phases::enter("gen");
        let source = rlt_torch::Error::Libtorch { act: "decoding", message: MESSAGE.to_owned() };
        let error = explained(|| Err::<(), _>(TrainError::Kernel(source))).unwrap_err();
        assert!(error.to_string().contains("memoryFraction"), "{error}");
        assert_eq!(error.exit_code(), rlt_api::ExitCode::BadConfig);
    }

    #[test]
    fn other_failures_are_unchanged() {
        let other = explained(|| Err::<(), _>(TrainError::NoTokenizer)).unwrap_err();
        assert!(matches!(other, TrainError::NoTokenizer));
        let panic = catch_unwind(|| explained_panic("sizes do not fit")).unwrap_err();
        assert!(panics::message(&*panic).contains("sizes do not fit"));
    }
}
