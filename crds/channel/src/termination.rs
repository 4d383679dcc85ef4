//! Termination message of a pod whose training has finished all steps: the last report of rank 0. Kubernetes
//! keeps it in the status of the pod, where an operator that did not run at the end reads it.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use prost::Message as _;

use crate::limits::shortened;
use crate::{Progress, ReportRequest};

/// Prefix of the line with the encoded report.
const LINE: &str = "last report: ";
/// Prefix of the line with the steps of the checkpoints that did not fit into the report.
const LEFT_OUT_LINE: &str = "older checkpoints: ";
/// Maximum size in bytes of a termination message that Kubernetes keeps.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Maximum size of the encoded report in bytes; base64 takes four thirds of it.
const MAX_REPORT_BYTES: usize = 2400;
/// Maximum length of the warning in bytes, if the report would be too long otherwise.
const MAX_WARNING_BYTES: usize = 512;
/// Maximum length of the warning's reasons in bytes, if the report would be too long otherwise. All reasons
/// of this release together take less.
const MAX_REASONS_BYTES: usize = 512;

/// Formats the last report of a rank as a termination message, without its metrics. A report that is too long
/// is reduced step by step until it fits. First its commits are removed, which were reported at the start.
/// Then the warning and its list of reasons are truncated. Then the oldest checkpoints are removed, whose
/// steps a separate line lists. At last the counts of restarts in place are removed.
pub fn message(report: &ReportRequest) -> String {
    let steps = report.progress.as_ref().map_or((0, 0), |progress| (progress.step, progress.num_steps));
    let (report, left_out) = fitted(report);
    let head = format!("step {} of {} is done\n", steps.0, steps.1);
    let last = format!("{LINE}{}", STANDARD_NO_PAD.encode(report.encode_to_vec()));
    let list = listed(&left_out, MAX_MESSAGE_BYTES.saturating_sub(head.len() + last.len()));
    format!("{head}{list}{last}")
}

/// Parses the steps of existing checkpoints that did not fit into the message's report, oldest first.
pub fn left_out_in(message: &str) -> Vec<u64> {
    let line = message.lines().find_map(|line| line.strip_prefix(LEFT_OUT_LINE));
    line.into_iter().flat_map(str::split_whitespace).filter_map(|step| step.parse().ok()).collect()
}

/// Parses the report in a termination message; `None` if it has none that can be decoded.
pub fn report_in(message: &str) -> Option<ReportRequest> {
    let line = message.lines().find_map(|line| line.strip_prefix(LINE))?;
    let bytes = STANDARD_NO_PAD.decode(line.trim_end()).ok()?;
    ReportRequest::decode(bytes.as_slice()).ok()
}

/// Reduces a report until it fits into a message. Returns the report, and the steps of the removed
/// checkpoints, oldest first.
fn fitted(report: &ReportRequest) -> (ReportRequest, Vec<u64>) {
    let mut report = ReportRequest { source: None, metrics: HashMap::new(), ending: None, ..report.clone() };
    let is_too_long = |report: &ReportRequest| report.encoded_len() > MAX_REPORT_BYTES;
    if is_too_long(&report) {
        report.commits.clear();
    }
    if is_too_long(&report)
        && let Some(progress) = &mut report.progress
    {
        shorten_warning(progress);
    }
    let mut left_out = Vec::new();
    while is_too_long(&report) && !report.checkpoints.is_empty() {
        left_out.push(report.checkpoints.remove(0).step);
        // An empty list that counts as complete would mean that no checkpoint exists.
        report.knows_checkpoints &= !report.checkpoints.is_empty();
    }
    if is_too_long(&report) {
        report.restarts.clear();
    }
    (report, left_out)
}

fn shorten_warning(progress: &mut Progress) {
    progress.warning.truncate(shortened(&progress.warning, MAX_WARNING_BYTES).len());
    let mut num_bytes = 0;
    progress.warning_reasons.retain(|reason| {
        // The protobuf tag and length of a reason take a few bytes too.
        num_bytes += reason.len() + 4;
        num_bytes <= MAX_REASONS_BYTES
    });
}

