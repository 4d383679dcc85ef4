//! The choice of the pod whose log is shown, as a pure function.

use rlt_api::status::FailureStatus;
use rlt_objects::job::Job;
use rlt_objects::prepare::Prepared;
use rlt_objects::worker::{Worker, WorkerPhase};

use crate::status::status_of;

/// Rank and attempt that the arguments select.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub(super) rank: u32,
    pub(super) attempt: Option<u32>,
    pub(super) previous: bool,
}

/// The log to show, or why there is none.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Choice {
    /// The log of this pod.
    Pod { name: String, attempt: u32 },
    /// The pod is gone; with the last failure of its attempt, if there is one.
    Gone { attempt: u32, last: Option<FailureStatus> },
    /// The pod does not exist or run yet; the text says why.
    NotYet(String),
    /// The rank or attempt does not exist; the text says why.
    Impossible(String),
}

/// Chooses the pod whose log is shown. `shown` is the attempt whose log was already shown to its end.
pub(super) fn choose(job: &Job, workers: &[Worker], wanted: Wanted, shown: Option<u32>) -> Choice {
    let status = status_of(job);
    let Some(last_attempt) = status.attempt else {
        return Choice::NotYet(format!("job `{}` has no workers yet", job.name()));
    };
    let idx = match worker_idx(job, wanted.rank) {
        Ok(idx) => idx,
        Err(why) => return Choice::Impossible(why),
    };
    let attempt = match (wanted.attempt, wanted.previous) {
        (Some(attempt), _) => attempt,
        (None, true) if last_attempt == 1 => {
            return Choice::Impossible("there is no attempt before the first one".to_owned());
        }
        (None, true) => last_attempt - 1,
        (None, false) => last_attempt,
    };
    if attempt > last_attempt {
        return Choice::Impossible(format!("there is no attempt {attempt}: the last one is {last_attempt}"));
    }
    let has_ended = status.completion_time.is_some();
    let last = status.last_failure.filter(|failure| failure.attempt == attempt);
    if shown.is_some_and(|shown| shown >= attempt) {
        return match has_ended {
            true => Choice::Gone { attempt, last },
            false => Choice::NotYet("the attempt is over; waiting for the next one".to_owned()),
        };
    }
    let is_it = |worker: &&Worker| worker.attempt == attempt && worker.idx == idx && !worker.is_spare();
    match workers.iter().find(is_it) {
        Some(worker) if worker.phase == WorkerPhase::Pending => {
            Choice::NotYet(format!("{} does not run yet", worker.name))
        }
        Some(worker) => Choice::Pod { name: worker.name.to_string(), attempt },
        None if has_ended || attempt < last_attempt => Choice::Gone { attempt, last },
        None => Choice::NotYet(format!("the worker of rank {} is not made yet", wanted.rank)),
    }
}

fn worker_idx(job: &Job, rank: u32) -> Result<u32, String> {
    let prepared = Prepared::new(job).ok();
    let group = prepared.as_ref().and_then(|prepared| prepared.plan.worker_groups.first());
    // Without a plan, each rank is assumed to be a worker.
    let Some(group) = group else { return Ok(rank) };
    let num_ranks = group.num_workers * group.ranks_per_worker;
    if rank >= num_ranks {
        return Err(format!("there is no rank {rank}: ranks go from 0 to {}", num_ranks - 1));
    }
    Ok(rank / group.ranks_per_worker)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(status: &Value) -> Job {
        let example = include_str!("../../../../examples/ranks/job.yaml");
        let mut manifest: Value = serde_saphyr::from_str(example).unwrap();
        manifest["status"] = status.clone();
        serde_json::from_value(manifest).unwrap()
    }

    fn worker(idx: u32, attempt: u32, phase: WorkerPhase) -> Worker {
        Worker {
            name: format!("ranks-trainer-{idx}").into(),
            uid: format!("{idx}-{attempt}").into(),
            resource_version: 1,
            idx,
            attempt,
            phase,
            ..Worker::default()
        }
    }

    fn failure() -> Value {
        json!({"attempt": 1, "cause": "Signalled", "message": "m", "advice": "a", "time": "2026-01-01T00:00:00Z"})
    }

    #[test]
    fn the_first_rank_of_the_last_attempt_is_meant_unless_another_is_named() {
        let job = job(&json!({"attempt": 2}));
        let workers = [0, 1].map(|idx| worker(idx, 2, WorkerPhase::Running));
        let of = |wanted| choose(&job, &workers, wanted, None);
        let pod = |name: &str| Choice::Pod { name: name.into(), attempt: 2 };
        assert_eq!(of(Wanted::default()), pod("ranks-trainer-0"));
        assert_eq!(of(Wanted { rank: 1, ..Wanted::default() }), pod("ranks-trainer-1"));
        let beyond = of(Wanted { rank: 2, ..Wanted::default() });
        assert_eq!(beyond, Choice::Impossible("there is no rank 2: ranks go from 0 to 1".into()));
        let later = of(Wanted { attempt: Some(3), ..Wanted::default() });
        assert_eq!(later, Choice::Impossible("there is no attempt 3: the last one is 2".into()));
    }

    #[test]
    fn the_status_keeps_the_last_report_of_an_ended_attempt() {
        let job = job(&json!({"attempt": 2, "lastFailure": failure()}));
        let workers = [worker(0, 2, WorkerPhase::Running)];
        let previous = Wanted { previous: true, ..Wanted::default() };
        let Choice::Gone { attempt: 1, last: Some(last) } = choose(&job, &workers, previous, None) else {
            panic!("it is gone");
        };
        assert_eq!(last.message, "m");
    }

    #[test]
    fn following_waits_for_the_next_attempt_and_ends_with_the_job() {
        let mut status = json!({"attempt": 1});
        let none = choose(&job(&json!({})), &[], Wanted::default(), None);
        assert_eq!(none, Choice::NotYet("job `ranks` has no workers yet".into()));
        let pending = [worker(0, 1, WorkerPhase::Pending)];
        let early = choose(&job(&status), &pending, Wanted::default(), None);
        assert_eq!(early, Choice::NotYet("ranks-trainer-0 does not run yet".into()));
        let ended = [worker(0, 1, WorkerPhase::Failed)];
        let over = choose(&job(&status), &ended, Wanted::default(), Some(1));
        assert!(matches!(over, Choice::NotYet(_)), "the operator has not decided yet");
        status["completionTime"] = "2026-01-01T00:00:00Z".into();
        let end = choose(&job(&status), &ended, Wanted::default(), Some(1));
        assert_eq!(end, Choice::Gone { attempt: 1, last: None });
    }
}
