//! Exchange of judged samples: each rank packs its own into one tensor, and all ranks gather all of them.
//!
//! ```text
//! nothing                                      a rank that was asked to stop
//! u64 preemptions, u64 cache bytes | samples   any other, see rlt_core::packed_samples
//! ```

use rlt_core::packed_samples::{JudgedGroup, PackedSamplesError, pack, unpack};
use rlt_parallel::{RankError, Ranks};

use super::SamplingCost;

/// Judged groups of one rank, and the cost of sampling them.
#[derive(Debug, PartialEq)]
pub(super) struct OwnSamples {
    pub(super) groups: Vec<JudgedGroup>,
    pub(super) cost: SamplingCost,
}

/// Number of bytes before the samples: two u64.
const COST_BYTES: usize = 16;

/// Gathers the samples of all ranks, in the order of ranks; `None` on all ranks if one of them has none.
///
/// # Errors
/// [`RankError::Samples`] for bytes that are not samples, [`RankError`] when a rank is lost.
pub(super) fn all_gather(
    ranks: &Ranks,
    own: Option<OwnSamples>,
) -> Result<Option<Vec<OwnSamples>>, RankError> {
    if ranks.size() == 1 {
        return Ok(own.map(|own| vec![own]));
    }
    let of_rank = |rank: usize| move |source| RankError::Samples { rank, source };
    let own = own.as_ref().map(packed).transpose().map_err(of_rank(ranks.rank()))?;
    let gathered = ranks.all_gather_bytes(&own.unwrap_or_default())?;
    let samples = gathered.iter().enumerate().map(|(rank, bytes)| unpacked(bytes).map_err(of_rank(rank)));
    samples.collect()
}

fn packed(own: &OwnSamples) -> Result<Vec<u8>, PackedSamplesError> {
    let OwnSamples { groups, cost } = own;
    let cost = [cost.num_preemptions, cost.cache_bytes].map(u64::to_le_bytes);
    Ok([cost.concat(), pack(groups)?].concat())
}

fn unpacked(bytes: &[u8]) -> Result<Option<OwnSamples>, PackedSamplesError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let got = bytes.len() as u64;
    let short = PackedSamplesError::Truncated { field: "cost of sampling", expected: COST_BYTES as u64, got };
    let (cost, samples) = bytes.split_at_checked(COST_BYTES).ok_or(short)?;
    let [num_preemptions, cache_bytes] =
        [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| cost[at + byte])));
    let cost = SamplingCost { num_preemptions, cache_bytes };
    Ok(Some(OwnSamples { groups: unpack(samples)?, cost }))
}

#[cfg(test)]
mod tests {
    use rlt_core::packed_samples::num_bytes;
    use rlt_core::types::{Completion, FinishReason, Reward, RewardStatus};

    use super::*;
    use crate::tests::on_ranks;

    /// Makes groups of these lengths, whose samples have `1 + 10 * rank + sample_idx` tokens.
    fn own_samples(rank: usize, group_lens: &[usize]) -> OwnSamples {
        let sample = |sample_idx: usize| {
            let num_tokens = 1 + 10 * rank + sample_idx;
            let completion = Completion {
                tokens: (0..num_tokens as u32).collect(),
                rollout_logprobs: (0..num_tokens).map(|token| -0.1 * token as f32).collect(),
                text: "x".repeat(rank),
                finish_reason: FinishReason::Stop,
            };
            let reward = Reward {
                score: f64::INFINITY,
                value: 0.1 * rank as f64,
                parts: [("exact".to_owned(), 1.0 / 3.0)].into(),
                answer: None,
                status: RewardStatus::Ok,
                message: None,
            };
            (completion, reward)
        };
        let groups = group_lens.iter().map(|len| (0..*len).map(sample).collect());
        let cost = SamplingCost { num_preemptions: rank as u64, cache_bytes: 7 };
        OwnSamples { groups: groups.collect(), cost }
    }

    const GROUPS: [&[usize]; 3] = [&[2, 1], &[], &[4]];

    /// Returns the number of bytes of a rank's message.
    fn message_bytes(rank: usize) -> u64 {
        let lens = GROUPS[rank];
        let num_samples: usize = lens.iter().sum();
        let num_tokens: usize =
            lens.iter().map(|len| (0..*len).map(|sample| 1 + 10 * rank + sample).sum::<usize>()).sum();
        let num_names = usize::from(num_samples > 0);
        let num_text = rank * num_samples + 5 * num_names;
        let samples = num_bytes([lens.len(), num_samples, num_tokens, num_names, num_samples, num_text]);
        (COST_BYTES + samples) as u64
    }

    #[test]
    fn ranks_exchange_their_samples_bit_by_bit_and_no_byte_more() {
        let results = on_ranks(3, |ranks| {
            let before = ranks.traffic();
            let gathered = all_gather(&ranks, Some(own_samples(ranks.rank(), GROUPS[ranks.rank()]))).unwrap();
            (gathered.unwrap(), ranks.traffic().since(before).sent)
        });
        let expected: Vec<OwnSamples> = (0..3).map(|rank| own_samples(rank, GROUPS[rank])).collect();
        assert!(results.iter().all(|(gathered, _)| *gathered == expected));
        // Each rank's length and message reach two others; nothing is padded to the longest.
        let needed: u64 = (0..3).map(|rank| 2 * (8 + message_bytes(rank))).sum();
        assert_eq!(results.iter().map(|(_, sent)| sent).sum::<u64>(), needed);
    }

    #[test]
    fn no_rank_has_samples_if_one_was_asked_to_stop() {
        let results =
            on_ranks(2, |ranks| all_gather(&ranks, ranks.is_leader().then(|| own_samples(0, &[1]))).unwrap());
        assert!(results.iter().all(Option::is_none));
    }

    #[test]
    fn a_message_that_is_no_samples_names_the_rank_that_sent_it() {
        let errors = on_ranks(2, |ranks| {
            let sent = if ranks.is_leader() { packed(&own_samples(0, &[1])).unwrap() } else { vec![0; 20] };
            let gathered = ranks.all_gather_bytes(&sent).unwrap();
            let of_rank = |rank: usize| unpacked(&gathered[rank]);
            (of_rank(0).unwrap(), of_rank(1).unwrap_err().to_string())
        });
        for (whole, error) in errors {
            assert_eq!(whole, Some(own_samples(0, &[1])));
            assert_eq!(error, "counts: expected 40 bytes, got 4");
        }
        let error = unpacked(&[0; 3]).unwrap_err();
        assert_eq!(error.to_string(), "cost of sampling: expected 16 bytes, got 3");
    }
}
