//! Whether the actor's routers choose the experts that the rollout's chose, and how balanced the choices are:
//! counted in the passes over a batch, at the tokens from which completion tokens are predicted.

use std::cell::RefCell;
use std::rc::Rc;

use super::{Actor, ActorError, MicroBatch};
use crate::model::{RouteCounts, RouteWatch, RoutesOfCompletion};

/// The counts of the passes over a batch.
#[derive(Debug)]
pub(crate) struct WatchedRoutes {
    /// By row of the batch, where the rollout logged its completion.
    of_rows: Vec<Option<RoutesOfCompletion>>,
    num_layers: usize,
    counts: RefCell<RouteCounts>,
}

impl WatchedRoutes {
    /// The observer of the pass over `micro_batch`.
    pub(crate) fn watch(&self, micro_batch: &MicroBatch) -> RouteWatch {
        let positions = Vec::<i64>::try_from(&micro_batch.predictors_c).unwrap_or_default();
        let predicted = micro_batch.predicted.in_rows(&micro_batch.rows);
        let tokens = positions.into_iter().zip(predicted).map(|(position, (row, token))| {
            let sampled = self.of_rows.get(micro_batch.row_idxs[row]).cloned().flatten();
            (position as usize, sampled.map(|digests| (digests, token)))
        });
        RouteWatch::new(tokens.collect(), self.num_layers)
    }

    /// Adds the counts of a pass.
    pub(crate) fn add(&self, watch: Option<RouteWatch>) {
        if let Some(watch) = watch {
            *self.counts.borrow_mut() += watch.counts();
        }
    }
}

impl Actor {
    /// Counts, from here to [`Self::take_route_counts`], the routers' choices in passes over a batch, for
    /// whose rows the rollout logged `of_rows`. Nothing is counted without experts.
    pub(crate) fn watch_routes(&self, of_rows: Vec<Option<RoutesOfCompletion>>) {
        self.watched_routes.replace(self.decoder.config.experts.as_ref().map(|experts| {
            let num_layers = experts.layers.iter().filter(|has_experts| **has_experts).count();
            let counts = RouteCounts::of_none(num_layers, experts.num_experts);
            Rc::new(WatchedRoutes { of_rows, num_layers, counts: RefCell::new(counts) })
        }));
    }

    /// The counts of all ranks.
    ///
    /// # Errors
    /// When a rank is lost.
    pub(crate) fn take_route_counts(&self) -> Result<Option<RouteCounts>, ActorError> {
        let Some(watched) = self.watched_routes.take() else { return Ok(None) };
        let num_experts = self.decoder.config.experts.as_ref().map_or(0, |experts| experts.num_experts);
        let mut numbers = watched.counts.borrow().to_numbers();
        self.ranks.all_reduce(&mut [&mut numbers])?;
        Ok(Some(RouteCounts::from_numbers(&numbers, num_experts)))
    }
}
