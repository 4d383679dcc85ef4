//! Checkpoints that several processes write together: complete with all of their files, refused with any of
//! them missing or damaged.

use std::fs;
use std::path::{Path, PathBuf};

use rlt_layout::{LocalTensor, TensorRun, TensorSlice};
use safetensors::SafeTensors;
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::*;

const NUM_WRITERS: usize = 3;

fn numbers(shape: &[i64], step: u64) -> Tensor {
    let len = shape.iter().product::<i64>();
    (Tensor::arange(len, (Kind::Float, Device::Cpu)) + step as f64).view(shape)
}

/// Tensors that all writers hold, large and small, and one of which each holds a piece that begins and ends
/// within rows.
fn tensors(step: u64) -> Vec<(String, Tensor)> {
    let shapes: [(&str, &[i64]); 4] =
        [("large", &[70, 501]), ("cube", &[9, 70, 40]), ("norm", &[13]), ("pieces", &[7, 10])];
    let all = shapes.map(|(name, shape)| (name.to_owned(), numbers(shape, step)));
    all.into_iter().chain([("count".to_owned(), Tensor::from(step as i64))]).collect()
}

fn parts(writer_idx: usize, step: u64) -> Vec<CheckpointShard> {
    let (pieces, alike): (Vec<_>, Vec<_>) = tensors(step).into_iter().partition(|(name, _)| name == "pieces");
    let alike = alike.into_iter().map(|(name, tensor)| CheckpointShard::full(name, tensor)).collect();
    let mut parts = split_between_copies(alike, writer_idx, NUM_WRITERS);
    let range = [0..23, 23..47, 47..70][writer_idx].clone();
    let values = pieces[0].1.view(-1).narrow(0, range.start as i64, range.len() as i64);
    let local = LocalTensor::full(&[7, 10]);
    parts.push(CheckpointShard::of(&TensorSlice { name: "pieces", local: &local, range }, &values));
    parts
}

fn write(store: &CheckpointStore, writer_idx: usize, step: u64) -> WrittenShard {
    store.write(step, writer_idx, parts(writer_idx, step)).unwrap().complete().unwrap()
}

fn save(dir: &Path, step: u64) -> PathBuf {
    let mut store = CheckpointStore::open(dir, 3).unwrap();
    store.begin(step).unwrap();
    // Shards are serialized, as processes exchange them, and committed in any order.
    let shards = (0..NUM_WRITERS).rev().map(|writer_idx| {
        let shard = serde_json::to_vec(&write(&CheckpointStore::follow(dir), writer_idx, step)).unwrap();
        serde_json::from_slice(&shard).unwrap()
    });
    let shards = shards.collect();
    store.commit(step, shards, &json!({ "step": step })).unwrap().path
}

fn shard(folder: &Path, writer_idx: usize) -> PathBuf {
    folder.join(format!("shard-{writer_idx:05}.safetensors"))
}

#[test]
fn a_checkpoint_of_many_writers_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let folder = save(dir.path(), 5);
    let checkpoint = Checkpoint::open(&folder).unwrap();
    assert_eq!(checkpoint.manifest().tensors.len(), tensors(5).len());
    for (name, tensor) in tensors(5) {
        assert!(checkpoint.tensor(&name).unwrap().equal(&tensor), "{name}");
        let (shape, len) = (tensor.size(), tensor.numel());
        for range in [0..len, len / 3..len, len / 5..len - len / 7] {
            let (start, num) = (range.start as i64, range.len() as i64);
            let values = Tensor::zeros([num], (tensor.kind(), Device::Cpu));
            checkpoint.fill(&TensorRun { name: &name, shape: &shape, range }, &values).unwrap();
            assert!(values.equal(&tensor.contiguous().view(-1).narrow(0, start, num)), "{name} from {start}");
        }
    }
    let sizes = (0..NUM_WRITERS).map(|idx| fs::metadata(shard(&folder, idx)).unwrap().len());
    let (least, most) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
    assert!(most - least < 1024, "every rank writes as much as any other: {least} to {most}");
    // Any reader of safetensors finds the values of a piece under its tensor's name.
    let bytes = fs::read(shard(&folder, 1)).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("pieces").unwrap().shape(), [24]);
}

