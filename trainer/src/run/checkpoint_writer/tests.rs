//! Ranks, each a thread, save together and agree on the result after any failure of one of them.

use std::path::Path;
use std::sync::mpsc::channel;

use rlt_storage::checkpoint::split_between_copies;
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::*;
use crate::tests::on_ranks;

const SIZE: usize = 3;

fn store(ranks: &Ranks, dir: &Path) -> CheckpointStore {
    if ranks.is_leader() { CheckpointStore::open(dir, 5).unwrap() } else { CheckpointStore::follow(dir) }
}

fn weight(step: u64) -> Tensor {
    Tensor::arange(70_000, (Kind::Float, Device::Cpu)).view([7, 10_000]) + step as f64
}

fn parts(ranks: &Ranks, step: u64) -> Vec<CheckpointShard> {
    let whole = CheckpointShard::full("weight".into(), weight(step));
    split_between_copies(vec![whole], ranks.rank(), ranks.size())
}

fn save(
    ranks: &Ranks,
    writer: &mut CheckpointWriter,
    store: &mut CheckpointStore,
    step: u64,
) -> Result<(), String> {
    let begun = writer.begin(ranks, store, step, json!({ "step": step }), Some(parts(ranks, step)));
    begun.and_then(|()| writer.settle(ranks, store, Wait::UntilWritten).map(drop)).map_err(|e| e.to_string())
}

/// Returns the newest complete checkpoint, after a check of its content, and the other files of the folder.
fn newest(dir: &Path) -> (u64, Vec<String>) {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let others = entries.map(|name| name.into_string().unwrap()).filter(|name| name.starts_with('.'));
    let others = others.collect();
    let latest = CheckpointStore::open(dir, 5).unwrap().latest_complete().unwrap();
    assert!(latest.skipped.is_empty(), "{:?}", latest.skipped);
    let checkpoint = latest.checkpoint.unwrap();
    assert!(checkpoint.tensor("weight").unwrap().equal(&weight(checkpoint.step())));
    assert_eq!(checkpoint.state()["step"], checkpoint.step());
    (checkpoint.step(), others)
}

#[test]
fn a_rank_that_cannot_write_costs_that_checkpoint_on_all_ranks_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let said = on_ranks(SIZE, |ranks| {
        let mut store = store(&ranks, dir.path());
        let mut writer = CheckpointWriter::prepare(&ranks, &store).unwrap();
        save(&ranks, &mut writer, &mut store, 1).unwrap();
        let mut twice = parts(&ranks, 2);
        if ranks.rank() == 1 {
            twice.extend(parts(&ranks, 2));
        }
        let failed = writer.begin(&ranks, &store, 2, json!({}), Some(twice)).unwrap_err();
        assert!(writer.step().is_none());
        save(&ranks, &mut writer, &mut store, 3).unwrap();
        error_chain(&failed)
    });
    assert!(said[1].ends_with("tensor weight occurs twice in one checkpoint"), "{said:?}");
    for rank in [0, 2] {
        assert!(said[rank].contains("rank 1 could not save its part of the checkpoint: tensor"), "{said:?}");
    }
    assert_eq!(newest(dir.path()), (3, vec![]));
}

/// The file of rank 1 is truncated while it is completed.
#[test]
fn a_file_that_differs_from_what_was_written_is_never_committed() {
    let dir = tempfile::tempdir().unwrap();
    let said = on_ranks(SIZE, |ranks| {
        let mut store = store(&ranks, dir.path());
        let mut writer = CheckpointWriter::prepare(&ranks, &store).unwrap();
        save(&ranks, &mut writer, &mut store, 1).unwrap();
        agree(&ranks, if ranks.is_leader() { store.begin(2) } else { Ok(()) }).unwrap();
        let shard = store.write(2, ranks.rank(), parts(&ranks, 2)).unwrap();
        if ranks.rank() == 1 {
            let path = dir.path().join(".saving-step-000002/shard-00001.safetensors");
            std::fs::File::options().write(true).open(path).unwrap().set_len(1000).unwrap();
        }
        let shard = Some(complete_on_thread(shard).unwrap());
        writer.in_flight = Some(SaveInFlight { step: 2, state: json!({ "step": 2 }), shard });
        error_chain(&writer.settle(&ranks, &mut store, Wait::UntilWritten).unwrap_err())
    });
    assert!(said.iter().all(|said| said.contains("shard-00001.safetensors is truncated")), "{said:?}");
    assert_eq!(newest(dir.path()), (1, vec![]));
}

#[test]
fn training_continues_while_a_rank_saves_and_the_commit_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    on_ranks(SIZE, |ranks| {
        let mut store = store(&ranks, dir.path());
        let mut writer = CheckpointWriter::prepare(&ranks, &store).unwrap();
        agree(&ranks, if ranks.is_leader() { store.begin(1) } else { Ok(()) }).unwrap();
        let shard = store.write(1, ranks.rank(), parts(&ranks, 1)).unwrap();
        let (go, wait) = channel::<()>();
        let is_slow = ranks.rank() == 2;
        let slow = std::thread::spawn(move || {
            wait.recv().unwrap();
            shard.complete()
        });
        writer.in_flight = Some(SaveInFlight { step: 1, state: json!({ "step": 1 }), shard: Some(slow) });
        if !is_slow {
            go.send(()).unwrap();
        }
        for _ in 0..3 {
            let settled = writer.settle(&ranks, &mut store, Wait::None).unwrap();
            assert!(matches!(settled, Settled::Later) && writer.step() == Some(1));
            assert!(!dir.path().join("step-000001").exists());
        }
        if is_slow {
            go.send(()).unwrap();
        }
        let settled = writer.settle(&ranks, &mut store, Wait::UntilWritten).unwrap();
        assert!(matches!(settled, Settled::Committed));
        assert!(matches!(writer.settle(&ranks, &mut store, Wait::UntilWritten).unwrap(), Settled::Nothing));
    });
    assert_eq!(newest(dir.path()), (1, vec![]));
}

#[test]
fn changes_after_the_start_of_a_save_are_not_in_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (ranks, mut store) = (Ranks::alone(), store(&Ranks::alone(), dir.path()));
    let mut writer = CheckpointWriter::prepare(&ranks, &store).unwrap();
    let values = weight(4);
    let part = CheckpointShard::full("weight".into(), values.shallow_clone());
    writer.begin(&ranks, &store, 4, json!({ "step": 4 }), Some(vec![part])).unwrap();
    let _ = values.shallow_clone().fill_(0.0);
    assert!(!dir.path().join("step-000004").exists());
    writer.settle(&ranks, &mut store, Wait::UntilWritten).unwrap();
    assert_eq!(newest(dir.path()), (4, vec![]));
}

#[test]
fn ranks_without_access_to_the_leader_s_folder_send_it_their_tensors() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let shared = on_ranks(SIZE, |ranks| {
        let dir = if ranks.rank() == 2 { elsewhere.path() } else { dir.path() };
        let mut store = store(&ranks, dir);
        let mut writer = CheckpointWriter::prepare(&ranks, &store).unwrap();
        let all = vec![CheckpointShard::full("weight".into(), weight(1))];
        let parts = ranks.is_leader().then_some(all);
        writer.begin(&ranks, &store, 1, json!({ "step": 1 }), parts).unwrap();
        writer.settle(&ranks, &mut store, Wait::UntilWritten).unwrap();
        writer.is_shared()
    });
    assert_eq!(shared, [false; SIZE]);
    assert_eq!(newest(dir.path()), (1, vec![]));
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}
