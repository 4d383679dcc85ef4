//! Plan of the faults of a chaos run: which fault happens when, as a pure function of a duration and a seed.

use std::time::Duration;

/// Number of worker pods.
pub(crate) const NUM_WORKERS: usize = 2;
/// Number of ranks in each worker pod.
pub(crate) const RANKS_PER_WORKER: usize = 2;
/// Length of a round, in which every kind of fault happens once.
pub(crate) const ROUND: Duration = Duration::from_secs(120);
/// Number of faults in a round.
pub(crate) const FAULTS_PER_ROUND: usize = 12;

/// A fault, or the end of a lasting one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process of a rank is killed; ranks are counted over all workers.
    KillRank(usize),
    /// The launcher of a worker is killed, and with it all ranks of the pod.
    KillPod(usize),
    /// The leading operator is killed.
    KillOperator,
    /// The ConfigMap of the job is deleted.
    DeleteConfigMap,
    /// The Secret of the status channel is deleted.
    DeleteSecret,
    /// The claim of the job is deleted. It goes when the pods that use it have ended.
    DeleteClaim,
    /// The operator's role in the namespace of the job is deleted, with its binding.
    DeleteRoles,
    /// The role and its binding are created again.
    RestoreRoles,
    /// The API server is killed and started again.
    RestartApiServer,
    /// The disk of the job is full until the status tells it.
    FillDisk,
    /// The chart is upgraded to settings that refuse the job.
    TightenChart,
    /// The chart is upgraded to settings that allow the job.
    RelaxChart,
}

/// A fault with its time from the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) fault: Fault,
}

/// Returns the plan of full rounds within `duration`, of one round at least. Each round ends with the roles
/// and the settings that it began with.
pub(crate) fn plan(duration: Duration, seed: u64) -> Vec<Step> {
    let mut random = Random(seed);
    let num_rounds = u32::try_from(duration.as_secs() / ROUND.as_secs()).unwrap_or(u32::MAX).max(1);
    let mut steps = Vec::new();
    for round in 0..num_rounds {
        let faults = faults_of_round(&mut random);
        let slot = ROUND / FAULTS_PER_ROUND as u32;
        for (idx, fault) in faults.into_iter().enumerate() {
            let begin = ROUND * round + slot * idx as u32;
            let delay = slot.mul_f64(random.below(50) as f64 / 100.0);
            steps.push(Step { at: begin + delay, fault });
        }
    }
    steps
}

/// Returns every kind of fault once, in random order. One fault happens while the operator has no roles. That
/// is neither an upgrade, which waits for operators to be ready, nor a full disk, which waits for a status.
fn faults_of_round(random: &mut Random) -> Vec<Fault> {
    let mut faults = vec![
        Fault::KillRank(random.below(NUM_WORKERS * RANKS_PER_WORKER)),
        Fault::KillPod(random.below(NUM_WORKERS)),
        Fault::KillOperator,
        Fault::DeleteConfigMap,
        Fault::DeleteSecret,
        Fault::DeleteClaim,
        Fault::RestartApiServer,
    ];
    for idx in (1..faults.len()).rev() {
        faults.swap(idx, random.below(idx + 1));
    }
    let without_roles = random.below(faults.len());
    faults.insert(without_roles + 1, Fault::RestoreRoles);
    faults.insert(without_roles, Fault::DeleteRoles);
    let end = faults.len();
    insert_with_roles(&mut faults, Fault::FillDisk, end, random);
    let end = faults.len();
    let relaxed = insert_with_roles(&mut faults, Fault::RelaxChart, end, random);
    insert_with_roles(&mut faults, Fault::TightenChart, relaxed, random);
    faults
}

/// Inserts a fault at a random index up to `last` at which the operator has its roles; returns the index.
fn insert_with_roles(faults: &mut Vec<Fault>, fault: Fault, last: usize, random: &mut Random) -> usize {
    let index_of = |wanted: Fault| faults.iter().position(|fault| *fault == wanted).unwrap_or(0);
    let (deleted, restored) = (index_of(Fault::DeleteRoles), index_of(Fault::RestoreRoles));
    let has_roles = |idx: usize| idx <= deleted || idx > restored;
    // The first index always has them.
    let idx = std::iter::repeat_with(|| random.below(last + 1)).find(|idx| has_roles(*idx)).unwrap_or(0);
    faults.insert(idx, fault);
    idx
}

/// Random numbers by SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    /// Returns a number below `bound`, which is small.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^= bits >> 31;
        (bits % bound as u64) as usize
    }
}