#[test]
fn a_rank_reads_only_the_files_that_contain_its_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let folder = save(dir.path(), 5);
    let digest = Checkpoint::open(&folder).unwrap().manifest().sha256.clone();
    fs::remove_file(shard(&folder, 2)).unwrap();
    let checkpoint = Checkpoint::open_verified(&folder, &digest).unwrap();
    // Whole rows are read. These four end before those of the third file begin.
    let values = Tensor::zeros([35], (Kind::Float, Device::Cpu));
    let of_two = |range| TensorRun { name: "pieces", shape: &[7, 10], range };
    checkpoint.fill(&of_two(5..40), &values).unwrap();
    assert!(values.equal(&numbers(&[7, 10], 5).view(-1).narrow(0, 5, 35)));
    let missing = checkpoint.fill(&of_two(20..55), &values).unwrap_err().to_string();
    assert!(missing.contains("shard-00002.safetensors"), "{missing}");
    let other = Checkpoint::open_verified(&folder, "0").unwrap_err();
    assert!(matches!(other, CheckpointError::Digest { .. }), "{other}");
}

#[test]
fn a_checkpoint_that_lacks_a_rank_s_shard_is_never_committed() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 5);
    for missing in 0..NUM_WRITERS {
        let mut store = CheckpointStore::open(dir.path(), 3).unwrap();
        store.begin(6).unwrap();
        let others = (0..NUM_WRITERS).filter(|idx| *idx != missing);
        let shards = others.map(|writer_idx| write(&store, writer_idx, 6)).collect();
        let error = store.commit(6, shards, &json!({})).unwrap_err();
        assert!(error.to_string().contains("pieces do not fill shape"), "{error}");
        let names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["step-000005"]);
    }
}

#[test]
fn a_rank_that_was_killed_while_it_wrote_leaves_the_checkpoint_before() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 5);
    for num_written in 0..=NUM_WRITERS {
        let store = CheckpointStore::open(dir.path(), 3).unwrap();
        store.begin(6).unwrap();
        (0..num_written).for_each(|writer_idx| drop(write(&store, writer_idx, 6)));
        // All processes end before the leader has committed; the next one finds the last complete checkpoint.
        drop(store);
        let latest = CheckpointStore::open(dir.path(), 3).unwrap().latest_complete().unwrap();
        assert!(latest.skipped.is_empty());
        assert_eq!(latest.checkpoint.unwrap().step(), 5);
    }
}

#[test]
fn a_file_of_any_rank_that_is_missing_cut_off_or_changed_is_named_and_the_checkpoint_before_used() {
    let damages: [fn(&Path); 3] = [
        |path| fs::remove_file(path).unwrap(),
        |path| {
            let len = fs::metadata(path).unwrap().len();
            fs::File::options().write(true).open(path).unwrap().set_len(len - 1).unwrap();
        },
        |path| {
            let mut bytes = fs::read(path).unwrap();
            *bytes.last_mut().unwrap() ^= 4;
            fs::write(path, bytes).unwrap();
        },
    ];
    for writer_idx in 0..NUM_WRITERS {
        for damage in damages {
            let dir = tempfile::tempdir().unwrap();
            save(dir.path(), 5);
            let path = shard(&save(dir.path(), 6), writer_idx);
            damage(&path);
            let latest = CheckpointStore::open(dir.path(), 3).unwrap().latest_complete().unwrap();
            assert_eq!(latest.checkpoint.unwrap().step(), 5);
            let message = latest.skipped[0].to_string();
            assert!(message.contains(path.to_str().unwrap()), "{message}");
        }
    }
}

#[test]
fn ranks_that_disagree_on_a_tensor_do_not_make_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = CheckpointStore::open(dir.path(), 3).unwrap();
    store.begin(1).unwrap();
    let of_shape = |shape: &[i64]| vec![CheckpointShard::full("weight".into(), numbers(shape, 1))];
    let shards = [&[2, 3][..], &[3, 2]].into_iter().enumerate();
    let shards = shards.map(|(idx, shape)| store.write(1, idx, of_shape(shape)).unwrap().complete().unwrap());
    let shards = shards.collect();
    let error = store.commit(1, shards, &json!({})).unwrap_err().to_string();
    assert!(error.contains("tensor weight is") && error.contains("[3, 2]"), "{error}");
}
