//! Compares our models with transformers and PEFT, on the committed fixtures of `fixtures/make.py`. No Python
//! is needed.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "parity/adapter_variants.rs"]
mod adapter_variants;
#[path = "parity/adapters.rs"]
mod adapters;
#[path = "parity/classifiers.rs"]
mod classifiers;
#[path = "parity/experts.rs"]
mod experts;
#[path = "parity/families.rs"]
mod families;
#[path = "parity/fixture.rs"]
mod fixture;
#[path = "parity/packing.rs"]
mod packing;

use crate::models;
