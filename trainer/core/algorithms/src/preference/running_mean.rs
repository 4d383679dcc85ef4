//! The mean log-ratio of all completions of a run so far.

use serde::{Deserialize, Serialize};

/// A running mean of equally weighted values (the mean of TRL's `RunningMoments`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunningMean {
    mean: f64,
    count: u64,
}

impl RunningMean {
    /// The mean; 0 before the first value.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Returns the mean with the values of one more update. Values that are not finite are left out: such an
    /// update is skipped, and its values would stay in the mean forever.
    #[must_use]
    pub fn with(self, numbers: &[f64]) -> Self {
        let finite = || numbers.iter().filter(|number| number.is_finite());
        let added = finite().count();
        if added == 0 {
            return self;
        }
        let count = self.count + added as u64;
        let of_update = finite().sum::<f64>() / added as f64;
        Self { mean: self.mean + (of_update - self.mean) * added as f64 / count as f64, count }
    }
}
