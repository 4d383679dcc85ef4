//! Outcomes of the updates of a step, and their metrics.

use rlt_core::metrics::Metrics;

use crate::roles::optim::{LossScale, StepOutcome};

/// Outcomes of the updates of one step; the same on all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpdateStats {
    /// Gradient norms before clipping, one for each applied update.
    pub grad_norms: Vec<f64>,
    /// Number of updates that were skipped because a gradient was not finite.
    pub num_skipped: usize,
    /// Number of updates that were skipped because a scaled gradient overflowed, see
    /// [`crate::roles::optim::LossScale`].
    pub num_overflows: usize,
    /// Factor of the loss scale after the updates; `None` if it is fixed.
    pub loss_scale: Option<f64>,
}

impl UpdateStats {
    /// Counts the outcome of an update.
    pub(super) fn count(&mut self, outcome: StepOutcome) {
        match outcome {
            StepOutcome::Applied { grad_norm } => self.grad_norms.push(grad_norm),
            StepOutcome::SkippedNonFinite => self.num_skipped += 1,
            StepOutcome::SkippedOverflow => self.num_overflows += 1,
        }
    }

    /// Records the loss scale after the last update.
    pub(crate) fn set_loss_scale(&mut self, scale: LossScale) {
        self.loss_scale = scale.is_dynamic().then(|| scale.factor());
    }

    /// Returns the number of updates, applied or not; at least 1, because it is used as a divisor.
    pub(crate) fn num_updates(&self) -> f64 {
        (self.grad_norms.len() + self.num_skipped + self.num_overflows).max(1) as f64
    }

    /// Returns the metrics of the updates: `{role}/grad_norm`; in half precision also `{role}/loss_scale` and
    /// `{role}/num_overflows`.
    pub(crate) fn metrics(&self, role: &str) -> Metrics {
        let mut metrics = Metrics::new();
        if !self.grad_norms.is_empty() {
            let mean = self.grad_norms.iter().sum::<f64>() / self.grad_norms.len() as f64;
            metrics.insert(format!("{role}/grad_norm"), mean);
        }
        if let Some(factor) = self.loss_scale {
            metrics.insert(format!("{role}/loss_scale"), factor);
            metrics.insert(format!("{role}/num_overflows"), self.num_overflows as f64);
        }
        metrics
    }
}
