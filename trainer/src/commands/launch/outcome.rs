//! Classifies the exits of all ranks into one cause and one exit code. This module handles no processes.

use std::fmt;
use std::time::Duration;

use rlt_api::{ExitCode, FailureCause};
use signal_hook::consts::SIGTERM;

/// Exit codes of a process that a second SIGTERM or SIGINT ended at once.
const INSISTED: [i32; 2] = [143, 130];

/// End of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Number of the rank.
    pub rank: usize,
    /// Exit code; `None` if a signal ended the rank.
    pub code: Option<i32>,
    /// Signal that ended the rank.
    pub signal: Option<i32>,
    /// Termination message of the rank.
    pub words: Option<String>,
    /// Whether and why the launcher ended the rank.
    pub cut: Cut,
}

/// Reason for which the launcher ended a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The launcher did not end the rank.
    Not,
    /// The launcher forwarded a signal before the rank could catch it, or forwarded two.
    BySignal,
    /// The rank was killed because another rank had ended.
    AfterAnother,
    /// The rank was killed because it did not end within this time of a signal.
    TooLate(Duration),
}

impl Cut {
    /// Classifies a rank that ended by itself after signals were forwarded.
    pub(super) fn by_signal(code: Option<i32>, signal: Option<i32>) -> Self {
        let is_insisted = code.is_some_and(|code| INSISTED.contains(&code));
        if signal == Some(SIGTERM) || is_insisted { Self::BySignal } else { Self::Not }
    }
}

/// Result of a machine's ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// No rank failed; the code is that of the launcher.
    Ended(ExitCode),
    /// A rank failed.
    Failed(Box<Failed>),
}

/// Failure of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Rank that failed first.
    pub rank: usize,
    /// Description of its end.
    pub how: String,
    /// Descriptions of the ends of the other ranks.
    pub other_ends: Vec<(usize, String)>,
    /// Exit code of the launcher.
    pub code: ExitCode,
    /// Cause of the failure, which decides whether the job is retried; `None` if a retry cannot help.
    pub cause: Option<FailureCause>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} {}", self.rank, self.how)?;
        self.other_ends.iter().try_for_each(|(rank, how)| write!(f, "\n  then rank {rank} {how}"))
    }
}

impl End {
    /// Returns the exit code of an orderly end; `None` for a failure.
    fn success(&self) -> Option<ExitCode> {
        if self.cut == Cut::BySignal {
            return Some(ExitCode::Preempted);
        }
        let code = self.code.and_then(ExitCode::from_code)?;
        matches!(code, ExitCode::Success | ExitCode::Preempted).then_some(code)
    }

    /// Whether the rank failed: its end is neither orderly nor caused by the launcher after the end of
    /// another.
    fn is_failure(&self) -> bool {
        self.cut != Cut::AfterAnother && self.success().is_none()
    }

    fn has_lost_a_peer(&self) -> bool {
        self.code == Some(i32::from(ExitCode::PeerLost.code()))
    }

    /// Whether the rank was killed, or failed for another reason than a lost peer.
    pub(super) fn is_cause(&self) -> bool {
        self.is_failure() && !self.has_lost_a_peer()
    }

    /// Whether the other ranks cannot continue without this one.
    pub(super) fn ends_all(&self) -> bool {
        self.is_failure() || self.cut == Cut::BySignal
    }

    fn failure_code(&self) -> ExitCode {
        // The job sees a rank that a signal ended as a lost peer.
        self.code.map_or(ExitCode::PeerLost, |code| ExitCode::from_code(code).unwrap_or(ExitCode::Failure))
    }

    fn cause(&self) -> Option<FailureCause> {
        self.code.map_or(Some(FailureCause::Signalled), FailureCause::from_exit_code)
    }

    pub(super) fn how(&self) -> String {
        let ended = match (self.cut, self.code, self.signal) {
            (Cut::AfterAnother, _, _) => "was ended after it".to_owned(),
            (Cut::TooLate(grace), _, _) => {
                format!("did not end within {} s of a signal and was killed", grace.as_secs())
            }
            (_, Some(0), _) => "was done".to_owned(),
            (_, Some(code), _) => format!("ended with exit code {code}"),
            (_, None, Some(signal)) => format!("was killed by signal {signal}"),
            (_, None, None) => "ended without a code".to_owned(),
        };
        match &self.words {
            // The message of a rank that is done is a report for the operator.
            Some(words) if self.code != Some(0) => format!("{ended}: {}", words.trim_end()),
            _ => ended,
        }
    }
}

