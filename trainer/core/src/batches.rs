//! Batches: the sequences of a training step, and examples of a data set with labels or preferences.

pub mod batch;
pub mod labelled;
pub mod preferences;
