//! The ranks of each kind of pass.

use rlt_api::resolved::ResolvedSpec;
use rlt_parallel::{RankError, Ranks};

/// Ranks with the same tensor-parallel index as this one, with the sequence-parallel groups of each kind of
/// pass. They are listed by pass, because each kind of pass may have a degree of its own.
pub(super) struct PassRanks {
    /// Ranks in updates of the actor.
    pub(super) updates: Ranks,
    /// Ranks in passes for the actor's log-probs.
    pub(super) logprobs: Ranks,
    /// Ranks in passes of the reference.
    pub(super) reference: Ranks,
    /// Ranks in passes and updates of the critic.
    pub(super) critic: Ranks,
}

impl PassRanks {
    pub(super) fn of(spec: &ResolvedSpec, ranks: Ranks) -> Result<Self, RankError> {
        let mesh = &spec.workers.mesh;
        let ranks = ranks.with_tensor_parallel(mesh.tp as usize)?.with_expert_parallel(mesh.ep as usize);
        // One group of ranks for each degree, however many passes have it.
        let mut groups: Vec<(u32, Ranks)> = Vec::new();
        let mut sharing_by = |sp: u32| -> Result<Ranks, RankError> {
            if let Some((_, known)) = groups.iter().find(|(degree, _)| *degree == sp) {
                return Ok(known.clone());
            }
            let sharing = ranks.clone().with_sequence_parallel(sp as usize)?;
            groups.push((sp, sharing.clone()));
            Ok(sharing)
        };
        Ok(Self {
            updates: sharing_by(mesh.sp)?,
            logprobs: sharing_by(mesh.sp_of_logprobs())?,
            reference: sharing_by(mesh.sp_of_reference())?,
            critic: sharing_by(mesh.sp_of_critic())?,
        })
    }

    /// Returns the ranks for each distinct sequence-parallel degree, with the field that sets the degree.
    pub(super) fn of_different_degrees(&self) -> impl Iterator<Item = (&Ranks, &'static str)> {
        let all = [
            (&self.updates, "spec.workers.mesh.sp"),
            (&self.logprobs, "spec.workers.mesh.logprobSp"),
            (&self.reference, "spec.workers.mesh.referenceSp"),
            (&self.critic, "spec.workers.mesh.criticSp"),
        ];
        let degree = |(ranks, _): &(&Ranks, &str)| ranks.sp_place().size;
        let is_first = move |at: usize| all[..at].iter().all(|before| degree(before) != degree(&all[at]));
        all.into_iter().enumerate().filter_map(move |(at, one)| is_first(at).then_some(one))
    }
}
