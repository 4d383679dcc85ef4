//! Metrics of routers' choices: whether rollout and actor chose the same experts for a token, and how
//! balanced the use of experts is.
//!
//! ```text
//! rollout  RouteLog: a digest of each layer's choices for every token from which one is sampled
//! actor    RouteCounter: the same tokens in a pass -> RouteCounts: equal choices, choices of each expert
//! ```
//! A digest has 16 bits and does not depend on the order of the choices: one of 65536 differences is missed.
//! On a CPU it costs little, because routing needs the choices on the host anyway. On a GPU the routing
//! kernel computes the digest, and counts stay on the GPU until all passes of a batch have run.

use std::cell::RefCell;
use std::rc::Rc;

use rlt_core::digest::combine;
use rlt_core::metrics::Metrics;
use tch::Tensor;

use super::experts::{ExpertIds, RoutedTokens};

mod on_device;

use on_device::DeviceWatch;

impl RoutedTokens {
    /// A digest of the experts of token `token`; the routes are those of `num_tokens` tokens.
    fn digest(&self, token: usize, num_tokens: usize) -> u16 {
        let mut chosen = self.of_token(token, num_tokens).to_vec();
        chosen.sort_unstable();
        let digest = chosen.iter().fold(0, |digest, expert| combine(digest, expert.cast_unsigned()));
        (digest >> 48) as u16
    }

    /// The experts of a token; empty if the choices are on a GPU.
    fn of_token(&self, token: usize, num_tokens: usize) -> &[i64] {
        let ExpertIds::Host(choices) = &self.choices else { return &[] };
        let per_token = choices.len() / num_tokens.max(1);
        &choices[token * per_token..][..per_token]
    }

    fn num_tokens(&self) -> usize {
        self.weights_tk.size()[0] as usize
    }
}

/// The choices of one rollout pass, layer by layer: a digest for each row.
#[derive(Debug, Default)]
pub struct RouteLog(RefCell<Vec<Vec<u16>>>);

impl RouteLog {
    /// Records the routes of the next layer with experts.
    pub fn push(&self, routes: &RoutedTokens) {
        let num_tokens = routes.num_tokens();
        let digests = (0..num_tokens).map(|token| routes.digest(token, num_tokens)).collect();
        self.0.borrow_mut().push(digests);
    }

    /// The digests of all layers since the last call, each `[rows]`.
    pub fn take(&self) -> Vec<Vec<u16>> {
        self.0.take()
    }
}

/// Digests of a completion's routes. For each token there is one per layer with experts, under the weights
/// and at the position from which the token was sampled.
pub type RoutesOfCompletion = Rc<[u16]>;

/// Counts the routers' choices of a pass, at the tokens that predict another token.
#[derive(Debug)]
pub struct RouteCounter(Watched);

#[derive(Debug)]
enum Watched {
    OnHost(HostWatch),
    OnDevice(DeviceWatch),
}

/// The counts of a pass.
#[derive(Debug)]
pub enum Counted {
    /// Counts on the host.
    OnHost(RouteCounts),
    /// Counts still on a GPU, f64 `[layers, e + 2]`, in the order of [`RouteCounts::from_numbers`].
    OnDevice(Tensor),
}

#[derive(Debug)]
struct HostWatch {
    /// Position of each predicting token among those of the pass, and the rollout's choices there: the
    /// digests of its completion and the token's index in the completion. `None` if the rollout's choices
    /// were not recorded.
    tokens: Vec<(usize, Option<(RoutesOfCompletion, usize)>)>,
    layers: RefCell<Vec<Option<LayerCounts>>>,
}

/// Counts of one layer.
#[derive(Clone, Debug, Default, PartialEq)]
struct LayerCounts {
    /// Number of times that each expert was chosen.
    chosen: Vec<f64>,
    /// Number of tokens for which the rollout's choices are known.
    num_compared: f64,
    /// Number of compared tokens for which rollout and actor chose the same experts.
    num_equal: f64,
}

impl RouteCounter {
    /// A counter at `tokens` in each of `num_layers` layers with experts.
    pub fn new(tokens: Vec<(usize, Option<(RoutesOfCompletion, usize)>)>, num_layers: usize) -> Self {
        Self(Watched::OnHost(HostWatch { tokens, layers: RefCell::new(vec![None; num_layers]) }))
    }

    /// A counter on a GPU at tokens `positions_p`, i64 `[p]`, with the rollout's choices `sampled` at each.
    pub fn on_device(
        positions_p: &Tensor,
        sampled: &[Option<(RoutesOfCompletion, usize)>],
        num_layers: usize,
    ) -> Self {
        Self(Watched::OnDevice(DeviceWatch::new(positions_p, sampled, num_layers)))
    }

