//! Tests of the repository's scripts, with programs that replace pip and the check of a GPU.

mod gpu_report;
mod libtorch;
