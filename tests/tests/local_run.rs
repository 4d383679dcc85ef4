//! Whole local runs as black boxes: manifests in, run folders, exit codes and messages out.
//!
//! Every test starts the real binaries on a job so small that it takes about a second. Single modules have
//! tests of their own.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "local_run/data/bad_data.rs"]
mod bad_data;
#[path = "local_run/bad_manifest.rs"]
mod bad_manifest;
#[path = "local_run/models/bad_model.rs"]
mod bad_model;
#[path = "local_run/combinations.rs"]
mod combinations;
#[path = "combinations/jobs.rs"]
mod combined_jobs;
#[path = "local_run/commands.rs"]
mod commands;
#[path = "local_run/complete.rs"]
mod complete;
#[path = "local_run/checkpoints/copies.rs"]
mod copies;
#[path = "local_run/data/datasets.rs"]
mod datasets;
#[path = "local_run/checkpoints/demonstration_limits.rs"]
mod demonstration_limits;
#[path = "local_run/examples.rs"]
mod examples;
#[path = "local_run/parallel/expert_parallel.rs"]
mod expert_parallel;
#[path = "local_run/models/exports.rs"]
mod exports;
#[path = "local_run/models/hub_models.rs"]
mod hub_models;
#[path = "local_run/job.rs"]
mod job;
#[path = "local_run/models/kept_adapters.rs"]
mod kept_adapters;
#[path = "local_run/models/memory.rs"]
mod memory;
#[path = "local_run/checkpoints/minio.rs"]
mod minio;
#[path = "local_run/models/narrow.rs"]
mod narrow;
#[path = "local_run/parallel/offload.rs"]
mod offload;
#[path = "local_run/parallel/pods_of_ranks.rs"]
mod pods_of_ranks;
#[path = "local_run/data/preference.rs"]
mod preference;
#[path = "local_run/presets.rs"]
mod presets;
#[path = "local_run/rewards/process_reward.rs"]
mod process_reward;
#[path = "local_run/parallel/ranks.rs"]
mod ranks;
#[path = "local_run/real_examples.rs"]
mod real_examples;
#[path = "local_run/recomputed.rs"]
mod recomputed;
#[path = "local_run/reference_sync.rs"]
mod reference_sync;
#[path = "local_run/checkpoints/restarts.rs"]
mod restarts;
#[path = "local_run/checkpoints/resume.rs"]
mod resume;
#[path = "local_run/rewards/reward_model.rs"]
mod reward_model;
#[path = "local_run/rewards/reward_model_training.rs"]
mod reward_model_training;
#[path = "local_run/rewards/reward_servers.rs"]
mod reward_servers;
#[path = "local_run/rewards/rewards.rs"]
mod rewards;
#[path = "local_run/rlctl.rs"]
mod rlctl;
#[path = "local_run/roles.rs"]
mod roles;
#[path = "local_run/checkpoints/run_folder.rs"]
mod run_folder;
#[path = "local_run/sampling.rs"]
mod sampling;
#[path = "local_run/rewards/sandboxed_rewards.rs"]
mod sandboxed_rewards;
#[path = "local_run/models/saved_modules.rs"]
mod saved_modules;
#[path = "local_run/parallel/sharded.rs"]
mod sharded;
#[path = "local_run/data/shown_data.rs"]
mod shown_data;
#[path = "local_run/symptoms.rs"]
mod symptoms;
#[path = "local_run/parallel/tensor_parallel.rs"]
mod tensor_parallel;
#[path = "local_run/tensorboard.rs"]
mod tensorboard;
#[path = "local_run/traces.rs"]
mod traces;
#[path = "local_run/track.rs"]
mod track;
#[path = "local_run/models/unmerged.rs"]
mod unmerged;
#[path = "local_run/data/vision.rs"]
mod vision;
