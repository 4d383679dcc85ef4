//! The index keeps the newest state, whatever the order of changes.

use rlt_objects::worker::{JobKey, Worker, WorkerPhase};

use super::{Child, ChildEntry, Index};
use crate::decide::fixtures::worker;

fn key() -> JobKey {
    JobKey { uid: "u".into(), namespace: "default".into(), name: "job".into() }
}

fn version(version: u64, phase: WorkerPhase) -> Worker {
    Worker { resource_version: version, phase, ..worker(0, 1) }
}

fn config_map(digest: Option<&str>) -> ChildEntry {
    ChildEntry::written(Child::ConfigMap.into(), digest.map(str::to_owned))
}

#[test]
fn an_older_version_of_a_pod_does_not_replace_a_newer_one() {
    let index = Index::default();
    index.enter(&key(), version(9, WorkerPhase::Running));
    index.enter(&key(), version(8, WorkerPhase::Pending));
    assert_eq!(index.workers(&key())[0].phase, WorkerPhase::Running);
    index.enter(&key(), version(10, WorkerPhase::Failed));
    assert_eq!(index.workers(&key())[0].phase, WorkerPhase::Failed);
}

#[test]
fn a_deleted_pod_is_not_entered_again_by_the_response_to_its_creation() {
    let index = Index::default();
    let gone = worker(0, 1);
    index.remove(&key(), &gone);
    index.enter(&key(), gone);
    assert!(index.workers(&key()).is_empty());
    assert!(index.jobs().is_empty(), "a job without objects takes no memory");
}

#[test]
fn the_end_of_a_pod_does_not_remove_its_successor_of_the_same_name() {
    let index = Index::default();
    let (old, new) = (worker(0, 1), worker(0, 2));
    index.enter(&key(), new.clone());
    index.remove(&key(), &old);
    assert_eq!(index.workers(&key())[0].uid, new.uid);
}

#[test]
fn a_new_list_removes_missing_objects_of_its_namespace_only() {
    let index = Index::default();
    let elsewhere = JobKey { uid: "v".into(), namespace: "other".into(), name: "job".into() };
    index.enter(&key(), worker(0, 1));
    index.enter(&elsewhere, worker(0, 1));
    index.enter(&key(), config_map(None));
    index.replace::<Worker>(Some("default"), (), Vec::new());
    assert!(index.workers(&key()).is_empty());
    assert_eq!(index.workers(&elsewhere).len(), 1);
    assert!(index.children(&key()).contains_key(&Child::ConfigMap.into()));
    index.replace::<ChildEntry>(None, Child::ConfigMap, Vec::new());
    assert_eq!(index.jobs(), [elsewhere]);
}

#[test]
fn a_child_is_being_deleted_until_it_is_gone_whatever_the_operator_writes_meanwhile() {
    let index = Index::default();
    let present = ChildEntry::written(Child::Claim.into(), Some("digest".into()));
    let deleted = ChildEntry { is_deleting: true, ..present.clone() };
    let is_deleting = || index.is_deleting(&key(), Child::Claim);
    index.enter(&key(), present.clone());
    assert!(!is_deleting());
    index.enter(&key(), deleted.clone());
    index.enter(&key(), present.clone());
    assert!(is_deleting(), "the answer to a write is older than the deletion");
    index.remove(&key(), &deleted);
    assert!(!is_deleting() && index.jobs().is_empty());
    index.enter(&key(), deleted);
    index.replace(None, Child::Claim, vec![(key(), present)]);
    assert!(!is_deleting(), "another claim of that name was listed");
}

#[test]
fn pods_that_were_created_while_a_list_was_read_outlast_it() {
    let index = Index::default();
    let pod = |idx, resource_version| Worker { resource_version, ..worker(idx, 1) };
    index.enter(&key(), pod(0, 4));
    index.begin_list(Some("default"));
    index.enter(&key(), pod(1, 9));
    index.enter(&key(), pod(2, 5));
    index.replace::<ChildEntry>(Some("default"), Child::ConfigMap, Vec::new());
    index.replace(Some("default"), (), vec![(key(), pod(3, 7))]);
    let idxs = || index.workers(&key()).iter().map(|pod| pod.idx).collect::<Vec<_>>();
    assert_eq!(idxs(), [1, 3], "0 was there before the list, and 2 is older than what the list has");
    index.replace::<Worker>(Some("default"), (), Vec::new());
    assert!(idxs().is_empty(), "a later list is not that one");
}

#[test]
fn objects_that_name_a_jobs_uid_in_another_namespace_or_under_another_name_are_none_of_its() {
    let index = Index::default();
    let foreign = JobKey { namespace: "other".into(), ..key() };
    let misnamed = JobKey { name: "another".into(), ..key() };
    for stranger in [&foreign, &misnamed] {
        index.enter(stranger, version(9, WorkerPhase::Failed));
        index.enter(stranger, config_map(Some("digest")));
    }
    assert!(index.workers(&key()).is_empty() && index.children(&key()).is_empty());
    index.enter(&key(), version(3, WorkerPhase::Running));
    index.remove(&foreign, &Worker { uid: "another pod".into(), ..worker(0, 1) });
    index.replace::<Worker>(Some("other"), (), Vec::new());
    assert_eq!(index.workers(&key())[0].phase, WorkerPhase::Running);
}
