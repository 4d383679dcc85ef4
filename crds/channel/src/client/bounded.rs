//! Limits that the trainer applies to a report before it is sent. The operator refuses a report of which one
//! field exceeds its limit. All later reports of the process have that field too, so none of them would reach
//! the status.

use std::collections::BTreeSet;

use prost::Message as _;

use crate::limits::{
    self, MAX_COMMITS, MAX_EXIT_CODE, MAX_MESSAGE_BYTES, MAX_NAME_BYTES, MAX_REPORT_BYTES, MAX_RESTARTS,
    MAX_SECONDS, MAX_TEXT_BYTES, MAX_WARNING_REASONS, MAX_WHOLE, TIMES_MS,
};
use crate::{Checkpoint, Ending, ModelCommit, Progress, ReportRequest, TimeSpent};

/// Bytes reserved for the sequence number, which is set after the report has been bounded.
const SEQUENCE_BYTES: usize = 16;
/// Maximum size of all checkpoints of a report in bytes, so that there is room for metrics.
const MAX_CHECKPOINT_BYTES: usize = MAX_REPORT_BYTES / 2;
/// Maximum size of the protobuf tag and length of a checkpoint, in bytes.
const TAG_BYTES: usize = 8;
/// Number of hexadecimal digits of a commit's hash.
const COMMIT_DIGITS: usize = 40;

/// Reduces a report to the operator's limits: removes entries that it would refuse, clamps numbers and
/// truncates long messages.
pub fn bound(report: &mut ReportRequest) {
    bound_checkpoints(&mut report.checkpoints);
    bound_commits(&mut report.commits);
    report.restarts.values_mut().for_each(|count| *count = (*count).min(MAX_RESTARTS));
    if let Some(progress) = &mut report.progress {
        bound_progress(progress);
    }
    if let Some(ending) = &mut report.ending {
        bound_ending(ending);
    }
    bound_metrics(report);
}

/// Removes the oldest checkpoints, duplicates of a step except for the newest, and checkpoints with too long
/// texts.
fn bound_checkpoints(checkpoints: &mut Vec<Checkpoint>) {
    let (mut steps, mut num_bytes) = (BTreeSet::new(), 0);
    checkpoints.reverse();
    checkpoints.retain_mut(|one| {
        one.committed_ms = within_times(one.committed_ms);
        let is_fit = [&one.path, &one.digest].into_iter().all(|text| text.len() <= MAX_TEXT_BYTES);
        if !is_fit || one.step > MAX_WHOLE {
            return false;
        }
        num_bytes += one.encoded_len() + TAG_BYTES;
        num_bytes <= MAX_CHECKPOINT_BYTES && steps.insert(one.step)
    });
    checkpoints.truncate(limits::MAX_CHECKPOINTS);
    checkpoints.reverse();
}

fn bound_commits(commits: &mut Vec<ModelCommit>) {
    let mut fields = BTreeSet::new();
    commits.retain(|ModelCommit { field, repo, commit }| {
        let is_hash = commit.len() == COMMIT_DIGITS && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_short = [field, repo].into_iter().all(|text| text.len() <= MAX_NAME_BYTES);
        is_hash && is_short && fields.insert(field.clone())
    });
    commits.truncate(MAX_COMMITS);
}

fn bound_progress(progress: &mut Progress) {
    shorten(&mut progress.warning);
    progress.warning_reasons.retain(|reason| reason.len() <= MAX_NAME_BYTES);
    progress.warning_reasons.truncate(MAX_WARNING_REASONS);
    progress.step = progress.step.min(MAX_WHOLE);
    progress.num_steps = progress.num_steps.min(MAX_WHOLE);
    progress.step_finished_ms = progress.step_finished_ms.map(within_times);
    if let Some(spent) = &mut progress.time_spent {
        bound_time_spent(spent);
    }
}

fn bound_time_spent(spent: &mut TimeSpent) {
    spent.resumed_after_step = spent.resumed_after_step.min(MAX_WHOLE);
    for seconds in [
        &mut spent.process_seconds,
        &mut spent.setup_seconds,
        &mut spent.step_seconds,
        &mut spent.evaluation_seconds,
        &mut spent.checkpoint_seconds,
    ] {
        if !seconds.is_finite() || seconds.abs() > MAX_SECONDS {
            *seconds = 0.0;
        }
    }
}

