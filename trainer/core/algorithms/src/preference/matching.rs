//! Matching of the completions of an update for comparison: within pairs, or by rank in the update (alignment
//! by optimal transport, arXiv 2406.05882).

use super::pair::Side;

/// Rule by which completions of an update are matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Matching {
    /// Each chosen completion is matched with the rejected one of its pair.
    #[default]
    Pairs,
    /// The pairs' log-ratios of chosen to rejected under the actor are matched with those under the
    /// reference, both in ascending order.
    SortedPairs,
    /// The log-ratios of chosen completions are matched with those of rejected ones, both in ascending order.
    SortedSides,
}

/// Two completions that are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Match {
    /// Rows whose log-probs the loss reads: chosen, rejected.
    pub rows: [usize; 2],
    /// Compared sides: chosen, rejected.
    pub sides: [Side; 2],
}

impl Matching {
    /// Whether a match depends on all pairs of the update.
    pub(crate) fn sorts(self) -> bool {
        self != Self::Pairs
    }

    /// Returns the matches of completions in the order chosen, rejected, chosen ..
    pub(super) fn of(self, sides: &[Side]) -> Vec<Match> {
        match self {
            Self::Pairs => pairs(sides).collect(),
            Self::SortedPairs => sorted_pairs(sides),
            Self::SortedSides => sorted_sides(sides),
        }
    }
}

fn pairs(sides: &[Side]) -> impl Iterator<Item = Match> {
    let of_pair = |(pair_idx, sides): (usize, &[Side])| {
        let rows = [2 * pair_idx, 2 * pair_idx + 1];
        Match { rows, sides: [sides[0], sides[1]] }
    };
    sides.chunks_exact(2).enumerate().map(of_pair)
}

/// Sorts pairs by the actor's log-ratio of chosen to rejected, and replaces the reference's by that of the
/// same rank.
fn sorted_pairs(sides: &[Side]) -> Vec<Match> {
    let mut matches: Vec<Match> = pairs(sides).collect();
    let of_actor = |one: &Match| one.sides[0].logprob - one.sides[1].logprob;
    let of_reference = |one: &Match| of_actor(one) - (one.sides[0].log_ratio - one.sides[1].log_ratio);
    let mut references: Vec<f64> = matches.iter().map(of_reference).collect();
    references.sort_by(f64::total_cmp);
    matches.sort_by(|one, other| of_actor(one).total_cmp(&of_actor(other)));
    for (one, reference) in matches.iter_mut().zip(references) {
        let log_ratio = of_actor(one) - reference;
        let [chosen, rejected] = one.sides;
        one.sides = [Side { log_ratio, ..chosen }, Side { log_ratio: 0.0, ..rejected }];
    }
    matches
}

fn sorted_sides(sides: &[Side]) -> Vec<Match> {
    let ascending = |first: usize| {
        let mut rows: Vec<usize> = (first..sides.len()).step_by(2).collect();
        rows.sort_by(|one, other| sides[*one].log_ratio.total_cmp(&sides[*other].log_ratio));
        rows
    };
    let matched = |(chosen, rejected): (usize, usize)| Match {
        rows: [chosen, rejected],
        sides: [sides[chosen], sides[rejected]],
    };
    ascending(0).into_iter().zip(ascending(1)).map(matched).collect()
}