/// Formats the line with these steps, without the oldest steps if the line would exceed `max_bytes`.
fn listed(steps: &[u64], max_bytes: usize) -> String {
    let line = |steps: &[u64]| {
        let words: Vec<String> = steps.iter().map(u64::to_string).collect();
        format!("{LEFT_OUT_LINE}{}\n", words.join(" "))
    };
    let fits = (0..steps.len()).map(|first| line(&steps[first..])).find(|line| line.len() <= max_bytes);
    fits.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checkpoint, ModelCommit, Source};

    fn report(num_checkpoints: u64, path: &str) -> ReportRequest {
        let saved = |step| Checkpoint { step, path: path.into(), ..Checkpoint::default() };
        ReportRequest {
            source: Some(Source { rank: 0, name: "adding".into(), ..Source::default() }),
            progress: Some(Progress {
                step: 40,
                num_steps: 40,
                reward: Some(0.75),
                warning: "w".repeat(4096),
                ..Progress::default()
            }),
            checkpoints: (1..=num_checkpoints).map(saved).collect(),
            knows_checkpoints: true,
            metrics: (0..500).map(|idx| (format!("metric/{idx}"), 1.0)).collect(),
            commits: vec![ModelCommit { field: "spec.model.hub".into(), ..ModelCommit::default() }],
            ..ReportRequest::default()
        }
    }

    #[test]
    fn the_last_report_is_read_back_from_a_message_that_kubernetes_keeps() {
        let mut report = report(2, "/runs/adding/checkpoints/step-000040");
        report.progress.as_mut().unwrap().warning.truncate(600);
        let message = message(&report);
        assert!(message.starts_with("step 40 of 40 is done\n"), "{message}");
        let read = report_in(&message).unwrap();
        let progress = read.progress.unwrap();
        assert_eq!((progress.step, progress.reward, progress.warning.len()), (40, Some(0.75), 600));
        assert_eq!((read.checkpoints.len(), read.knows_checkpoints, read.commits.len()), (2, true, 1));
    }

    #[test]
    fn a_message_has_the_newest_of_too_many_checkpoints() {
        for (path, num_kept) in [("p".repeat(200), 1_usize..100), ("p".repeat(4000), 0..1)] {
            let message = message(&report(100, &path));
            assert!(message.len() <= 4096, "{} bytes", message.len());
            let read = report_in(&message).unwrap();
            assert_eq!(read.progress.unwrap().step, 40);
            assert!(num_kept.contains(&read.checkpoints.len()), "{}", read.checkpoints.len());
            assert_eq!(read.checkpoints.last().map_or(100, |newest| newest.step), 100);
            assert_eq!(read.knows_checkpoints, !read.checkpoints.is_empty());
            let mut steps = left_out_in(&message);
            steps.extend(read.checkpoints.iter().map(|one| one.step));
            assert_eq!(steps, (1..=100).collect::<Vec<_>>(), "each is in one of both");
        }
    }

    #[test]
    fn a_message_fits_and_tells_the_last_step_however_long_its_report_is() {
        let mut report = report(100, &"p".repeat(4000));
        report.checkpoints.iter_mut().for_each(|one| one.step += 1 << 53);
        report.restarts = (0..17).map(|idx| (format!("{idx}{}", "c".repeat(256)), u32::MAX)).collect();
        let progress = report.progress.as_mut().unwrap();
        (progress.step, progress.num_steps) = (u64::MAX, u64::MAX);
        progress.warning_reasons = (0..11).map(|idx| format!("{idx:02}{}", "r".repeat(254))).collect();
        let message = message(&report);
        assert!(message.len() <= MAX_MESSAGE_BYTES, "{} bytes", message.len());
        let left_out = left_out_in(&message);
        assert_eq!(left_out.last(), Some(&((1 << 53) + 100)), "{left_out:?}");
        let read = report_in(&message).unwrap().progress.unwrap();
        assert_eq!((read.step, read.warning.len(), read.warning_reasons.len()), (u64::MAX, 512, 1));
        assert!(read.warning_reasons[0].starts_with("00"), "the first reason is the most important one");
    }

    #[test]
    fn a_report_that_fits_has_no_list_of_older_checkpoints() {
        let message = message(&ReportRequest::default());
        assert_eq!((message.lines().count(), left_out_in(&message)), (2, Vec::new()));
    }

    #[test]
    fn other_messages_have_no_report() {
        for message in ["", "exit code 1", "last report: ", "last report: ?", "last report: /w"] {
            assert_eq!(report_in(message).filter(|report| report.progress.is_some()), None, "{message}");
        }
    }
}
