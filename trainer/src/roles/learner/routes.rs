//! Counters of routes in the passes over a batch: whether routers choose the same experts as the rollout's,
//! and how balanced the choices are, at the tokens that predict completion tokens.

use std::cell::RefCell;

use rlt_decoder::{Counted, RouteCounter, RouteCounts, RoutesOfCompletion};
use rlt_models::Experts;
use tch::Tensor;

use super::MicroBatch;

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
    /// Creates counters of passes over a batch through layers with `experts`. `of_rows` holds the routes that
    /// the rollout logged for each row of the batch.
    pub(crate) fn new(of_rows: Vec<Option<RoutesOfCompletion>>, experts: &Experts) -> Self {
        let num_layers = experts.layers.iter().filter(|has_experts| **has_experts).count();
        let counts = RefCell::new(RouteCounts::of_none(num_layers, experts.num_experts));
        Self { of_rows, num_layers, counts, on_device: RefCell::default() }
    }

    /// Returns the observer of the pass over `micro_batch`.
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
            Some(Counted::OnHost(counts)) => *self.counts.borrow_mut() += counts,
            Some(Counted::OnDevice(counts)) => {
                let mut all = self.on_device.borrow_mut();
                *all = Some(match all.take() {
                    Some(before) => before + counts,
                    None => counts,
                });
            }
        }
    }

    /// Returns all counts of this rank, after waiting for those of a GPU.
    pub(crate) fn all(&self) -> RouteCounts {
        let mut counts = self.counts.borrow().clone();
        if let Some(there) = self.on_device.take() {
            counts += RouteCounts::from_device(&there);
        }
        counts
    }
}
