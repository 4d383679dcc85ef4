//! Scripts of the repository, run with programs that stand in for pip and for the check of a GPU.

mod gpu_report;
mod libtorch;
