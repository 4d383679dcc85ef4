//! Learning-rate schedule over the steps of a run. One RL step advances it once, however many optimizer
//! updates it makes.

use std::f64::consts::PI;

/// Shape of the schedule after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// The peak learning rate throughout.
    Constant,
    /// Half a cosine down to the minimum.
    Cosine,
    /// A straight line down to the minimum.
    Linear,
}

/// A learning-rate schedule: a linear warm-up, then a decay that reaches its minimum one step after the last,
/// as in transformers and verl. No step has a learning rate of zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Shape of the schedule after the warm-up.
    pub decay: Decay,
    /// Number of steps before the peak is reached. The first step has 1 / (`warmup_steps` + 1) of the peak:
    /// verl's and transformers' schedules start at 0 and so waste their first step.
    pub warmup_steps: u64,
    /// First step that trains, counted from 0: the schedule begins with it. Steps before it have its rate.
    pub first_step: u64,
    /// Number of steps of the full run, those before `first_step` included.
    pub num_steps: u64,
    /// Smallest learning rate after the warm-up, as a fraction of the peak, 0 to 1.
    pub min_ratio: f64,
}

impl Schedule {
    /// Returns the learning rate of step `step_idx`, counted from 0.
    pub fn at(&self, step_idx: u64) -> f64 {
        self.learning_rate * self.ratio(step_idx.saturating_sub(self.first_step))
    }

    /// Returns the fraction of the peak at a step, counted from the first that trains.
    fn ratio(&self, step_idx: u64) -> f64 {
        if step_idx < self.warmup_steps {
            return (step_idx + 1) as f64 / (self.warmup_steps + 1) as f64;
        }
        let decay_steps = self.num_steps.saturating_sub(self.first_step + self.warmup_steps).max(1);
        let progress = ((step_idx - self.warmup_steps) as f64 / decay_steps as f64).min(1.0);
        let height = match self.decay {
            Decay::Constant => 1.0,
            Decay::Cosine => 0.5 * (1.0 + (PI * progress).cos()),
            Decay::Linear => 1.0 - progress,
        };
        self.min_ratio + (1.0 - self.min_ratio) * height
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(decay: Decay, warmup_steps: u64, min_ratio: f64) -> Vec<f64> {
        let schedule =
            Schedule { learning_rate: 1.0, decay, warmup_steps, first_step: 0, num_steps: 7, min_ratio };
        (0..9).map(|step_idx| schedule.at(step_idx)).collect()
    }

    #[test]
    fn curves_match_the_table() {
        let third = 1.0 / 3.0;
        let half_root = 0.5_f64.sqrt();
        let table = [
            (Decay::Constant, 0, 0.0, [1.0; 9]),
            (Decay::Constant, 2, 0.5, [third, 2.0 * third, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
            (Decay::Linear, 3, 0.0, [0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
            (Decay::Linear, 3, 0.2, [0.25, 0.5, 0.75, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]),
            (
                Decay::Cosine,
                3,
                0.0,
                [0.25, 0.5, 0.75, 1.0, 0.5 + half_root / 2.0, 0.5, 0.5 - half_root / 2.0, 0.0, 0.0],
            ),
        ];
        for (decay, warmup_steps, min_ratio, expected) in table {
            let got = curve(decay, warmup_steps, min_ratio);
            let close = got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-12);
            assert!(close, "{decay:?} {warmup_steps} {min_ratio}: {got:?}");
        }
    }

    /// Expected values are those of `get_linear_schedule_with_warmup` and `get_cosine_schedule_with_warmup`
    /// of transformers 5.17 after the warm-up.
    #[test]
    fn the_last_step_is_as_far_from_the_end_as_it_is_in_transformers() {
        for (num_steps, warmup_steps) in [(1, 0), (7, 3), (100, 10), (100, 99)] {
            let left = 1.0 / (num_steps - warmup_steps) as f64;
            let at = |decay| {
                let (learning_rate, first_step, min_ratio) = (1.0, 0, 0.0);
                Schedule { learning_rate, decay, warmup_steps, first_step, num_steps, min_ratio }
                    .at(num_steps - 1)
            };
            assert!((at(Decay::Linear) - left).abs() < 1e-12, "{num_steps} {warmup_steps}");
            let cosine = 0.5 * (1.0 + (PI * (1.0 - left)).cos());
            assert!((at(Decay::Cosine) - cosine).abs() < 1e-12, "{num_steps} {warmup_steps}");
        }
    }

    /// Steps in which only the critic trains consume neither the actor's warm-up nor its decay.
    #[test]
    fn steps_before_the_first_one_shift_and_shorten_the_schedule() {
        for decay in [Decay::Constant, Decay::Cosine, Decay::Linear] {
            let of = |first_step, num_steps| Schedule {
                learning_rate: 2.0,
                decay,
                warmup_steps: 2,
                first_step,
                num_steps,
                min_ratio: 0.1,
            };
            let (whole, shifted) = (of(0, 9), of(50, 59));
            for step_idx in 0..12 {
                assert_eq!(shifted.at(50 + step_idx), whole.at(step_idx), "{decay:?} {step_idx}");
            }
            assert_eq!(shifted.at(0), whole.at(0), "{decay:?}");
        }
    }

    #[test]
    fn a_run_shorter_than_its_warm_up_still_has_a_rate() {
        let schedule = Schedule {
            learning_rate: 2.0,
            decay: Decay::Cosine,
            warmup_steps: 10,
            first_step: 0,
            num_steps: 5,
            min_ratio: 0.0,
        };
        assert!((schedule.at(4) - 10.0 / 11.0).abs() < 1e-12);
        assert!(schedule.at(1000) == 0.0);
    }
}
