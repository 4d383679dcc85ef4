//! Answers to questions of mathematics: where completions and data sets state them, and how rewards compare
//! them.

pub mod boxed;
pub mod gsm8k;
pub mod math;
pub mod math_dapo;
pub mod math_strict;
pub mod truth;
