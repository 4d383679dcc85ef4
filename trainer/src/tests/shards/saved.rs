//! A checkpoint of any number of ranks can be resumed by any other number.

use std::collections::BTreeMap;
use std::path::Path;

use rlt_storage::checkpoint::{Checkpoint, CheckpointStore};
use serde_json::json;

use super::*;
use crate::run::checkpoint_writer::{CheckpointWriter, Settled, Wait};

/// Layout of ranks: their number, `dpShard` and `sp`.
pub(super) type Layout = (usize, usize, usize);

/// Trained parameters, ranks and offload of a case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub case: Case,
    pub layout: Layout,
    pub offload: OffloadSpec,
}

fn on_layout<T: Send>((size, _, sp): Layout, body: impl Fn(&Ranks) -> T + Sync) -> Vec<T> {
    match size {
        1 => vec![body(&Ranks::alone())],
        _ => on_ranks(size, |ranks| body(&ranks.with_sequence_parallel(sp).unwrap())),
    }
}

/// Returns unsharded weights, moments and step counts, by their names in a checkpoint; empty on ranks other
/// than the leader.
fn state_of(actor: &mut Actor) -> BTreeMap<String, Tensor> {
    let folder = tempfile::tempdir().unwrap();
    let state = actor.learner.train_state().tensors(folder.path()).unwrap();
    state.into_iter().map(|(name, tensor)| (name, tensor.detach().copy())).collect()
}

fn train_on(actor: &mut Actor, case: Case, steps: std::ops::Range<u64>) {
    steps.for_each(|step| drop(update(actor, &batch(), &plan(case, step)).unwrap()));
}

/// Makes two updates, saves a checkpoint in `dir`, and makes two more. Returns the state at the checkpoint
/// and at the end.
pub(super) fn save(Way { case, layout, offload }: Way, dir: &Path) -> [BTreeMap<String, Tensor>; 2] {
    let ended = on_layout(layout, |ranks| {
        let mut actor = offloaded_actor(case, ranks, layout.1, offload, dir);
        train_on(&mut actor, case, 0..2);
        let mut store = match ranks.is_leader() {
            true => CheckpointStore::open(dir, 1).unwrap(),
            false => CheckpointStore::follow(dir),
        };
        let mut writer = CheckpointWriter::prepare(ranks, &store).unwrap();
        assert!(writer.is_shared());
        let saved = state_of(&mut actor);
        writer
            .begin(
                ranks,
                &store,
                2,
                json!({}),
                Some(actor.learner.train_state().checkpoint_shards().unwrap()),
            )
            .unwrap();
        // Later changes of the weights must not reach the checkpoint.
        train_on(&mut actor, case, 2..4);
        let settled = writer.settle(ranks, &mut store, Wait::UntilWritten).unwrap();
        assert!(matches!(settled, Settled::Committed));
        [saved, state_of(&mut actor)]
    });
    ended.into_iter().next().unwrap()
}

/// Resumes from a checkpoint and makes two more updates. Returns the restored state and the state at the end.
pub(super) fn go_on(Way { case, layout, offload }: Way, path: &Path) -> [BTreeMap<String, Tensor>; 2] {
    let folder = tempfile::tempdir().unwrap();
    let ended = on_layout(layout, |ranks| {
        let mut actor = offloaded_actor(case, ranks, layout.1, offload, folder.path());
        actor.learner.train_state().restore(&Checkpoint::open(path).unwrap()).unwrap();
        let restored = state_of(&mut actor);
        train_on(&mut actor, case, 2..4);
        [restored, state_of(&mut actor)]
    });
    ended.into_iter().next().unwrap()
}

#[test]
fn any_number_of_ranks_resumes_from_a_checkpoint_of_any_number() {
    let tied = Case { tied: true, ..FULL };
    let adapter = Case { lora: true, ..FULL };
    let four: &[Layout] = &[(1, 1, 1), (2, 2, 1), (3, 3, 1), (8, 4, 2)];
    for (case, layout, heirs) in [
        (FULL, (4, 4, 1), four),
        (FULL, (1, 1, 1), &[(4, 2, 1)]),
        (tied, (4, 2, 2), &[(3, 1, 1), (8, 8, 1)]),
        (tied, (3, 1, 1), &[(2, 2, 1)]),
        (adapter, (4, 2, 1), &[(1, 1, 1), (3, 3, 1)]),
        (Case { saves: true, ..adapter }, (2, 2, 1), &[(1, 1, 1), (3, 3, 1)]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let way = |layout| Way { case, layout, offload: NONE };
        let [saved, ended] = save(way(layout), dir.path());
        let path = dir.path().join("step-000002");
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.manifest().files.len(), layout.0 + 1, "a file of each rank, and the state");
        let names = || checkpoint.manifest().tensors.keys();
        assert!(names().eq(saved.keys()), "{:?}", names().collect::<Vec<_>>());
        for (name, tensor) in &saved {
            assert!(checkpoint.tensor(name).unwrap().equal(tensor), "{name} of {layout:?}");
        }
        for heir in heirs {
            let [restored, went_on] = go_on(way(*heir), &path);
            assert_eq!(restored, saved, "{heir:?} from {layout:?}");
            assert!(went_on.keys().eq(ended.keys()));
            let difference = largest_difference(&numbers(ended.values()), &numbers(went_on.values()));
            // Two updates from the same bits differ only by the order of sums over ranks.
            assert!(difference < 1e-6, "{case:?}: {heir:?} from {layout:?} differ by {difference}");
        }
    }
}
