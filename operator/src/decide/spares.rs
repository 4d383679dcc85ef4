//! Hot spares: idle pods that take over the ranks of a lost worker. The other workers restart their processes
//! in their pods, so that the next attempt needs no new pod.
//!
//! ```text
//! attempt failed -> every lost worker has a spare? -> status: attempt in place, promoted spares
//!                -> pods get their group, index and attempt as labels -> launchers ask what to run
//! ```
//! The assignment of ranks to pods is in the status before any pod is changed. A spare takes the ranks of a
//! worker only once no process of that worker can run. An attempt in place creates no worker's pod, so that
//! no partial gang waits. If a pod is lost before it has joined, the attempt fails, and the next attempt is
//! planned anew.
//!
//! All pods of an attempt run one image, because ranks of two releases refuse each other. After an upgrade of
//! the chart, new spares have another image than the workers, and do not take over their ranks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rlt_api::FailureCause;
use rlt_api::status::PromotedSpareStatus;
use rlt_objects::worker::{Worker, WorkerPhase};
use rlt_objects::worker_id::{GroupName, WorkerId};
use rlt_plan::{SPARE_GROUP, TRAINER_GROUP, WorkerGroup};

use super::failure::{self, Failure};
use super::job_pods::is_loaded;
use super::{Assignment, Deletion, JobState, Reconcile, claim, deletion};
use crate::nodes::NodeState;

/// Largest number of promoted spares in a status.
const MAX_PROMOTED: usize = 64;

/// Decides, when an attempt has failed, whether the next one continues in the existing pods.
pub(super) fn plan_attempt(reconcile: &mut Reconcile<'_>, failure: &Failure) {
    let promoted = promotions(reconcile, failure);
    reconcile.status.attempt_in_place = promoted.is_some();
    reconcile.status.promoted_spares = promoted.unwrap_or_default();
}

/// Makes the next attempt start with new pods.
pub(super) fn start_afresh(reconcile: &mut Reconcile<'_>) {
    reconcile.status.attempt_in_place = false;
    reconcile.status.promoted_spares.clear();
}

/// Returns the promoted spares of the next attempt; `None` if the attempt needs new pods.
fn promotions(reconcile: &Reconcile<'_>, failure: &Failure) -> Option<Vec<PromotedSpareStatus>> {
    group(reconcile)?;
    let places = reconcile.pods.places();
    let places: Vec<_> =
        places.map(|(id, place)| (id, place.filter(|worker| may_stay(reconcile, worker, failure)))).collect();
    let kept: Vec<_> = places.iter().filter_map(|(_, kept)| *kept).collect();
    if !have_one_image(&kept) {
        return None;
    }
    let mut free = with_image_of(kept.first().copied(), free_spares(reconcile)).into_iter();
    let mut promoted = Vec::new();
    for (id, kept) in places {
        let worker = match kept {
            Some(worker) if *worker.name == *own_name(reconcile, id.idx)? => continue,
            Some(promoted_before) => promoted_before,
            None => free.next()?,
        };
        promoted.push(PromotedSpareStatus { worker: id.idx, pod: worker.name.to_string() });
    }
    (promoted.len() <= MAX_PROMOTED).then_some(promoted)
}

/// Whether all of these pods run one image.
fn have_one_image(pods: &[&Worker]) -> bool {
    pods.first().is_none_or(|first| pods.iter().all(|pod| pod.image == first.image))
}

/// Returns the spares that run the image of a worker that stays, or of the first spare if none stays.
fn with_image_of<'a>(kept: Option<&'a Worker>, mut spares: Vec<&'a Worker>) -> Vec<&'a Worker> {
    let image = kept.or(spares.first().copied()).map(|pod| pod.image);
    spares.retain(|spare| Some(spare.image) == image);
    spares
}

/// Returns the name of the pod that is created for a worker.
fn own_name(reconcile: &Reconcile<'_>, idx: u32) -> Option<String> {
    reconcile.input.prepared.group(TRAINER_GROUP).map(|group| group.worker_name(idx))
}

/// Whether a worker's pod can run the next attempt: its launcher reports, its node is healthy, and its node
/// is not suspected of the failure.
fn may_stay(reconcile: &Reconcile<'_>, worker: &Worker, failure: &Failure) -> bool {
    let is_cause = failure.pod.as_deref() == Some(&*worker.name);
    is_usable(reconcile, worker) && !(is_cause && failure.cause.may_be_the_nodes())
}