fn bound_ending(ending: &mut Ending) {
    shorten(&mut ending.message);
    ending.exit_code = ending.exit_code.min(MAX_EXIT_CODE);
    ending.time_ms = within_times(ending.time_ms);
}

/// Removes metrics until the operator accepts the report. Validation metrics (`val-`) go first, the longest
/// names before shorter ones: their names contain those of data sources, which may be long and many.
fn bound_metrics(report: &mut ReportRequest) {
    report.metrics.retain(|name, _| name.len() <= MAX_NAME_BYTES);
    let mut names: Vec<String> = report.metrics.keys().cloned().collect();
    names.sort_by_cached_key(|name| (name.starts_with("val-"), name.len(), name.clone()));
    let is_too_large = |report: &ReportRequest| {
        report.metrics.len() > limits::MAX_METRICS || report.encoded_len() > MAX_REPORT_BYTES - SEQUENCE_BYTES
    };
    while is_too_large(report)
        && let Some(name) = names.pop()
    {
        report.metrics.remove(&name);
    }
}

fn shorten(text: &mut String) {
    text.truncate(limits::shortened(text, MAX_MESSAGE_BYTES).len());
}

/// Clamps a timestamp to the times that a status can have; the clock of a pod may be wrong.
fn within_times(time_ms: i64) -> i64 {
    time_ms.clamp(*TIMES_MS.start(), *TIMES_MS.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounded(names: impl IntoIterator<Item = String>) -> ReportRequest {
        let metrics = names.into_iter().map(|name| (name, 1.0)).collect();
        let mut report = ReportRequest { metrics, ..ReportRequest::default() };
        bound(&mut report);
        report
    }

    #[test]
    fn a_metric_that_the_operator_refuses_is_left_out_and_the_others_are_reported() {
        let of_source = |source: &str| format!("val-core/{source}/reward/mean@1");
        let long = of_source(&"x".repeat(240));
        assert!(long.len() > MAX_NAME_BYTES);
        let report = bounded([long, of_source("math"), "critic/rewards/mean".to_owned()]);
        let mut names: Vec<_> = report.metrics.into_keys().collect();
        names.sort();
        assert_eq!(names, ["critic/rewards/mean", "val-core/math/reward/mean@1"]);
    }

    #[test]
    fn metrics_of_the_shortest_source_names_are_reported_with_all_other_metrics() {
        for pad in [1, 200] {
            let sources = (0..2000).map(|idx| format!("val-core/{idx:0pad$}/reward/mean@1"));
            let report = bounded(sources.chain(["actor/lr".to_owned(), "critic/rewards/mean".to_owned()]));
            assert!(report.metrics.contains_key("actor/lr"));
            assert!(report.metrics.contains_key("critic/rewards/mean"));
            assert!(report.metrics.len() > 100 && report.metrics.len() <= limits::MAX_METRICS);
            assert!(report.encoded_len() <= MAX_REPORT_BYTES);
        }
    }

    #[test]
    fn the_newest_of_too_many_or_too_long_checkpoints_are_reported_with_metrics() {
        let saved = |step: u64, num_bytes: usize| {
            let path = "x".repeat(num_bytes);
            Checkpoint { step, path, ..Checkpoint::default() }
        };
        for (num_bytes, num_kept) in [(10, limits::MAX_CHECKPOINTS), (4000, 16)] {
            let checkpoints = (1..=200).map(|step| saved(step, num_bytes)).collect();
            let metrics = [("actor/lr".to_owned(), 1.0)].into();
            let mut report = ReportRequest { checkpoints, metrics, ..ReportRequest::default() };
            bound(&mut report);
            let steps: Vec<u64> = report.checkpoints.iter().map(|one| one.step).collect();
            assert_eq!(steps, (201 - num_kept as u64..=200).collect::<Vec<_>>(), "{num_bytes} bytes");
            assert_eq!(report.metrics.len(), 1);
        }
        let mut twice = vec![saved(3, 1), saved(4, 1), saved(3, 2), saved(5, MAX_TEXT_BYTES + 1)];
        bound_checkpoints(&mut twice);
        assert_eq!(twice, [saved(4, 1), saved(3, 2)]);
    }
}
