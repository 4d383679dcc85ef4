//! Tasks that generate their own problems, so that a manifest needs no data file.
//!
//! A task is a pure function of its options: problem `i` of a split is the same on every machine. Reading
//! files, tokenizing and shuffling are in the trainer.

pub mod arithmetic;
pub mod pictures;

pub use arithmetic::{Arithmetic, ArithmeticOptions, Operator, Problem, Split, TaskError};
pub use pictures::{CountingPictures, Picture, PictureProblem, PicturesOptions};
