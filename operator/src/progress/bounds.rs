//! Bounds of a report, so that every accepted report fits into a status that the API server accepts. Pure.

use std::collections::BTreeSet;

use rlt_api::FailureCause;
use rlt_channel::limits::{self, MAX_EXIT_CODE, MAX_RESTARTS, MAX_SECONDS, MAX_WHOLE, TIMES_MS};
use rlt_channel::{Checkpoint, Ending, ModelCommit, Progress, ReportRequest, TimeSpent};

/// Removes the parts of a report that only a trainer of a later release sends, so that the rest is accepted:
/// restarts for causes that this release does not know, surplus reasons of a warning, and metrics out of
/// bounds.
pub(super) fn drop_unknown(report: &mut ReportRequest) {
    report.restarts.retain(|name, _| FailureCause::from_name(name).is_some());
    if let Some(progress) = &mut report.progress {
        progress.warning_reasons.truncate(limits::MAX_WARNING_REASONS);
    }
    report.metrics.retain(|name, _| name.len() <= limits::MAX_NAME_BYTES);
    let num_surplus = report.metrics.len().saturating_sub(limits::MAX_METRICS);
    if num_surplus > 0 {
        let mut names: Vec<String> = report.metrics.keys().cloned().collect();
        names.sort_unstable();
        for name in names.iter().rev().take(num_surplus) {
            report.metrics.remove(name);
        }
    }
}

/// Checks that a report is within the bounds, which every trainer of this release keeps.
///
/// # Errors
/// The field, the expected and the actual value.
pub(super) fn check(report: &ReportRequest) -> Result<(), String> {
    at_most("checkpoints", report.checkpoints.len(), limits::MAX_CHECKPOINTS)?;
    at_most("metrics", report.metrics.len(), limits::MAX_METRICS)?;
    for name in report.metrics.keys() {
        at_most("bytes of a metric's name", name.len(), limits::MAX_NAME_BYTES)?;
    }
    check_commits(&report.commits)?;
    let mut steps = BTreeSet::new();
    for checkpoint in &report.checkpoints {
        check_checkpoint(checkpoint)?;
        if !steps.insert(checkpoint.step) {
            return Err(format!(
                "checkpoints: expected one of each step, got two of step {}",
                checkpoint.step
            ));
        }
    }
    for (name, count) in &report.restarts {
        if FailureCause::from_name(name).is_none() || *count > MAX_RESTARTS {
            return Err(format!(
                "restarts: expected at most {MAX_RESTARTS} for a cause, got {count} for `{name}`"
            ));
        }
    }
    if let Some(progress) = &report.progress {
        check_progress(progress)?;
    }
    report.ending.as_ref().map_or(Ok(()), check_ending)
}

/// Checks that the end of a process is within the bounds.
///
/// # Errors
/// As [`check`].
pub(super) fn check_ending(ending: &Ending) -> Result<(), String> {
    at_most("bytes of ending.message", ending.message.len(), limits::MAX_MESSAGE_BYTES)?;
    check_time("ending.time_ms", ending.time_ms)?;
    if ending.exit_code > MAX_EXIT_CODE {
        return Err(format!("ending.exit_code: expected at most {MAX_EXIT_CODE}, got {}", ending.exit_code));
    }
    Ok(())
}

fn check_commits(commits: &[ModelCommit]) -> Result<(), String> {
    at_most("commits", commits.len(), limits::MAX_COMMITS)?;
    let mut fields = BTreeSet::new();
    for ModelCommit { field, repo, commit } in commits {
        at_most("bytes of commits.field", field.len(), limits::MAX_NAME_BYTES)?;
        at_most("bytes of commits.repo", repo.len(), limits::MAX_NAME_BYTES)?;
        if commit.len() != 40 || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err("commits.commit: expected 40 hexadecimal digits".to_owned());
        }
        if !fields.insert(field) {
            return Err("commits: expected one of each field, got two".to_owned());
        }
    }
    Ok(())
}

fn check_checkpoint(checkpoint: &Checkpoint) -> Result<(), String> {
    at_most("bytes of checkpoints.path", checkpoint.path.len(), limits::MAX_TEXT_BYTES)?;
    at_most("bytes of checkpoints.digest", checkpoint.digest.len(), limits::MAX_TEXT_BYTES)?;
    check_whole("checkpoints.step", checkpoint.step)?;
    check_time("checkpoints.committed_ms", checkpoint.committed_ms)
}

fn check_progress(progress: &Progress) -> Result<(), String> {
    at_most("bytes of progress.warning", progress.warning.len(), limits::MAX_MESSAGE_BYTES)?;
    at_most("progress.warning_reasons", progress.warning_reasons.len(), limits::MAX_WARNING_REASONS)?;
    for reason in &progress.warning_reasons {
        at_most("bytes of progress.warning_reasons", reason.len(), limits::MAX_NAME_BYTES)?;
    }
    check_whole("progress.step", progress.step)?;
    check_whole("progress.num_steps", progress.num_steps)?;
    progress.step_finished_ms.map_or(Ok(()), |ms| check_time("progress.step_finished_ms", ms))?;
    progress.time_spent.as_ref().map_or(Ok(()), check_time_spent)
}

fn check_time_spent(spent: &TimeSpent) -> Result<(), String> {
    check_whole("time_spent.resumed_after_step", spent.resumed_after_step)?;
    let seconds = [
        ("process_seconds", spent.process_seconds),
        ("setup_seconds", spent.setup_seconds),
        ("step_seconds", spent.step_seconds),
        ("evaluation_seconds", spent.evaluation_seconds),
        ("checkpoint_seconds", spent.checkpoint_seconds),
    ];
    let is_within = |seconds: f64| seconds.is_finite() && seconds.abs() <= MAX_SECONDS;
    match seconds.into_iter().find(|(_, seconds)| !is_within(*seconds)) {
        None => Ok(()),
        Some((field, got)) => {
            Err(format!("time_spent.{field}: expected at most {MAX_SECONDS} seconds, got {got}"))
        }
    }
}

fn at_most(what: &str, size: usize, limit: usize) -> Result<(), String> {
    if size > limit { Err(format!("{what}: at most {limit} are taken, got {size}")) } else { Ok(()) }
}

fn check_whole(field: &str, got: u64) -> Result<(), String> {
    if got > MAX_WHOLE { Err(format!("{field}: expected at most 2^53, got {got}")) } else { Ok(()) }
}

fn check_time(field: &str, got: i64) -> Result<(), String> {
    if TIMES_MS.contains(&got) {
        return Ok(());
    }
    Err(format!("{field}: expected a time from 1970 to 9999 in milliseconds since 1970, got {got}"))
}

#[cfg(test)]
mod tests;
