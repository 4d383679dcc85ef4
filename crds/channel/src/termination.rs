//! Termination message of a pod whose training has finished all steps: the last report of rank 0. Kubernetes
//! keeps it in the status of the pod, where an operator that did not run at the end reads it.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use prost::Message as _;

use crate::ReportRequest;
use crate::limits::shortened;

/// Prefix of the line with the encoded report.
const LINE: &str = "last report: ";
/// Bytes of the encoded report. Kubernetes keeps 4096 bytes of a message, and base64 takes four thirds.
const MAX_REPORT_BYTES: usize = 2900;
/// Bytes of the warning of a report that would be too long.
const MAX_WARNING_BYTES: usize = 512;

/// Formats the last report of a rank as a termination message, without its metrics. A report that is too long
/// loses its commits, which were reported at the start, the end of its warning, and its oldest checkpoints.
pub fn message(report: &ReportRequest) -> String {
    let report = fitted(report);
    let steps = report.progress.as_ref().map_or((0, 0), |progress| (progress.step, progress.num_steps));
    let encoded = STANDARD_NO_PAD.encode(report.encode_to_vec());
    format!("step {} of {} is done\n{LINE}{encoded}", steps.0, steps.1)
}

/// Parses the report in a termination message; `None` if it has none that can be decoded.
pub fn report_in(message: &str) -> Option<ReportRequest> {
    let line = message.lines().find_map(|line| line.strip_prefix(LINE))?;
    let bytes = STANDARD_NO_PAD.decode(line.trim_end()).ok()?;
    ReportRequest::decode(bytes.as_slice()).ok()
}

fn fitted(report: &ReportRequest) -> ReportRequest {
    let mut report = ReportRequest { source: None, metrics: HashMap::new(), ending: None, ..report.clone() };
    if report.encoded_len() > MAX_REPORT_BYTES {
        report.commits.clear();
    }
    if report.encoded_len() > MAX_REPORT_BYTES
        && let Some(progress) = &mut report.progress
    {
        progress.warning.truncate(shortened(&progress.warning, MAX_WARNING_BYTES).len());
    }
    while report.encoded_len() > MAX_REPORT_BYTES && !report.checkpoints.is_empty() {
        report.checkpoints.remove(0);
        // An empty list would say that no checkpoint exists.
        report.knows_checkpoints &= !report.checkpoints.is_empty();
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checkpoint, ModelCommit, Progress, Source};

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
    fn of_too_many_checkpoints_a_message_has_the_newest() {
        for (path, num_kept) in [("p".repeat(200), 1_usize..100), ("p".repeat(4000), 0..1)] {
            let message = message(&report(100, &path));
            assert!(message.len() <= 4096, "{} bytes", message.len());
            let read = report_in(&message).unwrap();
            assert_eq!(read.progress.unwrap().step, 40);
            assert!(num_kept.contains(&read.checkpoints.len()), "{}", read.checkpoints.len());
            assert_eq!(read.checkpoints.last().map_or(100, |newest| newest.step), 100);
            assert_eq!(read.knows_checkpoints, !read.checkpoints.is_empty());
        }
    }

    #[test]
    fn other_messages_have_no_report() {
        for message in ["", "exit code 1", "last report: ", "last report: ?", "last report: /w"] {
            assert_eq!(report_in(message).filter(|report| report.progress.is_some()), None, "{message}");
        }
    }
}
