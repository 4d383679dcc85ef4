//! The end of an attempt of a job, and what follows: exit codes, causes and their retries, the job's own
//! rules, and restarts in place.

mod cause;
mod exit_code;
mod policy;
mod restarts;
mod short_attempts;

pub use cause::{Budget, FailureCause};
pub use exit_code::{ExitCode, TERMINATION_MESSAGE_VARIABLE};
pub use policy::{rule_in_words, rule_name};
pub use restarts::{restarts_in, restarts_line, retries_left};
pub use short_attempts::{AttemptProgress, SHORT_ATTEMPT, restart_delay};
