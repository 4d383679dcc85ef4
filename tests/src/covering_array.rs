//! Covering arrays: few combinations of settings that contain every pair of facts which can occur together.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Combines values of settings so that every pair of facts which some allowed combination has occurs in one
/// of the results. `settings` lists the facts of each value of each setting; a result has the index of one
/// value for each setting. `is_allowed` decides by the facts of a combination. Adding facts to a combination
/// that is not allowed must not make it allowed.
///
/// The search is greedy: it takes the values that add the most new pairs, and the first ones in a tie.
pub fn covering_array<F: Copy + Ord>(
    settings: &[Vec<Vec<F>>],
    is_allowed: &dyn Fn(&BTreeSet<F>) -> bool,
) -> Vec<Vec<usize>> {
    let facts: BTreeSet<F> = settings.iter().flatten().flatten().copied().collect();
    let mut search = Search { settings, is_allowed, missing: pairs(&facts).collect() };
    let mut combinations = Vec::new();
    while let Some(&(one, other)) = search.missing.first() {
        let found = search.best_with(one, other);
        search.missing.remove(&(one, other));
        if let Some(chosen) = found {
            for pair in pairs(&search.facts(&chosen)) {
                search.missing.remove(&pair);
            }
            combinations.push(chosen.into_iter().flatten().collect());
        }
    }
    combinations
}

/// Yields every two of the facts, the smaller one first.
fn pairs<F: Copy + Ord>(facts: &BTreeSet<F>) -> impl Iterator<Item = (F, F)> {
    let larger = move |one: F| facts.iter().copied().filter(move |other| one < *other);
    facts.iter().copied().flat_map(move |one| larger(one).map(move |other| (one, other)))
}

/// A value of a setting, as the indices of both.
#[derive(Clone, Copy, PartialEq)]
struct Choice {
    setting: usize,
    value: usize,
}

struct Search<'a, F> {
    settings: &'a [Vec<Vec<F>>],
    is_allowed: &'a dyn Fn(&BTreeSet<F>) -> bool,
    /// Pairs of facts that no result has yet.
    missing: BTreeSet<(F, F)>,
}

