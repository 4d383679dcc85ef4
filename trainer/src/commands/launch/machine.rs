//! Definitions that all ways to run the ranks of a machine share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rlt_api::ValidatedJob;
use rlt_parallel::{RankEnvironment, RankError};
use rlt_torch::collectives::{Store, StoreSettings, serve_store_with};

use super::error::LaunchError;
use crate::run::error::TrainError;

/// Checks that the ranks of this machine are within the world size.
pub(super) fn check(place: &RankEnvironment) -> Result<(), LaunchError> {
    if place.rank + place.local_world_size <= place.world_size {
        return Ok(());
    }
    Err(LaunchError::Place(RankError::Environment {
        name: "LOCAL_WORLD_SIZE",
        expected: format!("at most {} from RANK {}", place.world_size.saturating_sub(place.rank), place.rank),
        got: place.local_world_size.to_string(),
    }))
}

/// Serves the rendezvous of an attempt; port 0 is any free one.
pub(super) fn serve(place: &RankEnvironment) -> Result<Store, LaunchError> {
    let port = place.master_port;
    let settings = StoreSettings {
        port,
        is_local: place.is_local(),
        attempt: place.attempt,
        world_size: place.world_size,
        key: place.key.clone(),
    };
    serve_store_with(&settings).map_err(|error| LaunchError::Serve { port, source: error.into() })
}

pub(super) fn grace_period(job: &ValidatedJob) -> Duration {
    Duration::from_secs(job.spec().run_policy.termination_grace_period_seconds.into())
}

/// Returns the manifest for the ranks of this machine. Values of variables are masked, because the ranks
/// inherit the variables of this process.
pub(super) fn text_of(job: &ValidatedJob) -> Result<String, LaunchError> {
    Ok(job.to_rank_yaml().map_err(|error| Box::new(TrainError::from(error)))?)
}

/// Returns the path of the termination message of rank `rank`.
pub(super) fn last_words(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("rank-{rank}"))
}
