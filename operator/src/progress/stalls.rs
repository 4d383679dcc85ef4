//! Time that a trainer has spent without finishing a step, on this operator's monotonic clock.
//!
//! Only reports that this operator received count. Times in reports and in the status come from other clocks,
//! an outage of the channel or of the operator is no hang, and a process that was restarted begins anew. A
//! silent rank never counts as stalled, because it may still train.

use std::time::{Duration, Instant};

use rlt_channel::Progress;

use super::rate;

/// Longest pause of a rank after a report that was not delivered.
const LONGEST_BACKOFF: Duration = Duration::from_secs(15);

/// Returns the time without a report after which a rank counts as silent, if `num_ranks` ranks report:
/// several of its reports are missing then.
pub(super) fn silent_after(num_ranks: usize) -> Duration {
    3 * rate::report_every(num_ranks) + LONGEST_BACKOFF
}

/// Fields of the last report of rank 0 in one attempt that show whether it advances, and the time since it
/// did.
#[derive(Clone, Debug)]
pub(super) struct StepWatch {
    stage: i32,
    /// Finished steps of the stage.
    step: u64,
    /// Seconds since the process started.
    process_seconds: f64,
    /// Restarts in place in this attempt.
    num_restarts: u32,
    /// Time of the first report of this step, or of the first one after a restart or a silence.
    moved_at: Instant,
    /// Time of the last report.
    heard_at: Instant,
}

impl StepWatch {
    /// Returns the state after the first report of an attempt.
    pub(super) fn new(progress: &Progress, num_restarts: u32, now: Instant) -> Self {
        Self {
            stage: progress.stage,
            step: progress.step,
            process_seconds: progress.time_spent.map_or(0.0, |spent| spent.process_seconds),
            num_restarts,
            moved_at: now,
            heard_at: now,
        }
    }

    /// Continues with `report`, a later report of the same attempt.
    pub(super) fn hear(&mut self, report: Self, silent_after: Duration) {
        let is_same_process =
            report.num_restarts == self.num_restarts && report.process_seconds >= self.process_seconds;
        let is_same_step = (report.stage, report.step) == (self.stage, self.step);
        let was_silent = report.heard_at.saturating_duration_since(self.heard_at) > silent_after;
        let moved_at =
            if is_same_process && is_same_step && !was_silent { self.moved_at } else { report.moved_at };
        *self = Self { moved_at, ..report };
    }

    /// Returns the time without a new step; `None` while the rank is silent.
    pub(super) fn without_step(&self, now: Instant, silent_after: Duration) -> Option<Duration> {
        let is_silent = now.saturating_duration_since(self.heard_at) > silent_after;
        (!is_silent).then(|| now.saturating_duration_since(self.moved_at))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rlt_channel::{Stage, TimeSpent};

    use super::*;

    const SILENT_AFTER: Duration = Duration::from_secs(30);
    /// Duration of a step of the healthy trainer.
    const STEP_SECONDS: u64 = 20;

    /// State of a trainer, and of the operator that receives its reports.
    struct World {
        now: Instant,
        step: u64,
        num_restarts: u32,
        /// Seconds since the process started, and since its last step.
        process_seconds: u64,
        step_seconds: u64,
        watch: Option<StepWatch>,
    }

    impl World {
        fn new() -> Self {
            let (now, watch) = (Instant::now(), None);
            Self { now, step: 0, num_restarts: 0, process_seconds: 0, step_seconds: 0, watch }
        }

        /// Lets time pass, in which a healthy trainer finishes its steps.
        fn pass(&mut self, seconds: u64, is_healthy: bool) {
            self.now += Duration::from_secs(seconds);
            self.process_seconds += seconds;
            self.step_seconds += seconds;
            if is_healthy && self.step_seconds >= STEP_SECONDS {
                self.step += self.step_seconds / STEP_SECONDS;
                self.step_seconds %= STEP_SECONDS;
            }
        }

        fn report(&mut self) {
            let spent = TimeSpent { process_seconds: self.process_seconds as f64, ..TimeSpent::default() };
            let progress = Progress {
                stage: Stage::Training.into(),
                step: self.step,
                time_spent: Some(spent),
                ..Progress::default()
            };
            let report = StepWatch::new(&progress, self.num_restarts, self.now);
            match &mut self.watch {
                Some(watch) => watch.hear(report, SILENT_AFTER),
                watch @ None => *watch = Some(report),
            }
        }

        fn without_step(&self) -> Option<u64> {
            Some(self.watch.as_ref()?.without_step(self.now, SILENT_AFTER)?.as_secs())
        }
    }

    /// An event in the life of a healthy trainer.
    #[derive(Clone, Debug)]
    enum Event {
        /// The trainer trains and reports for this number of seconds.
        Trains(u64),
        /// The trainer trains for this number of seconds, but its reports do not arrive.
        Outage(u64),
        /// The processes restart in place, and continue this number of steps earlier.
        RestartsInPlace(u64),
        /// Another operator becomes the leader, which has received no report.
        OperatorRestarts,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let one = prop_oneof![
            3 => (1..100u64).prop_map(Event::Trains),
            1 => (1..2000u64).prop_map(Event::Outage),
            1 => (0..3u64).prop_map(Event::RestartsInPlace),
            1 => Just(Event::OperatorRestarts),
        ];
        prop::collection::vec(one, 0..30)
    }

    proptest! {
        #[test]
        fn no_outage_and_no_restart_makes_a_healthy_trainer_seem_to_hang(events in events()) {
            let mut world = World::new();
            for event in events {
                let (seconds, is_heard) = match event {
                    Event::Trains(seconds) => (seconds, true),
                    Event::Outage(seconds) => (seconds, false),
                    Event::RestartsInPlace(num_lost) => {
                        world.step = world.step.saturating_sub(num_lost);
                        world.num_restarts += 1;
                        (world.process_seconds, world.step_seconds) = (0, 0);
                        (0, true)
                    }
                    Event::OperatorRestarts => {
                        world.watch = None;
                        (0, false)
                    }
                };
                for second in 0..seconds {
                    world.pass(1, true);
                    if is_heard && second % 5 == 0 {
                        world.report();
                    }
                    // Reports come every five seconds, and a short outage may be longer than a step.
                    let limit = STEP_SECONDS + SILENT_AFTER.as_secs() + 5;
                    prop_assert!(world.without_step().is_none_or(|seconds| seconds <= limit));
                }
                world.report();
            }
        }
    }

    #[test]
    fn a_trainer_that_is_heard_and_finishes_no_step_is_noticed_also_after_an_outage() {
        let mut world = World::new();
        world.report();
        assert_eq!(world.without_step(), Some(0));
        for _ in 0..20 {
            world.pass(5, false);
            world.report();
        }
        assert_eq!(world.without_step(), Some(100));
        world.pass(31, false);
        assert_eq!(world.without_step(), None, "it is not heard");
        world.report();
        assert_eq!(world.without_step(), Some(0), "it may have hung since now");
        for _ in 0..20 {
            world.pass(5, false);
            world.report();
        }
        assert_eq!(world.without_step(), Some(100));
        world.num_restarts += 1;
        world.report();
        assert_eq!(world.without_step(), Some(0), "a process that was restarted begins anew");
        world.pass(5, false);
        world.process_seconds = 1;
        world.report();
        assert_eq!(world.without_step(), Some(0), "also where its restart is not reported");
    }
}
