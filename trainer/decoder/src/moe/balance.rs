//! The auxiliary loss that keeps a router from choosing few experts (Switch Transformer, arXiv 2101.03961),
//! as transformers computes it:
//!
//! ```text
//! loss = E sum_e f_e P_e     f_e choices of expert e, P_e its probability, means over tokens and layers
//! ```
//! Perfect balance gives the number of experts a token has. Choices have no gradient, so the derivative with
//! respect to a token's probability of expert e is E f_e / rows. It needs the choices of the whole update
//! before the first backward pass. They are counted in a separate pass ([`RouterObserver::counting`]), so
//! that neither the split into micro-batches nor the number of ranks changes the gradient.
//!
//! Only tokens that predict a token count; a prompt that several completions share counts once for each of
//! them.
//! Shapes: t tokens, e experts.

use std::cell::RefCell;

use tch::{Kind, Tensor, no_grad};

use super::experts::{ExpertIds, RoutedTokens};

/// Choices of the routers, summed over the tokens of all layers that have experts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouterLoad {
    /// Number of tokens; each counts once for each layer.
    pub num_rows: f64,
    /// Number of times that each expert was chosen, `[e]`.
    pub chosen: Vec<f64>,
    /// Sum of each expert's probabilities, `[e]`.
    pub probabilities: Vec<f64>,
}

impl RouterLoad {
    /// The load of no tokens.
    pub fn of_none(num_experts: usize) -> Self {
        Self { num_rows: 0.0, chosen: vec![0.0; num_experts], probabilities: vec![0.0; num_experts] }
    }

    /// The auxiliary loss before its coefficient; 0 without tokens.
    pub fn loss(&self) -> f64 {
        let products = self.chosen.iter().zip(&self.probabilities);
        let sum: f64 = products.map(|(chosen, probability)| chosen * probability).sum();
        let rows = self.num_rows.max(1.0);
        self.chosen.len() as f64 * sum / (rows * rows)
    }

    /// The derivative of `factor` times the loss with respect to a token's probability of each expert, `[e]`.
    pub fn slopes(&self, factor: f64) -> Vec<f32> {
        let rows = self.num_rows.max(1.0);
        let of_choice = factor * self.chosen.len() as f64 / (rows * rows);
        self.chosen.iter().map(|chosen| (of_choice * chosen) as f32).collect()
    }

    /// The load of the busiest expert, divided by the mean load; 1 is balance.
    pub fn imbalance(&self) -> f64 {
        let most = self.chosen.iter().copied().fold(0.0, f64::max);
        let all: f64 = self.chosen.iter().sum();
        if all == 0.0 { 1.0 } else { most * self.chosen.len() as f64 / all }
    }
}

impl std::ops::AddAssign for RouterLoad {
    fn add_assign(&mut self, other: Self) {
        self.num_rows += other.num_rows;
        self.chosen.iter_mut().zip(other.chosen).for_each(|(all, own)| *all += own);
        self.probabilities.iter_mut().zip(other.probabilities).for_each(|(all, own)| *all += own);
    }
}

/// An observer of the routes of a pass: it counts them, or computes their loss.
#[derive(Debug)]
pub struct RouterObserver {
    /// How often each token of this rank counts, f32 [t].
    weights_t: Tensor,
    use_of_routes: UseOfRoutes,
}

#[derive(Debug)]
enum UseOfRoutes {
    Count(RefCell<RouterLoad>),
    /// Sums on a GPU: rows, choices and probabilities, f64 `[1 + 2 e]`.
    CountThere(RefCell<Tensor>),
    Balance {
        /// [`RouterLoad::slopes`], f32 [e].
        slopes_e: Tensor,
        /// The term of the layer that has just run, with its graph.
        term: RefCell<Option<Tensor>>,
    },
}

impl RouterObserver {
    /// An observer that counts the choices among `num_experts`; `weights_t` says how often each token counts.
    pub fn counting(weights_t: Tensor, num_experts: usize) -> Self {
        let use_of_routes = if weights_t.device().is_cuda() {
            let sums = Tensor::zeros([1 + 2 * num_experts as i64], (Kind::Double, weights_t.device()));
            UseOfRoutes::CountThere(RefCell::new(sums))
        } else {
            UseOfRoutes::Count(RefCell::new(RouterLoad::of_none(num_experts)))
        };
        Self { weights_t, use_of_routes }
    }

    /// An observer that gives each layer a term of the loss, whose `slopes` are those of
    /// [`RouterLoad::slopes`].
    pub fn balancing(weights_t: Tensor, slopes: &[f32]) -> Self {
        let slopes_e = rlt_torch::upload_f32(slopes, weights_t.device());
        Self { weights_t, use_of_routes: UseOfRoutes::Balance { slopes_e, term: RefCell::new(None) } }
    }