    /// Counts the routes of a layer with experts; `place` is the number of layers with experts before it. A
    /// layer that is recomputed overwrites its counts, so it is counted once.
    pub(crate) fn observe(&self, place: usize, num_experts: usize, routes: &RoutedTokens) {
        match (&self.0, &routes.choices) {
            (Watched::OnDevice(watch), ExpertIds::Device(choices)) => {
                watch.observe(place, num_experts, choices);
            }
            (Watched::OnHost(watch), _) => watch.observe(place, num_experts, routes),
            (Watched::OnDevice(_), ExpertIds::Host(_)) => {}
        }
    }

    /// The counts, on the device where they are.
    pub fn counted(self) -> Counted {
        match self.0 {
            Watched::OnHost(watch) => Counted::OnHost(watch.counts()),
            Watched::OnDevice(watch) => {
                watch.counts().map_or_else(|| Counted::OnHost(RouteCounts::default()), Counted::OnDevice)
            }
        }
    }

    /// The counts on the host. Waits for those of a GPU.
    pub fn counts(self) -> RouteCounts {
        match self.counted() {
            Counted::OnHost(counts) => counts,
            Counted::OnDevice(counts) => RouteCounts::from_device(&counts),
        }
    }
}

impl HostWatch {
    fn observe(&self, place: usize, num_experts: usize, routes: &RoutedTokens) {
        let (num_tokens, num_layers) = (routes.num_tokens(), self.layers.borrow().len());
        let mut counts = LayerCounts { chosen: vec![0.0; num_experts], ..LayerCounts::default() };
        for (position, sampled) in &self.tokens {
            for expert in routes.of_token(*position, num_tokens) {
                counts.chosen[*expert as usize] += 1.0;
            }
            let expected =
                sampled.as_ref().and_then(|(digests, token)| digests.get(token * num_layers + place));
            if let Some(expected) = expected {
                counts.num_compared += 1.0;
                counts.num_equal += f64::from(u8::from(*expected == routes.digest(*position, num_tokens)));
            }
        }
        if let Some(layer) = self.layers.borrow_mut().get_mut(place) {
            *layer = Some(counts);
        }
    }

    fn counts(self) -> RouteCounts {
        RouteCounts { layers: self.layers.into_inner().into_iter().map(Option::unwrap_or_default).collect() }
    }
}

/// Counts of all layers with experts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteCounts {
    layers: Vec<LayerCounts>,
}

impl RouteCounts {
    /// Counts of no tokens.
    pub fn of_none(num_layers: usize, num_experts: usize) -> Self {
        let none = LayerCounts { chosen: vec![0.0; num_experts], ..LayerCounts::default() };
        Self { layers: vec![none; num_layers] }
    }

    /// All counts as a flat list, to be summed over ranks.
    pub fn to_numbers(&self) -> Vec<f64> {
        let numbers =
            |layer: &LayerCounts| [&layer.chosen[..], &[layer.num_compared, layer.num_equal]].concat();
        self.layers.iter().flat_map(numbers).collect()
    }

    /// Copies counts of a GPU, f64 `[layers, e + 2]`, to the host, and waits for them.
    pub fn from_device(counts: &Tensor) -> Self {
        let num_experts = counts.size()[1] as usize - 2;
        Self::from_numbers(&super::balance::numbers(&counts.view(-1)), num_experts)
    }

    /// The inverse of [`Self::to_numbers`], for `num_experts` in each layer.
    pub fn from_numbers(numbers: &[f64], num_experts: usize) -> Self {
        let layer = |numbers: &[f64]| LayerCounts {
            chosen: numbers[..num_experts].to_vec(),
            num_compared: numbers[num_experts],
            num_equal: numbers[num_experts + 1],
        };
        Self { layers: numbers.chunks_exact(num_experts + 2).map(layer).collect() }
    }

    /// Share of tokens for which rollout and actor chose the same experts, layer by layer. `None` if the
    /// rollout's choices are known for no token.
    pub fn agreement(&self) -> Option<Vec<f64>> {
        let is_known = self.layers.iter().all(|layer| layer.num_compared > 0.0) && !self.layers.is_empty();
        let share = |layer: &LayerCounts| layer.num_equal / layer.num_compared;
        is_known.then(|| self.layers.iter().map(share).collect())
    }

    /// Share of the choices that the busiest expert has, layer by layer.
    pub fn busiest(&self) -> Vec<f64> {
        let share = |layer: &LayerCounts| {
            let all: f64 = layer.chosen.iter().sum();
            layer.chosen.iter().copied().fold(0.0, f64::max) / all.max(1.0)
        };
        self.layers.iter().map(share).collect()
    }

