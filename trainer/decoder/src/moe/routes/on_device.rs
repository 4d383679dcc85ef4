//! Counts of routers' choices on a GPU: a fixed number of launches a layer, and the host never waits.

use std::cell::RefCell;

use rlt_torch::{DeviceRoutes, upload};
use tch::{Kind, Tensor, no_grad};

use super::RoutesOfCompletion;

/// Expected digest of a token for which the rollout's choices are not known.
const UNKNOWN: i64 = -1;

/// Counts the choices of a pass at the p tokens that predict another token.
#[derive(Debug)]
pub(super) struct DeviceWatch {
    /// Positions of the predicting tokens among those of the pass, i64 `[p]`.
    positions_p: Tensor,
    /// Digests of the rollout's choices at these tokens, i64 `[layers, p]`.
    expected_lp: Tensor,
    /// Counts of each layer that has run, f64 `[e + 2]`.
    layers: RefCell<Vec<Option<Tensor>>>,
}

impl DeviceWatch {
    pub(super) fn new(
        positions_p: &Tensor,
        sampled: &[Option<(RoutesOfCompletion, usize)>],
        num_layers: usize,
    ) -> Self {
        let digest = |place: usize, sampled: &Option<(RoutesOfCompletion, usize)>| {
            let (digests, token) = sampled.as_ref()?;
            digests.get(token * num_layers + place).map(|digest| i64::from(*digest))
        };
        let of_layer =
            |place: usize| sampled.iter().map(move |token| digest(place, token).unwrap_or(UNKNOWN));
        let expected: Vec<i64> = (0..num_layers).flat_map(of_layer).collect();
        let expected = upload(&[&expected], positions_p.device()).remove(0);
        Self {
            positions_p: positions_p.shallow_clone(),
            expected_lp: expected.view([num_layers as i64, -1]),
            layers: RefCell::new((0..num_layers).map(|_| None).collect()),
        }
    }

    /// Counts the choices of a layer with experts; `place` is the number of layers with experts before it.
    pub(super) fn observe(&self, place: usize, num_experts: usize, routes: &DeviceRoutes) {
        let counts = no_grad(|| {
            let chosen = routes.choices_tk.index_select(0, &self.positions_p).to_kind(Kind::Int64).view(-1);
            let doubles = (Kind::Double, chosen.device());
            let ones = Tensor::ones(chosen.size(), doubles);
            let chosen_e = Tensor::zeros([num_experts as i64], doubles).index_add(0, &chosen, &ones);
            let expected_p = self.expected_lp.select(0, place as i64);
            let is_equal = routes.digests_t.index_select(0, &self.positions_p).eq_tensor(&expected_p);
            let is_known = expected_p.not_equal(UNKNOWN);
            let sums = [is_known, is_equal].map(|flags| flags.sum(Kind::Double).view(1));
            Tensor::cat(&[chosen_e, sums[0].shallow_clone(), sums[1].shallow_clone()], 0)
        });
        if let Some(layer) = self.layers.borrow_mut().get_mut(place) {
            *layer = Some(counts);
        }
    }

    /// The counts, f64 `[layers, e + 2]`; `None` if no layer has run.
    pub(super) fn counts(self) -> Option<Tensor> {
        let layers = self.layers.into_inner();
        let zeros = layers.iter().flatten().next()?.zeros_like();
        let counts = layers.into_iter().map(|layer| layer.unwrap_or_else(|| zeros.shallow_clone()));
        Some(Tensor::stack(&counts.collect::<Vec<_>>(), 0))
    }
}
