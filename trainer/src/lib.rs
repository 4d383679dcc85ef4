//! The trainer: models, rollout and the training step behind one binary.
//!
//! ```text
//! manifest -> setup -> train -> step: rollout -> reward -> advantage -> log-probs -> update -> weight sync
//! ```
//! Every rank runs the same step. Roles (actor, reference, rollout) are capabilities on the same weights, not
//! processes. Nothing here talks to Kubernetes; nothing here is unsafe (that is `rlt-torch`).

pub mod checkpoint;
pub mod data;
pub mod generate;
pub mod jsonl;
pub mod model;
pub mod model_args;
pub mod optim;
pub mod report;
pub mod reward;
pub mod rollout;
pub mod run_folder;
pub mod score;
pub mod stop;
pub mod tokenizer;
pub mod tracking;