    /// Returns the metrics `moe/route_agreement` and `moe/busiest_expert`: their means over layers, and the
    /// value of each layer under its index. `layer_idxs` are the indices of the layers with experts.
    pub fn metrics(&self, layer_idxs: impl Iterator<Item = usize> + Clone) -> Metrics {
        let all = [("moe/route_agreement", self.agreement()), ("moe/busiest_expert", Some(self.busiest()))];
        let known = all.into_iter().filter_map(|(name, shares)| Some((name, shares?)));
        let named = known.flat_map(|(name, shares)| {
            let mean = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
            let of_layers = layer_idxs.clone().zip(shares);
            let of_layers =
                of_layers.map(move |(layer_idx, share)| (format!("{name}/layer_{layer_idx}"), share));
            std::iter::once((name.to_owned(), mean)).chain(of_layers)
        });
        named.collect()
    }
}

impl std::ops::AddAssign for RouteCounts {
    fn add_assign(&mut self, other: Self) {
        for (all, own) in self.layers.iter_mut().zip(other.layers) {
            all.chosen.iter_mut().zip(own.chosen).for_each(|(all, own)| *all += own);
            all.num_compared += own.num_compared;
            all.num_equal += own.num_equal;
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    /// Four tokens, two of five experts each.
    fn routes(choices: [i64; 8]) -> RoutedTokens {
        let zeros = |width: i64| Tensor::zeros([4, width], (Kind::Float, Device::Cpu));
        RoutedTokens {
            probabilities_te: zeros(5),
            weights_tk: zeros(2),
            choices: ExpertIds::Host(choices.to_vec()),
            rows: rlt_torch::ExpertRows::new(&choices, 2, 5, Device::Cpu),
        }
    }

    /// Routes of four tokens in two layers.
    fn layers() -> [RoutedTokens; 2] {
        [routes([3, 1, 0, 4, 2, 1, 1, 3]), routes([0, 1, 0, 2, 0, 3, 0, 4])]
    }

    /// The rollout's log of a completion whose three tokens are sampled from the last three of these.
    fn logged() -> Vec<u16> {
        let log = RouteLog::default();
        layers().iter().for_each(|routes| log.push(routes));
        let layers = log.take();
        (1..4)
            .flat_map(|token| layers.iter().map(move |digests| digests[token]).collect::<Vec<_>>())
            .collect()
    }

    fn counted(sampled: Option<Vec<u16>>) -> RouteCounts {
        let sampled: Option<RoutesOfCompletion> = sampled.map(Into::into);
        let token = |token: usize| (1 + token, sampled.clone().map(|digests| (digests, token)));
        let watch = RouteCounter::new((0..3).map(token).collect(), 2);
        // A layer whose activations are computed again is observed twice.
        for (place, routes) in layers().iter().enumerate().chain(layers().iter().enumerate()) {
            watch.observe(place, 5, routes);
        }
        watch.counts()
    }

    #[test]
    fn routes_agree_with_themselves_and_another_choice_is_seen_in_its_layer() {
        let agreement = |digests: Vec<u16>| counted(Some(digests)).agreement().unwrap();
        assert_eq!(agreement(logged()), [1.0, 1.0]);
        let mut other = logged();
        other[2 * 2 + 1] ^= 1;
        assert_eq!(agreement(other), [1.0, 2.0 / 3.0]);
        assert_eq!(agreement(logged()[..2].to_vec()), [1.0, 1.0], "what is known is compared");
    }

    #[test]
    fn without_the_rollout_s_routes_only_the_load_is_known() {
        let counts = counted(None);
        assert_eq!(counts.agreement(), None);
        assert_eq!(counts.busiest(), [2.0 / 6.0, 3.0 / 6.0]);
        let metrics = counts.metrics([0, 2].into_iter());
        let names: Vec<&str> = metrics.keys().map(String::as_str).collect();
        assert_eq!(names, ["moe/busiest_expert", "moe/busiest_expert/layer_0", "moe/busiest_expert/layer_2"]);
        assert_eq!(metrics["moe/busiest_expert"], (2.0 / 6.0 + 3.0 / 6.0) / 2.0);
        assert_eq!(counted(Some(logged())).metrics([0, 2].into_iter())["moe/route_agreement/layer_2"], 1.0);
    }

    #[test]
    fn counts_of_ranks_add_up_as_numbers() {
        let counts = counted(Some(logged()));
        let mut twice = RouteCounts::of_none(2, 5);
        twice += counts.clone();
        assert_eq!(twice, counts);
        twice += counts.clone();
        let numbers: Vec<f64> = counts.to_numbers().iter().map(|number| 2.0 * number).collect();
        assert_eq!(RouteCounts::from_numbers(&numbers, 5), twice);
    }

    #[test]
    fn a_digest_does_not_depend_on_the_order_of_choices() {
        let digests = |choices| [0, 1].map(|token: usize| routes(choices).digest(token, 4));
        assert_eq!(digests([3, 1, 0, 4, 0, 1, 0, 1]), digests([1, 3, 4, 0, 0, 1, 0, 1]));
        let [one, other] = digests([3, 1, 0, 4, 0, 1, 0, 1]);
        assert_ne!(one, other);
    }
}
