//! Messages, exit codes and causes of errors that end a step.

use std::error::Error;
use std::io::ErrorKind;

use rlt_core::importance::ImportanceError;
use rlt_core::packing::PackingError;
use rlt_core::rows::RowsError;
use rlt_engine::EngineError;

use super::*;
use crate::roles::actor::update::UpdateError;
use crate::roles::critic::CriticError;
use crate::roles::learner::LearnerError;
use crate::roles::reward::RewardModelError;

fn too_long() -> LearnerError {
    PackingError::SampleTooLong { sample_idx: 0, len: 9, max_tokens: 8 }.into()
}

#[test]
fn every_step_fault_has_its_message_and_exit_code() {
    let not_finite = EngineError::NonFiniteLogits { request_idx: 0, sample_idx: 0, position: 3 };
    let unreadable = DataError::Open { path: "rows.jsonl".into(), source: ErrorKind::TimedOut.into() };
    let unknown = DataError::UnknownFormat { path: "rows.txt".into() };
    let cases: Vec<(StepError, &str, ExitCode)> = vec![
        (EngineError::Asleep.into(), "failed to generate", ExitCode::Failure),
        (not_finite.into(), "failed to generate", ExitCode::Diverged),
        (
            RewardModelError::NoSteps { name: "steps".into() }.into(),
            "failed to judge by a reward model",
            ExitCode::BadConfig,
        ),
        (too_long().into(), "failed to score the batch", ExitCode::BadConfig),
        (LearnerError::LossPanicked.into(), "failed to score the batch", ExitCode::Failure),
        (UpdateError::from(too_long()).into(), "failed to update the actor", ExitCode::BadConfig),
        (CriticError::from(too_long()).into(), "failed to update the critic", ExitCode::BadConfig),
        (CriticError::Missing("values").into(), "failed to update the critic", ExitCode::Failure),
        (
            RankError::NothingFromLeader.into(),
            "failed to communicate with the other ranks",
            ExitCode::Failure,
        ),
        (
            DigestError::Shards(RankError::NothingFromLeader).into(),
            "failed to compute digests of weights",
            ExitCode::Failure,
        ),
        (unreadable.into(), "failed to read the data", ExitCode::RetryableIo),
        (unknown.into(), "failed to read the data", ExitCode::BadConfig),
        (RowsError::NoOffsets.into(), "failed to pack the batch", ExitCode::Failure),
        (
            ImportanceError::NoTokens { num_rows: 0 }.into(),
            "failed to compute the rollout correction",
            ExitCode::Failure,
        ),
    ];
    for (error, message, exit_code) in cases {
        assert_eq!((error.to_string().as_str(), error.exit_code()), (message, exit_code));
        assert!(error.source().is_some(), "{message}: the error of the role is its source");
    }
}

#[test]
fn a_lost_rank_is_found_among_the_causes_of_a_failed_step() {
    let lost = UpdateError::from(LearnerError::from(RankError::NothingFromLeader));
    let error = StepError::from(lost);
    let causes = std::iter::successors(Some(&error as &(dyn Error + 'static)), |error| (*error).source());
    assert_eq!(causes.filter(|error| error.is::<RankError>()).count(), 1);
}
