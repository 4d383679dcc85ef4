//! What outlives a process: checkpoints, the run folder, files of JSON lines.

pub mod checkpoint;
pub mod jsonl;
pub mod run_folder;
