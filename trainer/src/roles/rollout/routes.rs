//! Exchange of the rollout's routes between ranks, because any rank may train on a completion.
//!
//! ```text
//! u64 key of the completion | u64 number of digests | u16 digests      for each completion
//! ```

use std::rc::Rc;

use rlt_core::types::Completion;
use rlt_decoder::RoutesOfCompletion;
use rlt_engine::Request;
use rlt_parallel::{RankError, Ranks};

use crate::roles::step_context::completion_key;

/// Key of a completion, and the digests of its routes.
type Logged = (u64, Vec<u16>);

/// Returns the routes of the first completion of each request, if they were recorded.
pub(super) fn logged(
    requests: &[Request],
    completions: &[Vec<Completion>],
    routes: Vec<Vec<u16>>,
) -> Vec<Logged> {
    let logged = requests.iter().zip(completions).zip(routes).filter(|(_, digests)| !digests.is_empty());
    let keyed = |((request, completions), digests): ((&Request, &Vec<Completion>), Vec<u16>)| {
        Some((completion_key(&request.prompt, &completions.first()?.tokens), digests))
    };
    logged.filter_map(keyed).collect()
}

/// Gathers the routes of all ranks.
///
/// # Errors
/// [`RankError`] when a rank is lost.
pub(super) fn all_gather(
    ranks: &Ranks,
    own: Vec<Logged>,
) -> Result<Vec<(u64, RoutesOfCompletion)>, RankError> {
    let all = match ranks.size() {
        1 => own,
        _ => ranks.all_gather_bytes(&packed(&own))?.iter().flat_map(|bytes| unpacked(bytes)).collect(),
    };
    Ok(all.into_iter().map(|(key, digests)| (key, Rc::from(digests))).collect())
}

fn packed(logged: &[Logged]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, digests) in logged {
        bytes.extend([*key, digests.len() as u64].map(u64::to_le_bytes).concat());
        bytes.extend(digests.iter().flat_map(|digest| digest.to_le_bytes()));
    }
    bytes
}

fn unpacked(bytes: &[u8]) -> Vec<Logged> {
    let (mut rest, mut logged) = (bytes, Vec::new());
    while let Some((head, tail)) = rest.split_first_chunk::<16>() {
        let [key, len] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte])));
        let (digests, tail) = tail.split_at((2 * len as usize).min(tail.len()));
        logged.push((key, digests.as_chunks().0.iter().map(|digest| u16::from_le_bytes(*digest)).collect()));
        rest = tail;
    }
    logged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::on_ranks;

    #[test]
    fn every_rank_gets_the_routes_of_all() {
        let own = |rank: u64| -> Vec<Logged> {
            (0..rank).map(|place| (10 * rank + place, (0..place as u16 * 3).collect())).collect()
        };
        let expected: Vec<Logged> = (0..4).flat_map(own).collect();
        let of_ranks = on_ranks(4, |ranks| {
            let all = all_gather(&ranks, own(ranks.rank() as u64)).unwrap();
            all.into_iter().map(|(key, digests)| (key, digests.to_vec())).collect::<Vec<Logged>>()
        });
        assert!(of_ranks.iter().all(|all| *all == expected), "{of_ranks:?}");
    }
}
