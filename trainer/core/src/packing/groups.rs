//! Packing of samples that share prompts: a group's prompt counts once per micro-batch that has its samples.
//!
//! A group that fits the budget is one unit, so its prompt is computed once. A larger group is split into few
//! units, each with the prompt. Micro-batches are filled with units.

use super::{Packing, PackingError, balance, fill, stream_limit, workload};

/// A prompt and the lengths of the samples that continue it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptGroup {
    /// Number of tokens of the prompt.
    pub prompt_len: usize,
    /// Number of tokens that each sample adds.
    pub lens: Vec<usize>,
}

/// Samples of one group that stay in one micro-batch, with their prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unit {
    samples: Vec<usize>,
    num_tokens: usize,
    work: u64,
}

/// Packs samples that share prompts into micro-batches of at most `max_tokens` tokens, where each prompt
/// counts once for the samples that are kept together. Samples are numbered group after group.
///
/// A group is split only if it alone exceeds the budget, into at most one unit more than the fewest possible.
/// The resulting units are packed into micro-batches with the guarantees of [`super::pack`].
///
/// # Errors
/// [`PackingError::SampleTooLong`] with the first sample that is longer than `max_tokens`, its prompt
/// included.
///
/// ```
/// use rlt_core::packing::{PromptGroup, pack_groups};
/// let group = PromptGroup { prompt_len: 4, lens: vec![3, 3] };
/// let packing = pack_groups(&[group.clone(), group], 10, 64)?;
/// assert_eq!(packing.micro_batches, [[0, 1], [2, 3]], "ten tokens hold a prompt and both samples");
/// # Ok::<(), rlt_core::packing::PackingError>(())
/// ```
pub fn pack_groups(
    groups: &[PromptGroup],
    max_tokens: usize,
    hidden_size: usize,
) -> Result<Packing, PackingError> {
    let max_tokens = stream_limit(max_tokens);
    let units = units(groups, max_tokens, hidden_size)?;
    let lens: Vec<usize> = units.iter().map(|unit| unit.num_tokens).collect();
    let work: Vec<u64> = units.iter().map(|unit| unit.work).collect();
    let packing = Packing::of_units(&lens, &work, max_tokens);
    let samples = |units_of_one: Vec<usize>| {
        let mut samples: Vec<usize> =
            units_of_one.into_iter().flat_map(|unit| units[unit].samples.iter().copied()).collect();
        samples.sort_unstable();
        samples
    };
    Ok(Packing { micro_batches: packing.micro_batches.into_iter().map(samples).collect() })
}

fn units(groups: &[PromptGroup], max_tokens: usize, hidden_size: usize) -> Result<Vec<Unit>, PackingError> {
    let mut units = Vec::new();
    let mut first = 0;
    for group in groups {
        let PromptGroup { prompt_len, lens } = group;
        if let Some(at) = lens.iter().position(|len| prompt_len + len > max_tokens) {
            let len = prompt_len + lens[at];
            return Err(PackingError::SampleTooLong { sample_idx: first + at, len, max_tokens });
        }
        let parts = parts(group, max_tokens, hidden_size);
        units.extend(parts.into_iter().map(|part| unit(group, &part, first, hidden_size)));
        first += lens.len();
    }
    Ok(units)
}

/// Splits a group into units, as sample indices within the group: one unit if the group fits the budget.
fn parts(group: &PromptGroup, max_tokens: usize, hidden_size: usize) -> Vec<Vec<usize>> {
    let PromptGroup { prompt_len, lens } = group;
    if lens.is_empty() {
        return Vec::new();
    }
    if prompt_len + lens.iter().sum::<usize>() <= max_tokens {
        return vec![(0..lens.len()).collect()];
    }
    let room = max_tokens - prompt_len;
    let work: Vec<u64> = lens.iter().map(|len| branch_work(*prompt_len, *len, hidden_size)).collect();
    balance::balance(fill::fill(lens, room), lens, &work, room)
}

