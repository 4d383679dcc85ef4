//! Variables by which a launcher and its workers know each other.

use std::time::Duration;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::error::LaunchError;

/// Variable with the launcher's process id, set for the workers of a launcher.
pub(super) const LAUNCHER_VARIABLE: &str = "RLT_LAUNCHER";
/// Variable with the seconds that earlier attempts took, set for the workers of a launcher. They count
/// towards the job's deadline.
pub(super) const SPENT_VARIABLE: &str = "RLT_SPENT_SECONDS";

/// Whether a launcher has started this process and reports its result.
pub fn is_launched() -> bool {
    std::env::var_os(LAUNCHER_VARIABLE).is_some()
}

/// Returns the time that earlier attempts of this process's launcher took.
pub(crate) fn spent_before() -> Duration {
    let seconds = std::env::var(SPENT_VARIABLE).ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

/// Asks the kernel to kill this process when its launcher dies for any reason.
///
/// # Errors
/// [`LaunchError::Orphan`] if the launcher died before that took effect.
pub fn end_with_launcher() -> Result<(), LaunchError> {
    let Ok(text) = std::env::var(LAUNCHER_VARIABLE) else { return Ok(()) };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::warn!(%error, "this worker may not be killed when its launcher dies");
    }
    let launcher = text.parse().unwrap_or(0);
    if getppid().map(Pid::as_raw_pid) != Some(launcher) {
        return Err(LaunchError::Orphan { launcher });
    }
    Ok(())
}
