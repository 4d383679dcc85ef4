//! The RLTrainingJob custom resource: its types, its rules, and the plan that follows from it.

pub mod plan;