impl AttemptOutcome {
    /// Classifies the ends of all ranks of a machine, given in chronological order.
    pub fn of(ends: &[End]) -> Self {
        // During the setup of a run, too, a signal may end a rank without the other ranks.
        let was_cut_by_signal = ends.iter().any(|end| end.success() == Some(ExitCode::Preempted));
        // A rank that lost a peer to a signal has not failed on its own.
        let failed =
            || ends.iter().filter(|end| end.is_failure() && !(was_cut_by_signal && end.has_lost_a_peer()));
        // A rank may report a lost peer before the launcher sees the peer's exit.
        let Some(first) = failed().find(|end| end.is_cause()).or_else(|| failed().next()) else {
            let stopped = ends.iter().any(|end| end.success() == Some(ExitCode::Preempted));
            return Self::Ended(if stopped { ExitCode::Preempted } else { ExitCode::Success });
        };
        let others = ends.iter().filter(|end| end.rank != first.rank);
        Self::Failed(Box::new(Failed {
            rank: first.rank,
            how: first.how(),
            other_ends: others.map(|end| (end.rank, end.how())).collect(),
            code: first.failure_code(),
            cause: first.cause(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(rank: usize, code: i32) -> End {
        End { rank, code: Some(code), signal: None, words: None, cut: Cut::Not }
    }

    fn killed(rank: usize, signal: i32) -> End {
        End { code: None, signal: Some(signal), ..exited(rank, 0) }
    }

    fn failed(ends: &[End]) -> Failed {
        match AttemptOutcome::of(ends) {
            AttemptOutcome::Failed(failed) => *failed,
            AttemptOutcome::Ended(code) => unreachable!("ended with {code:?}"),
        }
    }

    fn cause(ends: &[End]) -> (usize, ExitCode) {
        let Failed { rank, code, .. } = failed(ends);
        (rank, code)
    }

    #[test]
    fn a_rank_that_loses_a_preempted_peer_has_not_failed() {
        let ends = [exited(0, 80), exited(1, 76)];
        assert_eq!(AttemptOutcome::of(&ends), AttemptOutcome::Ended(ExitCode::Preempted));
        assert_eq!(cause(&[exited(0, 80), exited(1, 78)]), (1, ExitCode::BadConfig));
    }

    #[test]
    fn ranks_that_all_end_well_end_well_together() {
        assert_eq!(
            AttemptOutcome::of(&[exited(1, 0), exited(0, 0)]),
            AttemptOutcome::Ended(ExitCode::Success)
        );
        assert_eq!(
            AttemptOutcome::of(&[exited(1, 80), exited(0, 80)]),
            AttemptOutcome::Ended(ExitCode::Preempted)
        );
    }

    #[test]
    fn the_cause_is_the_rank_that_failed_on_its_own_in_any_order_of_exits() {
        assert_eq!(cause(&[exited(0, 76), killed(2, 9), exited(1, 76)]), (2, ExitCode::PeerLost));
        assert_eq!(cause(&[exited(0, 76), exited(1, 78)]), (1, ExitCode::BadConfig));
        assert_eq!(cause(&[exited(1, 77), exited(0, 77)]), (1, ExitCode::Diverged));
        let ended = End { cut: Cut::AfterAnother, ..killed(2, 9) };
        assert_eq!(cause(&[exited(1, 101), ended]), (1, ExitCode::Failure));
    }

    #[test]
    fn the_cause_decides_which_budget_pays() {
        assert_eq!(failed(&[exited(0, 76), killed(1, 11)]).cause, Some(FailureCause::Signalled));
        assert_eq!(failed(&[exited(0, 75), exited(1, 76)]).cause, Some(FailureCause::RetryableIo));
        assert_eq!(failed(&[exited(0, 78), exited(1, 78)]).cause, Some(FailureCause::BadConfig));
    }

    #[test]
    fn without_a_cause_on_this_machine_its_ranks_have_lost_one_elsewhere() {
        let lost = End { words: Some("no sign of life from rank 5\n".into()), ..exited(1, 76) };
        let Failed { rank, how, code, .. } = failed(&[lost, exited(0, 76)]);
        assert_eq!((rank, code), (1, ExitCode::PeerLost));
        assert_eq!(how, "ended with exit code 76: no sign of life from rank 5");
    }

    #[test]
    fn the_report_of_a_rank_that_is_done_is_no_part_of_the_cause() {
        let done = End { words: Some("step 3 of 3 is done\nlast report: CgA".into()), ..exited(0, 0) };
        assert_eq!(failed(&[done, exited(1, 78)]).other_ends, [(0, "was done".to_owned())]);
    }

    #[test]
    fn a_run_stopped_before_its_first_checkpoint_has_not_failed() {
        let early = End { cut: Cut::by_signal(None, Some(15)), ..killed(0, 15) };
        let missing = End { cut: Cut::AfterAnother, ..killed(2, 9) };
        let ends = [early.clone(), exited(1, 76), missing.clone()];
        assert_eq!(AttemptOutcome::of(&ends), AttemptOutcome::Ended(ExitCode::Preempted));
        assert_eq!(cause(&[early, exited(1, 78), missing]), (1, ExitCode::BadConfig));
        assert_eq!(Cut::by_signal(Some(143), None), Cut::BySignal);
        assert_eq!(Cut::by_signal(None, Some(9)), Cut::Not);
    }

    #[test]
    fn ranks_that_do_not_stop_in_time_are_named_with_the_time() {
        let late = End { cut: Cut::TooLate(Duration::from_secs(3)), ..killed(1, 9) };
        let Failed { rank, how, code, .. } = failed(&[exited(0, 80), late]);
        assert_eq!((rank, code), (1, ExitCode::PeerLost));
        assert_eq!(how, "did not end within 3 s of a signal and was killed");
    }
}
