//! Files that outlive a process: checkpoints, the run folder, and files of JSON lines.

pub mod checkpoint;
pub mod jsonl;
pub mod run_folder;

/// Formats an error with all its causes on one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
