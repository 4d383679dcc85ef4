//! Clusters of each kind. The tests of a module share one cluster, which lives as long as its process, so the
//! test runner starts a process for each module (`tests/one-process.sh`).

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test panics where it fails")]

mod control_plane;
mod fake_nodes;
mod faults;
mod gangs;
mod real_node;

use std::time::Duration;

/// Limit of each wait, which takes milliseconds, or a second or two where a container starts.
const PATIENCE: Duration = Duration::from_secs(120);
