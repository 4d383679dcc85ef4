//! Counters of the actor's routes in the passes over a batch: whether its routers choose the same experts as
//! the rollout's, and how balanced the choices are, at the tokens that predict completion tokens.

use std::cell::RefCell;
use std::rc::Rc;

use tch::Tensor;

use super::{Actor, ActorError, MicroBatch};
use crate::model::{Counted, RouteCounter, RouteCounts, RoutesOfCompletion};

/// Counters of the passes over a batch.
#[derive(Debug)]
pub(crate) struct RouteComparison {
    /// Routes that the rollout logged for each row of the batch; `None` where it logged none.
    of_rows: Vec<Option<RoutesOfCompletion>>,
    num_layers: usize,
    counts: RefCell<RouteCounts>,
    /// Counts of passes on a GPU, f64 `[layers, e + 2]`, which are read at the end.
    on_device: RefCell<Option<Tensor>>,
}

impl RouteComparison {
    /// The observer of the pass over `micro_batch`.
    pub(crate) fn watch(&self, micro_batch: &MicroBatch) -> RouteCounter {
        let predicted = micro_batch.predicted.in_rows(&micro_batch.rows);
        let sampled = predicted.map(|(row, token)| {
            let digests = self.of_rows.get(micro_batch.row_idxs[row]).cloned().flatten();
            digests.map(|digests| (digests, token))
        });
        let predictors_c = &micro_batch.predictors_c;
        if predictors_c.device().is_cuda() {
            return RouteCounter::on_device(predictors_c, &sampled.collect::<Vec<_>>(), self.num_layers);
        }
        let positions = Vec::<i64>::try_from(predictors_c).unwrap_or_default();
        let tokens = positions.into_iter().map(|position| position as usize).zip(sampled);
        RouteCounter::new(tokens.collect(), self.num_layers)
    }

    /// Adds the counts of a pass.
    pub(crate) fn add(&self, watch: Option<RouteCounter>) {
        match watch.map(RouteCounter::counted) {
            None => {}
            Some(Counted::Here(counts)) => *self.counts.borrow_mut() += counts,
            Some(Counted::OnDevice(counts)) => {
                let mut all = self.on_device.borrow_mut();
                *all = Some(match all.take() {
                    Some(before) => before + counts,
                    None => counts,
                });
            }
        }
    }

    /// All counts of this rank. Waits for those of a GPU.
    fn all(&self) -> RouteCounts {
        let mut counts = self.counts.borrow().clone();
        if let Some(there) = self.on_device.take() {
            counts += RouteCounts::from_device(&there);
        }
        counts
    }
}

impl Actor {
    /// Starts to count the routers' choices in passes over a batch, for whose rows the rollout logged
    /// `of_rows`, until [`Self::take_route_counts`]. Nothing is counted without experts.
    pub(crate) fn watch_routes(&self, of_rows: Vec<Option<RoutesOfCompletion>>) {
        self.route_comparison.replace(self.decoder.config.experts.as_ref().map(|experts| {
            let num_layers = experts.layers.iter().filter(|has_experts| **has_experts).count();
            let counts = RouteCounts::of_none(num_layers, experts.num_experts);
            let (counts, on_device) = (RefCell::new(counts), RefCell::default());
            Rc::new(RouteComparison { of_rows, num_layers, counts, on_device })
        }));
    }

    /// Ends the count, and returns the counts of all ranks.
    ///
    /// # Errors
    /// When a rank is lost.
    pub(crate) fn take_route_counts(&self) -> Result<Option<RouteCounts>, ActorError> {
        let Some(watched) = self.route_comparison.take() else { return Ok(None) };
        let num_experts = self.decoder.config.experts.as_ref().map_or(0, |experts| experts.num_experts);
        let mut numbers = watched.all().to_numbers();
        self.ranks.all_reduce(&mut [&mut numbers])?;
        Ok(Some(RouteCounts::from_numbers(&numbers, num_experts)))
    }
}
