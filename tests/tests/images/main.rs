//! Container images: they run in pods, hold what a worker with a GPU needs, and are reproducible.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test panics where it fails")]

mod cuda;
mod pods;
mod reproducible;