fn is_usable(reconcile: &Reconcile<'_>, worker: &Worker) -> bool {
    is_well(reconcile, worker) && worker.launcher.is_some()
}

fn is_well(reconcile: &Reconcile<'_>, worker: &Worker) -> bool {
    let is_impaired = matches!(
        deletion::node_state(reconcile, worker),
        Some(NodeState::Lost | NodeState::Silent | NodeState::Impaired(_))
    );
    worker.phase == WorkerPhase::Running && !worker.is_deleting && !is_impaired
}

/// Returns how long the reaction to a failed attempt waits for launchers that have not reported to this
/// operator. Without their reports, their pods could not be used for the next attempt.
pub(super) fn reports_due(reconcile: &Reconcile<'_>) -> Option<Duration> {
    group(reconcile)?;
    let is_unheard = |worker: &Worker| is_well(reconcile, worker) && worker.launcher.is_none();
    let mut workers = reconcile.pods.present().chain(reconcile.pods.spares.iter().copied());
    reconcile.input.launchers_due.filter(|_| workers.any(is_unheard))
}

/// Returns the usable spares, those that have loaded everything first.
fn free_spares<'a>(reconcile: &Reconcile<'a>) -> Vec<&'a Worker> {
    let spares = reconcile.pods.spares.iter().copied();
    let mut free: Vec<_> = spares.filter(|spare| is_usable(reconcile, spare)).collect();
    free.sort_by_key(|spare| (!is_loaded(spare), spare.idx));
    free
}

/// Returns the pods that become workers of the attempt in this reconcile.
pub(super) fn assignments(reconcile: &Reconcile<'_>) -> Vec<Assignment> {
    let taken = candidates(reconcile).into_iter().filter_map(|(worker, candidate)| {
        let pod = candidate.filter(|pod| is_alive(pod) && is_free(reconcile, &worker, pod))?;
        let (name, uid) = (Arc::clone(&pod.name), Arc::clone(&pod.uid));
        Some(Assignment { name, uid, worker, attempt: reconcile.attempt() })
    });
    taken.collect()
}

/// Returns the failure of a worker of an attempt in place whose pod was lost before it joined.
pub(super) fn lost(reconcile: &Reconcile<'_>) -> Option<Failure> {
    let candidates = candidates(reconcile).into_iter();
    candidates.filter(|(_, pod)| !pod.is_some_and(is_alive)).map(|(id, pod)| of_lost(&id, pod)).next()
}

fn of_lost(id: &WorkerId, pod: Option<&Worker>) -> Failure {
    match pod {
        Some(pod) if pod.is_finished() => failure::classify_exit(pod),
        Some(pod) => {
            Failure::of_worker(FailureCause::Disrupted, "the pod was deleted before it took part".into(), pod)
        }
        None => {
            let message = format!("the pod of worker {} was gone before it took part", id.idx);
            Failure::of_job(FailureCause::Disrupted, message)
        }
    }
}

fn is_alive(pod: &Worker) -> bool {
    !pod.is_deleting && !pod.is_finished()
}

/// Returns the workers of an attempt in place that have no pod yet, each with the existing pod that it will
/// get, if that is still there.
fn candidates<'a>(reconcile: &Reconcile<'a>) -> Vec<(WorkerId, Option<&'a Worker>)> {
    if !reconcile.status.attempt_in_place {
        return Vec::new();
    }
    let open = reconcile.pods.places().filter(|(_, place)| place.is_none());
    open.map(|(id, _)| {
        let name = promoted(reconcile, id.idx).map(str::to_owned).or_else(|| own_name(reconcile, id.idx));
        let pod = reconcile.pods.all().find(|pod| name.as_deref() == Some(&*pod.name));
        (id, pod)
    })
    .collect()
}

/// Returns the name of the promoted spare that runs a worker.
fn promoted<'a>(reconcile: &'a Reconcile<'_>, idx: u32) -> Option<&'a str> {
    let promoted = reconcile.status.promoted_spares.iter();
    promoted.filter(|one| one.worker == idx).map(|one| one.pod.as_str()).next()
}

