//! Rows that a step draws, and how many of them it draws again.

use std::collections::HashSet;
use std::sync::Arc;

/// An item with the index of its row.
#[derive(Debug)]
pub(crate) struct Drawn<T> {
    /// Index of the row among those of the loader.
    pub(crate) row_idx: u64,
    pub(crate) item: Arc<T>,
}

/// Numbers of rows that a step has drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepDraws {
    /// Number of draws.
    pub num_drawn: u64,
    /// Number of draws of a row that the step had drawn before.
    pub num_repeated: u64,
}

impl StepDraws {
    /// Returns the sums with `other`.
    pub fn plus(self, other: Self) -> Self {
        Self {
            num_drawn: self.num_drawn + other.num_drawn,
            num_repeated: self.num_repeated + other.num_repeated,
        }
    }
}

/// The rows that were drawn since a step began.
#[derive(Debug, Default)]
pub(super) struct StepRows {
    rows: HashSet<u64>,
    draws: StepDraws,
}

impl StepRows {
    /// Counts a batch of draws; returns its items.
    pub(super) fn count<T>(&mut self, batch: Vec<Drawn<T>>) -> Vec<Arc<T>> {
        self.draws.num_drawn += batch.len() as u64;
        self.draws.num_repeated +=
            batch.iter().filter(|drawn| !self.rows.insert(drawn.row_idx)).count() as u64;
        batch.into_iter().map(|drawn| drawn.item).collect()
    }

    /// Numbers of rows that were drawn since the step began.
    pub(super) fn draws(&self) -> StepDraws {
        self.draws
    }
}