impl<F: Copy + Ord> Search<'_, F> {
    /// Returns the combination with both facts that has the most missing pairs; `None` if none is allowed.
    fn best_with(&self, one: F, other: F) -> Option<Vec<Option<usize>>> {
        let mut best: Option<Vec<Option<usize>>> = None;
        for first in self.choices_of(one) {
            for second in self.choices_of(other) {
                if first.setting == second.setting && first != second {
                    continue;
                }
                let mut chosen = vec![None; self.settings.len()];
                chosen[first.setting] = Some(first.value);
                chosen[second.setting] = Some(second.value);
                let Some(found) = self.completed(chosen) else { continue };
                if best.as_ref().is_none_or(|best| self.num_new(&found) > self.num_new(best)) {
                    best = Some(found);
                }
            }
        }
        best
    }

    /// The values that give a fact.
    fn choices_of(&self, fact: F) -> Vec<Choice> {
        let values = |setting: usize| {
            let values = self.settings[setting].iter().enumerate();
            let with_fact = values.filter(move |(_, facts)| facts.contains(&fact));
            with_fact.map(move |(value, _)| Choice { setting, value })
        };
        (0..self.settings.len()).flat_map(values).collect()
    }

    /// Chooses values for the remaining settings; `None` if no choice is allowed.
    fn completed(&self, chosen: Vec<Option<usize>>) -> Option<Vec<Option<usize>>> {
        if !(self.is_allowed)(&self.facts(&chosen)) {
            return None;
        }
        let Some(open) = chosen.iter().position(Option::is_none) else { return Some(chosen) };
        let with = |value: usize| {
            let mut next = chosen.clone();
            next[open] = Some(value);
            next
        };
        let mut all: Vec<Vec<Option<usize>>> = (0..self.settings[open].len()).map(with).collect();
        all.sort_by_cached_key(|next| Reverse(self.num_new(next)));
        all.into_iter().find_map(|next| self.completed(next))
    }

    /// Number of missing pairs that the chosen values have.
    fn num_new(&self, chosen: &[Option<usize>]) -> usize {
        pairs(&self.facts(chosen)).filter(|pair| self.missing.contains(pair)).count()
    }

    /// Returns the facts of the chosen values.
    fn facts(&self, chosen: &[Option<usize>]) -> BTreeSet<F> {
        let decided = self.settings.iter().zip(chosen);
        decided.filter_map(|(values, value)| Some(&values[(*value)?])).flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings of up to three values with up to two facts each, and pairs of facts that are not allowed.
    struct Case {
        settings: Vec<Vec<Vec<u64>>>,
        excluded: Vec<[u64; 2]>,
    }

    impl Case {
        fn new(seed: u64) -> Self {
            let mut state = seed;
            let mut draw = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let mut settings = Vec::new();
            for _ in 0..5 {
                let mut values = Vec::new();
                for _ in 0..=draw(3) {
                    values.push((0..draw(3)).map(|_| draw(9)).collect());
                }
                settings.push(values);
            }
            let excluded = (0..draw(6)).map(|_| [draw(9), draw(9)]).collect();
            Self { settings, excluded }
        }

        fn is_allowed(&self, facts: &BTreeSet<u64>) -> bool {
            !self.excluded.iter().any(|pair| pair.iter().all(|fact| facts.contains(fact)))
        }

        fn facts(&self, combination: &[usize]) -> BTreeSet<u64> {
            let values = self.settings.iter().zip(combination);
            values.flat_map(|(values, value)| values[*value].iter().copied()).collect()
        }

        /// All combinations of values.
        fn combinations(&self) -> Vec<Vec<usize>> {
            let mut all = vec![Vec::new()];
            for values in &self.settings {
                let with_each =
                    |before: Vec<usize>| (0..values.len()).map(move |value| [&before[..], &[value]].concat());
                all = all.into_iter().flat_map(with_each).collect();
            }
            all
        }
    }

    #[test]
    fn every_pair_of_facts_that_an_allowed_combination_has_is_in_a_result() {
        let mut num_excluded = 0;
        for case in (0..200).map(Case::new) {
            let results = covering_array(&case.settings, &|facts| case.is_allowed(facts));
            let facts: Vec<BTreeSet<u64>> = results.iter().map(|result| case.facts(result)).collect();
            assert!(facts.iter().all(|facts| case.is_allowed(facts)), "{:?}", case.settings);
            let all = case.combinations().into_iter().map(|combination| case.facts(&combination));
            let (allowed, excluded): (Vec<_>, Vec<_>) = all.partition(|facts| case.is_allowed(facts));
            let pairs_of = |sets: &[BTreeSet<u64>]| sets.iter().flat_map(pairs).collect::<BTreeSet<_>>();
            assert_eq!(pairs_of(&facts), pairs_of(&allowed), "{:?}, {:?}", case.settings, case.excluded);
            num_excluded += excluded.len();
        }
        assert!(num_excluded > 1000, "{num_excluded} combinations are not allowed");
    }

    #[test]
    fn results_are_few() {
        let switches: Vec<Vec<Vec<usize>>> = (0..8).map(|fact| vec![Vec::new(), vec![fact]]).collect();
        assert_eq!(covering_array(&switches, &|_| true), [[1; 8]]);
        let choices: Vec<Vec<Vec<usize>>> =
            (0..4).map(|setting| (0..3).map(|value| vec![3 * setting + value]).collect()).collect();
        let num_results = covering_array(&choices, &|_| true).len();
        assert!(
            (9..=12).contains(&num_results),
            "{num_results} of 81 combinations, of which 9 may be enough"
        );
    }
}