/// Whether no other pod can still run a process of this worker.
fn is_free(reconcile: &Reconcile<'_>, id: &WorkerId, pod: &Worker) -> bool {
    let others = reconcile.pods.previous.iter().filter(|other| other.id() == *id && other.uid != pod.uid);
    others.into_iter().all(|other| other.has_no_process())
}

/// Returns the pods of earlier attempts that are not used in this one, for deletion.
pub(super) fn surplus_of_earlier<'a>(reconcile: &Reconcile<'a>) -> Vec<&'a Worker> {
    let stays: BTreeSet<_> = candidates(reconcile)
        .into_iter()
        .filter_map(|(_, pod)| pod)
        .map(|pod| Arc::clone(&pod.uid))
        .collect();
    let previous = reconcile.pods.previous.iter().copied();
    previous.filter(|worker| !stays.contains(&worker.uid)).collect()
}

/// Returns the spares to delete: those that ended, those beyond the number that the job requests, those with
/// an older image than the workers, those that keep a claim for which workers wait, and, while workers wait
/// for nodes, those without a node, so that no spare gets a node that a worker needs.
pub(super) fn deletions(reconcile: &Reconcile<'_>, state: &JobState) -> Vec<Deletion> {
    let has_room = *state == JobState::Running;
    let num_wanted = group(reconcile).map_or(0, |group| group.num_workers as usize);
    let (ended, mut waiting): (Vec<_>, Vec<_>) =
        unpromoted(reconcile).into_iter().partition(|spare| spare.is_finished() || spare.is_deleting);
    waiting.sort_by_key(|spare| (spare.node.is_none(), spare.idx));
    let beyond = waiting.iter().enumerate().filter(|(place, spare)| {
        let needs_node = spare.phase == WorkerPhase::Pending && spare.node.is_none();
        let is_unfit = if has_room { is_outdated(reconcile, spare) } else { needs_node };
        *place >= num_wanted || is_unfit || claim::must_release(reconcile, spare)
    });
    let beyond = beyond.map(|(_, spare)| *spare);
    deletion::deletions(reconcile, ended.iter().copied().chain(beyond), None)
}

/// Whether a spare is older than the workers and runs another image, so that it cannot take over their ranks.
fn is_outdated(reconcile: &Reconcile<'_>, spare: &Worker) -> bool {
    let is_older = !reconcile.status.attempt_in_place && spare.attempt < reconcile.attempt();
    let is_trainer = |worker: &&Worker| worker.group == GroupName::default();
    let mut workers = reconcile.pods.present().filter(is_trainer);
    is_older && workers.any(|worker| worker.image != spare.image)
}

/// Returns the spares to create, once all workers run. A name is free if neither a pod nor a promoted spare
/// has it.
pub(super) fn missing(reconcile: &Reconcile<'_>, state: &JobState) -> Vec<WorkerId> {
    let Some(group) = group(reconcile).filter(|_| *state == JobState::Running) else { return Vec::new() };
    let is_taken = |idx: &u32| {
        let name = group.worker_name(*idx);
        let is_promoted = reconcile.status.promoted_spares.iter().any(|one| one.pod == name);
        is_promoted || reconcile.pods.all().any(|pod| *pod.name == *name)
    };
    let num_waiting = unpromoted(reconcile).into_iter().filter(|spare| is_alive(spare)).count();
    let num_missing = (group.num_workers as usize).saturating_sub(num_waiting);
    let free = (0..u32::MAX).filter(|idx| !is_taken(idx)).take(num_missing);
    free.map(|idx| WorkerId { group: SPARE_GROUP.into(), idx }).collect()
}

/// Returns the spares that have not been assigned ranks.
fn unpromoted<'a>(reconcile: &Reconcile<'a>) -> Vec<&'a Worker> {
    let is_promoted =
        |spare: &Worker| reconcile.status.promoted_spares.iter().any(|one| *one.pod == *spare.name);
    reconcile.pods.spares.iter().copied().filter(|spare| !is_promoted(spare)).collect()
}

fn group<'a>(reconcile: &Reconcile<'a>) -> Option<&'a WorkerGroup> {
    reconcile.input.prepared.group(SPARE_GROUP)
}
