//! Policy filtration (PF-PPO, arXiv 2409.06957): resamples the samples of a step before its updates, by
//! weights that follow from their rewards. The formulas are in `rlt-core`.

use rlt_api::resolved;
use rlt_api::spec::{ReweightingMethod, ReweightingSpec};
use rlt_core::batch::Batch;
use rlt_core::metrics::Metrics;
use rlt_core::reweighting::{Reweighting, resample};
use rlt_data::seeds::SeedUse;

use crate::roles::Roles;

/// Default exponent of [`ReweightingMethod::Pow`], that of verl's `weight_pow`.
const DEFAULT_POWER: f64 = 2.0;

/// Resamples a batch by its rewards; without a specification it returns the batch unchanged.
#[derive(Clone, Copy, Debug)]
pub struct PolicyFiltration(Option<Reweighting>);

impl PolicyFiltration {
    /// Creates the filtration of the algorithm's `reweighting`.
    pub fn of(algorithm: &resolved::PolicyGradient) -> Self {
        Self(algorithm.reweighting.map(weights))
    }

    /// Draws as many samples as `batch` has, with replacement; those of a prompt stay adjacent. All ranks
    /// draw the same. Advantages and returns keep the values computed over the full batch.
    pub fn draw(&self, roles: &Roles, batch: Batch) -> Batch {
        let Some(reweighting) = self.0 else { return batch };
        let step = roles.context().position().num_done;
        let seed = roles.context().seed(SeedUse::Reweighting, &[step]);
        let mut row_idxs = resample(&reweighting.weights(&batch.rewards), seed);
        row_idxs.sort_unstable();
        let num_distinct = row_idxs.chunk_by(PartialEq::eq).count();
        let ratio = num_distinct as f64 / row_idxs.len().max(1) as f64;
        roles.context().record(Metrics::from([("reweighting/distinct_ratio".to_owned(), ratio)]));
        batch.select(&row_idxs)
    }
}

fn weights(ReweightingSpec { method, power }: ReweightingSpec) -> Reweighting {
    match method {
        ReweightingMethod::Pow => Reweighting::Pow { power: power.unwrap_or(DEFAULT_POWER) },
        ReweightingMethod::MaxMin => Reweighting::MaxMin,
        ReweightingMethod::MaxRandom => Reweighting::MaxRandom,
    }
}