    pub(crate) fn observe(&self, routes: &RoutedTokens) {
        let summed_e =
            || (&routes.probabilities_te * self.weights_t.unsqueeze(1)).sum_dim_intlist(0, false, None);
        match &self.use_of_routes {
            UseOfRoutes::Balance { slopes_e, term } => {
                let balance = (summed_e() * slopes_e).sum(Kind::Float);
                term.replace(Some(balance).filter(Tensor::requires_grad));
            }
            UseOfRoutes::Count(load) => {
                let ExpertIds::Host(choices) = &routes.choices else { return };
                let (summed, weights) = (numbers(&summed_e()), numbers(&self.weights_t));
                let mut load = load.borrow_mut();
                load.num_rows += weights.iter().sum::<f64>();
                load.probabilities.iter_mut().zip(summed).for_each(|(all, own)| *all += own);
                let per_token = choices.len() / weights.len().max(1);
                for (choice, expert) in choices.iter().enumerate() {
                    load.chosen[*expert as usize] += weights[choice / per_token];
                }
            }
            UseOfRoutes::CountThere(sums) => {
                let ExpertIds::Device(choices) = &routes.choices else { return };
                let own = no_grad(|| self.sums_there(&choices.choices_tk, &summed_e()));
                let _ = sums.borrow_mut().g_add_(&own);
            }
        }
    }

    /// The sums of one layer on a GPU, f64 `[1 + 2 e]`. Weights are integers, so sums of them are exact in
    /// any order.
    fn sums_there(&self, choices_tk: &Tensor, summed_e: &Tensor) -> Tensor {
        let weights_t = self.weights_t.to_kind(Kind::Double);
        let of_choices = weights_t.unsqueeze(1).expand_as(choices_tk).reshape([-1]);
        let chosen_e = Tensor::zeros(summed_e.size(), (Kind::Double, summed_e.device()));
        let chosen_e = chosen_e.index_add(0, &choices_tk.to_kind(Kind::Int64).view(-1), &of_choices);
        Tensor::cat(&[weights_t.sum(Kind::Double).view(1), chosen_e, summed_e.to_kind(Kind::Double)], 0)
    }

    /// Takes the loss term of the layer that has just run.
    pub fn take_term(&self) -> Option<Tensor> {
        match &self.use_of_routes {
            UseOfRoutes::Balance { term, .. } => term.take(),
            UseOfRoutes::Count(_) | UseOfRoutes::CountThere(_) => None,
        }
    }

    /// Returns the counts. Waits for those of a GPU.
    pub fn load(self) -> RouterLoad {
        match self.use_of_routes {
            UseOfRoutes::Count(load) => load.into_inner(),
            UseOfRoutes::CountThere(sums) => {
                let sums = numbers(&sums.into_inner());
                let (chosen, probabilities) = sums[1..].split_at(sums.len() / 2);
                let (chosen, probabilities) = (chosen.to_vec(), probabilities.to_vec());
                RouterLoad { num_rows: sums[0], chosen, probabilities }
            }
            UseOfRoutes::Balance { .. } => RouterLoad::default(),
        }
    }
}

/// Copies a tensor's values to the host, and waits for them.
pub(crate) fn numbers(tensor: &Tensor) -> Vec<f64> {
    let mut numbers = vec![0_f64; tensor.numel()];
    let on_host = no_grad(|| tensor.to_kind(Kind::Double).to_device(tch::Device::Cpu).contiguous());
    on_host.copy_data(&mut numbers, tensor.numel());
    numbers
}

/// The weight of each packed token, for `num_tokens` from `first_token` on: the number of completions that
/// continue its segment, at least 1. Padding has 0.
pub(crate) fn token_weights(
    cu_seqlens: &[i32],
    prefixes: &[Option<usize>],
    first_token: usize,
    num_tokens: usize,
) -> Vec<f32> {
    let mut continued = vec![0_u32; prefixes.len()];
    for prefix in prefixes.iter().flatten() {
        continued[*prefix] += 1;
    }
    let segments = cu_seqlens.windows(2).zip(&continued);
    let all = segments.flat_map(|(ends, continued)| {
        std::iter::repeat_n((*continued).max(1) as f32, (ends[1] - ends[0]) as usize)
    });
    all.chain(std::iter::repeat(0.0)).skip(first_token).take(num_tokens).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_prompt_counts_once_for_each_completion_and_padding_never() {
        let (cu_seqlens, prefixes) = ([0, 2, 3, 5, 6], [None, Some(0), Some(0), None]);
        let weights = token_weights(&cu_seqlens, &prefixes, 1, 7);
        assert_eq!(weights, [2.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn balance_costs_as_much_as_a_token_has_experts_and_one_expert_for_all_the_most() {
        let balanced = RouterLoad { num_rows: 10.0, chosen: vec![5.0; 4], probabilities: vec![2.5; 4] };
        assert_eq!((balanced.loss(), balanced.imbalance()), (2.0, 1.0));
        let one =
            |expert: usize, number: f64| (0..4).map(|e| if e == expert { number } else { 0.0 }).collect();
        let collapsed = RouterLoad { num_rows: 10.0, chosen: one(1, 10.0), probabilities: one(1, 10.0) };
        assert_eq!((collapsed.loss(), collapsed.imbalance()), (4.0, 4.0));
        assert_eq!(collapsed.slopes(0.5), [0.0, 0.2, 0.0, 0.0]);
    }
}
