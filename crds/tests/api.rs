//! Tests of the resource's types, rules and generated files, in one executable.

#[cfg(feature = "kube")]
mod cel;
mod defaults;
mod docs;
mod example_rewards;
mod formulas;
#[cfg(feature = "kube")]
mod generated;
mod presets;
mod resolve;
#[path = "fixtures/specifications.rs"]
#[expect(clippy::unwrap_used, reason = "a broken fixture should end the test")]
mod specifications;
mod validate;