fn unit(group: &PromptGroup, part: &[usize], first: usize, hidden_size: usize) -> Unit {
    let PromptGroup { prompt_len, lens } = group;
    let branches = part.iter().map(|at| branch_work(*prompt_len, lens[*at], hidden_size));
    Unit {
        samples: part.iter().map(|at| first + at).collect(),
        num_tokens: prompt_len + part.iter().map(|at| lens[*at]).sum::<usize>(),
        work: workload(*prompt_len, hidden_size) + branches.sum::<u64>(),
    }
}

/// Returns the work of `len` tokens that attend to a prompt and to themselves, in the units of [`workload`].
fn branch_work(prompt_len: usize, len: usize, hidden_size: usize) -> u64 {
    workload(len, hidden_size) + 2 * prompt_len as u64 * len as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::fewest;
    use super::*;

    fn group_of(groups: &[PromptGroup]) -> Vec<usize> {
        groups.iter().enumerate().flat_map(|(idx, group)| vec![idx; group.lens.len()]).collect()
    }

    /// Packed tokens of these samples, a prompt counted once.
    fn num_tokens(groups: &[PromptGroup], samples: &[usize]) -> usize {
        let (group_of, lens) =
            (group_of(groups), groups.iter().flat_map(|g| g.lens.clone()).collect::<Vec<_>>());
        let mut of: Vec<usize> = samples.iter().map(|sample| group_of[*sample]).collect();
        of.dedup();
        let prompts: usize = of.iter().map(|group| groups[*group].prompt_len).sum();
        prompts + samples.iter().map(|sample| lens[*sample]).sum::<usize>()
    }

    fn groups() -> impl Strategy<Value = Vec<PromptGroup>> {
        let group = (1_usize..12, prop::collection::vec(0_usize..12, 1..6));
        let group = group.prop_map(|(prompt_len, lens)| PromptGroup { prompt_len, lens });
        prop::collection::vec(group, 0..7)
    }

    proptest! {
        #[test]
        fn every_sample_has_one_place_and_no_budget_is_exceeded(
            groups in groups(), max_tokens in 24_usize..90,
        ) {
            let packing = pack_groups(&groups, max_tokens, 64).unwrap();
            for samples in &packing.micro_batches {
                prop_assert!(!samples.is_empty() && num_tokens(&groups, samples) <= max_tokens);
            }
            let mut all = packing.order();
            all.sort_unstable();
            prop_assert_eq!(all, (0..group_of(&groups).len()).collect::<Vec<_>>());
        }

        #[test]
        fn packing_uses_at_most_one_micro_batch_more_than_the_minimum(groups in groups(), max_tokens in 24_usize..90) {
            let lens: Vec<usize> =
                units(&groups, max_tokens, 64).unwrap().iter().map(|unit| unit.num_tokens).collect();
            let num = pack_groups(&groups, max_tokens, 64).unwrap().micro_batches.len();
            prop_assert!(num <= fewest(&lens, max_tokens) + 1);
        }

        #[test]
        fn a_group_is_split_only_above_the_budget_and_into_few_units(
            groups in groups(), max_tokens in 24_usize..40,
        ) {
            for group in &groups {
                let num = parts(group, max_tokens, 64).len();
                let room = max_tokens - group.prompt_len;
                let must = group.lens.iter().sum::<usize>() > room;
                let most = if must { fewest(&group.lens, room) + 1 } else { 1 };
                prop_assert!(num <= most, "{} parts of {:?}", num, group);
            }
        }
    }

    #[test]
    fn groups_of_one_are_packed_like_sequences() {
        let lens = [9, 4, 7, 7, 2, 12, 3];
        let groups = lens.map(|len| PromptGroup { prompt_len: 1, lens: vec![len - 1] });
        assert_eq!(pack_groups(&groups, 16, 64), super::super::pack(&lens, 16, 64));
    }

    #[test]
    fn a_sample_that_fits_nowhere_is_named_with_its_prompt() {
        let groups = [3, 6].map(|prompt_len| PromptGroup { prompt_len, lens: vec![1, 3] });
        let too_long = PackingError::SampleTooLong { sample_idx: 3, len: 9, max_tokens: 8 };
        assert_eq!(pack_groups(&groups, 8, 64), Err(too_long));
    }
}
