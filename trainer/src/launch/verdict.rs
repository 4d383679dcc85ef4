//! What the ends of all ranks come to: one cause, one exit code. No process is touched here.

use std::collections::BTreeMap;

use rlt_api::ExitCode;

/// How one rank ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The rank.
    pub rank: usize,
    /// Its exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Its last error.
    pub words: Option<String>,
    /// The launcher ended it, because another rank had failed.
    pub is_ours: bool,
}

/// What the ranks of a machine came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody failed.
    Ended(ExitCode),
    /// Somebody did.
    Failed {
        /// The rank whose failure was the first.
        rank: usize,
        /// How it ended.
        how: String,
        /// How the other ranks ended.
        ends: BTreeMap<usize, String>,
        /// What the launcher ends with.
        code: ExitCode,
    },
}

impl End {
    /// The code of an orderly end; `None` for a failure.
    fn success(&self) -> Option<ExitCode> {
        let code = self.code.and_then(ExitCode::from_code)?;
        matches!(code, ExitCode::Success | ExitCode::Preempted).then_some(code)
    }

    /// A rank that was killed, or that failed of its own, and not because it had lost another.
    fn is_cause(&self) -> bool {
        !self.is_ours && self.success().is_none() && self.code != Some(i32::from(ExitCode::PeerLost.code()))
    }

    fn failure_code(&self) -> ExitCode {
        // To the job, a rank that a signal ended is a rank that is gone.
        self.code.map_or(ExitCode::PeerLost, |code| ExitCode::from_code(code).unwrap_or(ExitCode::Failure))
    }

    fn how(&self) -> String {
        let ended = match (self.is_ours, self.code, self.signal) {
            (true, _, _) => "was ended after it".to_owned(),
            (false, Some(0), _) => "was done".to_owned(),
            (false, Some(code), _) => format!("ended with exit code {code}"),
            (false, None, Some(signal)) => format!("was killed by signal {signal}"),
            (false, None, None) => "ended without a code".to_owned(),
        };
        match &self.words {
            Some(words) => format!("{ended}: {}", words.trim_end()),
            None => ended,
        }
    }
}

impl Verdict {
    /// Judges the ends of all ranks of a machine, in the order in which they came.
    pub fn of(ends: &[End]) -> Self {
        let failed = || ends.iter().filter(|end| !end.is_ours && end.success().is_none());
        // Who lost a peer says so before the launcher sees the peer's own end, now and then.
        let Some(first) = failed().find(|end| end.is_cause()).or_else(|| failed().next()) else {
            let stopped = ends.iter().any(|end| end.success() == Some(ExitCode::Preempted));
            return Self::Ended(if stopped { ExitCode::Preempted } else { ExitCode::Success });
        };
        let others = ends.iter().filter(|end| end.rank != first.rank);
        Self::Failed {
            rank: first.rank,
            how: first.how(),
            ends: others.map(|end| (end.rank, end.how())).collect(),
            code: first.failure_code(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(rank: usize, code: i32) -> End {
        End { rank, code: Some(code), signal: None, words: None, is_ours: false }
    }

    fn cause(ends: &[End]) -> (usize, ExitCode) {
        match Verdict::of(ends) {
            Verdict::Failed { rank, code, .. } => (rank, code),
            Verdict::Ended(code) => unreachable!("ended with {code:?}"),
        }
    }

    #[test]
    fn ranks_that_all_end_well_end_well_together() {
        assert_eq!(Verdict::of(&[exited(1, 0), exited(0, 0)]), Verdict::Ended(ExitCode::Success));
        assert_eq!(Verdict::of(&[exited(1, 80), exited(0, 80)]), Verdict::Ended(ExitCode::Preempted));
    }

    #[test]
    fn the_cause_is_who_failed_of_its_own_whoever_was_seen_first() {
        let killed = End { code: None, signal: Some(9), ..exited(2, 0) };
        assert_eq!(cause(&[exited(0, 76), killed.clone(), exited(1, 76)]), (2, ExitCode::PeerLost));
        assert_eq!(cause(&[exited(0, 76), exited(1, 78)]), (1, ExitCode::BadConfig));
        assert_eq!(cause(&[exited(1, 77), exited(0, 77)]), (1, ExitCode::Diverged));
        let ended = End { is_ours: true, ..killed };
        assert_eq!(cause(&[exited(1, 101), ended]), (1, ExitCode::Failure));
    }

    #[test]
    fn without_a_cause_on_this_machine_its_ranks_have_lost_one_elsewhere() {
        let lost = End { words: Some("no sign of life from rank 5\n".into()), ..exited(1, 76) };
        let Verdict::Failed { rank, how, code, .. } = Verdict::of(&[lost, exited(0, 76)]) else {
            unreachable!()
        };
        assert_eq!((rank, code), (1, ExitCode::PeerLost));
        assert_eq!(how, "ended with exit code 76: no sign of life from rank 5");
    }
}
