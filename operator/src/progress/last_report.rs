//! The last report of a training that has finished all steps, in the termination message of its first worker.
//! It is bounded like a report that is received.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use rlt_channel::limits::MAX_CHECKPOINTS;
use rlt_channel::{ReportRequest, termination};
use rlt_objects::worker::Worker;

use super::bounds;

/// Maximum number of pods whose refused messages are remembered. Beyond it, the oldest one may be logged
/// again.
const MAX_REFUSED: usize = 1024;

/// A last report within the bounds.
#[derive(Debug, PartialEq)]
pub(super) struct LastReport {
    /// Report with the newest checkpoints.
    pub(super) request: ReportRequest,
    /// Steps of the checkpoints that had no room in the message, oldest first.
    pub(super) left_out: Vec<u64>,
}

/// Pods whose termination messages were refused, so that each is logged once: a finished job is reconciled
/// often, and its pods stay.
#[derive(Debug, Default)]
pub(super) struct RefusedMessages {
    pod_uids: Mutex<VecDeque<Arc<str>>>,
}

impl RefusedMessages {
    /// Reads the last report that a worker left, if it left one within the bounds. A message out of bounds is
    /// logged once for each pod.
    pub(super) fn read_unless_refused(&self, worker: &Worker) -> Option<LastReport> {
        let exit = worker.exit.as_deref().filter(|exit| exit.code == 0)?;
        let mut request = termination::report_in(&exit.message)?;
        bounds::drop_unknown(&mut request);
        match bounds::check(&request) {
            Ok(()) => {
                let mut left_out = termination::left_out_in(&exit.message);
                let num_surplus =
                    (left_out.len() + request.checkpoints.len()).saturating_sub(MAX_CHECKPOINTS);
                left_out.drain(..num_surplus.min(left_out.len()));
                Some(LastReport { request, left_out })
            }
            Err(why) => {
                if self.is_new(&worker.uid) {
                    let pod = &*worker.name;
                    tracing::warn!(pod, why, "the report in a termination message is refused");
                }
                None
            }
        }
    }

    fn is_new(&self, pod_uid: &Arc<str>) -> bool {
        let mut known = self.pod_uids.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(pod_uid) {
            return false;
        }
        if known.len() >= MAX_REFUSED {
            known.pop_front();
        }
        known.push_back(pod_uid.clone());
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rlt_channel::limits::MAX_WHOLE;
    use rlt_channel::{Checkpoint, Progress, Stage};
    use rlt_objects::worker::Exit;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Returns the first worker of a run of ten steps. It exited with `code`, and left a report of `step`
    /// with `num_checkpoints` checkpoints.
    fn worker(step: u64, num_checkpoints: u64, code: i32) -> Worker {
        let progress = Progress { stage: Stage::Training.into(), step, num_steps: 10, ..Progress::default() };
        let saved = |step| Checkpoint { step, path: "p".repeat(200), ..Checkpoint::default() };
        let report = ReportRequest {
            progress: Some(progress),
            checkpoints: (1..=num_checkpoints).map(saved).collect(),
            knows_checkpoints: num_checkpoints > 0,
            ..ReportRequest::default()
        };
        let message = termination::message(&report);
        let exit = Exit { code, reason: String::new(), message, finished_at: None };
        Worker { attempt: 2, exit: Some(Box::new(exit)), ..Worker::default() }
    }

    #[test]
    fn a_report_in_a_termination_message_is_bounded_like_one_that_is_received() {
        let left = |step, code| RefusedMessages::default().read_unless_refused(&worker(step, 0, code));
        let read = left(10, 0).unwrap().request;
        assert_eq!((read.progress.unwrap().step, read.knows_checkpoints), (10, false));
        assert_eq!(left(MAX_WHOLE + 1, 0), None);
        assert_eq!(left(10, 80), None, "the next attempt continues");
    }

    #[test]
    fn checkpoints_that_a_termination_message_has_no_room_for_are_known_by_their_steps() {
        let mut worker = worker(10, 100, 0);
        let read = |worker: &Worker| {
            let last = RefusedMessages::default().read_unless_refused(worker).unwrap();
            let listed = last.request.checkpoints.iter().map(|one| one.step).collect::<Vec<_>>();
            (last.left_out, listed)
        };
        let (left_out, listed) = read(&worker);
        assert_eq!([&*left_out, &*listed].concat(), (1..=100).collect::<Vec<_>>());
        let exit = worker.exit.as_mut().unwrap();
        exit.message = exit.message.replace("checkpoints: ", "checkpoints: 0 0 0 0 0 0 0 0 0 ");
        assert_eq!(read(&worker).0, left_out, "a status has at most 100 checkpoints");
    }

    /// Subscriber that counts all log events.
    struct NumEvents(Arc<AtomicUsize>);

    impl Subscriber for NumEvents {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_termination_message_out_of_bounds_is_logged_once_for_each_pod() {
        let (num_events, refused) = (Arc::new(AtomicUsize::new(0)), RefusedMessages::default());
        let worker = |uid: usize| Worker { uid: uid.to_string().into(), ..worker(MAX_WHOLE + 1, 0, 0) };
        // The callsite of the log is registered first, because another test could register it while there is
        // no subscriber.
        RefusedMessages::default().read_unless_refused(&worker(0));
        tracing::subscriber::with_default(NumEvents(num_events.clone()), || {
            for uid in [0, 0, 1, 0, 1] {
                assert_eq!(refused.read_unless_refused(&worker(uid)), None);
            }
        });
        assert_eq!(num_events.load(Ordering::SeqCst), 2);
        for uid in 2..MAX_REFUSED + 9 {
            refused.is_new(&uid.to_string().into());
        }
        assert_eq!(refused.pod_uids.lock().unwrap().len(), MAX_REFUSED);
    }
}
