//! Model test: random histories of a job against an API server in memory, with an operator that crashes
//! between any two calls, and restarts with settings that refuse the job. In every history, no rank has two
//! live processes, the number of the attempt never decreases, the end is final, nothing runs while the job is
//! suspended, no pod is created on a claim that is being deleted, a job that has begun continues although its
//! specification is refused, no status is written without a change, and the job ends.

mod event_effects;
mod events;
mod spares;
mod world;

use proptest::prelude::*;

use events::{ModelEvent, NUM_WORKERS, events};
use world::World;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn under_random_faults_the_invariants_hold_and_every_job_ends(events in events(), has_rules: bool) {
        let mut world = World::new(has_rules);
        for event in &events {
            world.happen(event);
            if !matches!(event, ModelEvent::OperatorCrashes(_) | ModelEvent::ApiServerRefuses(_)) {
                world.settle();
            }
        }
        world.end_well();
    }

    #[test]
    fn a_job_that_goes_well_costs_one_pod_a_rank_and_few_writes(waits in prop::collection::vec(1..100i64, 3)) {
        let mut world = World::new(false);
        world.settle();
        for idx in 0..NUM_WORKERS {
            world.happen(&ModelEvent::TimePasses(waits[idx as usize]));
            world.happen(&ModelEvent::PodStarts(idx));
        }
        world.settle();
        (0..NUM_WORKERS).for_each(|idx| world.happen(&ModelEvent::ProcessExits(idx, 0)));
        world.settle();
        prop_assert_eq!(world.num_pods_made, NUM_WORKERS);
        prop_assert_eq!(world.num_writes, 3);
        prop_assert_eq!(world.status.attempt, Some(1));
    }
}

#[test]
fn a_suspension_that_no_operator_ended_is_no_failure() {
    for num_calls in 0..=NUM_WORKERS as usize {
        let mut world = World::new(false);
        world.settle();
        (0..NUM_WORKERS).for_each(|idx| world.happen(&ModelEvent::PodStarts(idx)));
        world.settle();
        world.happen(&ModelEvent::SetSuspend(true));
        world.happen(&ModelEvent::OperatorCrashes(num_calls));
        world.happen(&ModelEvent::SetSuspend(false));
        (0..NUM_WORKERS).for_each(|idx| world.happen(&ModelEvent::PodGone(idx)));
        world.settle();
        assert!(world.status.failures_by_cause.is_empty(), "after {num_calls} calls: {:#?}", world.status);
        world.end_well();
    }
}

#[test]
fn a_suspension_before_the_first_status_is_no_failure() {
    for num_pods in 1..=NUM_WORKERS as usize {
        let mut world = World::new(false);
        world.happen(&ModelEvent::OperatorCrashes(num_pods));
        assert_eq!((world.pods.len(), world.num_writes), (num_pods, 0));
        (0..NUM_WORKERS).for_each(|idx| world.happen(&ModelEvent::PodStarts(idx)));
        world.happen(&ModelEvent::SetSuspend(true));
        world.settle();
        world.happen(&ModelEvent::SetSuspend(false));
        (0..NUM_WORKERS).for_each(|idx| world.happen(&ModelEvent::ProcessExits(idx, 80)));
        world.settle();
        assert!(world.status.failures_by_cause.is_empty(), "{num_pods} pods: {:#?}", world.status);
        world.end_well();
    }
}

#[test]
fn restarts_in_place_of_a_held_job_count_although_it_is_resumed_before_it_is_released() {
    let mut world = World::new(false);
    world.settle();
    for event in [
        ModelEvent::PodStarts(0),
        ModelEvent::SetSuspend(true),
        ModelEvent::SpecificationRefused(Some(false)),
        ModelEvent::RestartedInPlace,
        ModelEvent::SetSuspend(false),
        ModelEvent::SpecificationRefused(None),
    ] {
        world.happen(&event);
        world.settle();
    }
    assert_eq!((world.num_restarts_in_place, world.status.attempt), (1, Some(2)));
    world.end_well();
}
