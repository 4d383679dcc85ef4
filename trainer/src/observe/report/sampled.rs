//! Steps that the report shows: all steps of a short run, evenly spaced ones of a long run, so that memory is
//! bounded.

use crate::observe::tracking::StepMetrics;

/// Maximum number of steps in memory, counted separately for steps with and without an evaluation. It is
/// even.
const MAX_STEPS: usize = 8192;

/// Steps of a run. Those with an evaluation are sampled separately, because they are rare, and because the
/// first and the last of them are the result of the run.
#[derive(Debug, Default)]
pub(super) struct SampledSteps {
    evaluated: Evenly,
    others: Evenly,
}

/// Evenly spaced steps of a sequence: those whose index is a multiple of a power of two, and the last one.
#[derive(Debug, Default)]
struct Evenly {
    steps: Vec<StepMetrics>,
    /// Last step of the sequence, if it is not one of `steps`.
    last: Option<StepMetrics>,
    /// Number of steps in the sequence so far.
    num_taken: u64,
    /// Binary logarithm of the distance between two kept steps.
    log_stride: u32,
}

impl SampledSteps {
    /// Adds the next step of a run.
    pub(super) fn take(&mut self, step: &StepMetrics) {
        let is_evaluated = step.values.keys().any(|name| name.starts_with("val-core/"));
        let kind = if is_evaluated { &mut self.evaluated } else { &mut self.others };
        kind.take(step);
    }

    /// Returns the steps in the order of the run.
    pub(super) fn into_steps(self) -> Vec<StepMetrics> {
        let kinds = [self.evaluated, self.others].into_iter();
        let mut steps: Vec<_> = kinds.flat_map(|kind| kind.steps.into_iter().chain(kind.last)).collect();
        steps.sort_by_key(StepMetrics::position);
        steps
    }
}

impl Evenly {
    fn take(&mut self, step: &StepMetrics) {
        if self.num_taken.is_multiple_of(1 << self.log_stride) {
            if self.steps.len() == MAX_STEPS {
                let mut is_odd = true;
                self.steps.retain(|_| {
                    is_odd = !is_odd;
                    !is_odd
                });
                self.log_stride += 1;
            }
            self.steps.push(step.clone());
            self.last = None;
        } else {
            self.last = Some(step.clone());
        }
        self.num_taken += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::tracking::Stage;

    fn sampled(num_steps: u64, evaluate_every: u64) -> Vec<StepMetrics> {
        let mut sampled = SampledSteps::default();
        for step in 1..=num_steps {
            let name = if step % evaluate_every == 0 { "val-core/a/reward/mean@1" } else { "actor/lr" };
            let values = [(name.to_owned(), 0.5)].into_iter().collect();
            sampled.take(&StepMetrics { stage: Stage::Training, step, timestamp: 1.0, values });
        }
        sampled.into_steps()
    }

    #[test]
    fn a_short_run_has_all_steps_in_order() {
        let steps: Vec<u64> = sampled(5000, 10).iter().map(|metrics| metrics.step).collect();
        assert_eq!(steps, (1..=5000).collect::<Vec<_>>());
    }

    #[test]
    fn a_long_run_has_a_bounded_number_of_steps_from_its_first_to_its_last() {
        for num_steps in [100_000, 100_003] {
            let steps = sampled(num_steps, 50);
            assert!((MAX_STEPS / 2..2 * MAX_STEPS).contains(&steps.len()), "{}", steps.len());
            assert_eq!((steps[0].step, steps[steps.len() - 1].step), (1, num_steps));
            let evaluated = steps.iter().filter(|metrics| metrics.step % 50 == 0);
            assert_eq!(evaluated.count(), 2000, "evaluations are rare, and all are there");
            let widest = steps.windows(2).map(|pair| pair[1].step - pair[0].step).max();
            assert!(widest <= Some(33), "{widest:?}");
        }
    }
}
