//! The trainer: models, rollout and the training step behind one binary.
//!
//! ```text
//! manifest -> setup -> train -> recipe: sample -> judge -> score -> estimate -> update
//! ```
//! Every rank runs the same step and does its share of the work (`parallel`). Roles (actor, reference,
//! critic, rollout) are capabilities on the same weights, not processes. Nothing here talks to Kubernetes;
//! nothing here is unsafe (that is `rlt-torch`).

pub mod actor;
pub mod checkpoint;
pub mod commands;
pub mod critic;
pub mod data;
pub mod device;
pub mod device_failure;
pub mod env;
pub mod error;
pub mod evaluate;
pub mod finish;
pub mod generate;
pub mod gpu_check;
pub mod jsonl;
pub mod launch;
pub mod measure;
pub mod model;
pub mod model_args;
pub mod objective;
pub mod offload;
pub mod optim;
pub mod out_of_memory;
pub mod parallel;
pub mod phases;
pub mod recipe;
pub mod recipes;
pub mod reference;
pub mod report;
pub mod reward;
pub mod roles;
pub mod rollout;
pub mod run;
pub mod run_folder;
mod saver;
mod saving;
pub mod score;
pub mod seeds;
pub mod setup;
pub mod state;
pub mod status_channel;
pub mod step_context;
pub mod stop;
pub mod tokenizer;
pub mod tracking;
pub mod train;
mod trained;
pub mod update;
pub mod watch;
pub mod worker;
