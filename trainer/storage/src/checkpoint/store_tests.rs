//! Proves that a saved checkpoint is loaded, and that a damaged one is refused.

use std::fs;
use std::path::{Path, PathBuf};

use rlt_layout::TensorRun;
use safetensors::SafeTensors;
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::*;

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn content(step: u64) -> CheckpointContent {
    let options = (Kind::Float, Device::Cpu);
    let tensors = vec![
        ("layers.0.weight".into(), Tensor::arange(12, options).view([3, 4]) * step as f64),
        ("layers.0.weight.exp_avg".into(), Tensor::full([3, 4], 0.5, options)),
    ];
    CheckpointContent { tensors, state: json!({ "step": step, "kl_coefficient": 0.1 + step as f64 }) }
}

fn save(dir: &Path, keep: usize, steps: &[u64]) -> CheckpointStore {
    let mut store = CheckpointStore::open(dir, keep).expect("opens");
    for &step in steps {
        store.save(step, &content(step)).expect("saves");
    }
    store
}

fn steps_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("lists");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("listed").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

fn files_of(folder: &Path) -> Vec<PathBuf> {
    ["manifest.json", "state.json", "shard-00000.safetensors"].map(|name| folder.join(name)).into()
}

#[test]
fn every_dtype_shape_and_stride_is_loaded_bit_by_bit() {
    let dir = temporary();
    let base = Tensor::arange(24, (Kind::Float, Device::Cpu)).view([2, 3, 4]);
    let kinds = [
        Kind::Uint8,
        Kind::Int8,
        Kind::Int16,
        Kind::Int,
        Kind::Int64,
        Kind::Half,
        Kind::Float,
        Kind::Double,
        Kind::Bool,
        Kind::BFloat16,
    ];
    let mut tensors: Vec<(String, Tensor)> =
        kinds.iter().map(|&kind| (format!("{kind:?}"), base.to_kind(kind))).collect();
    tensors.push(("transposed".into(), base.transpose(0, 2)));
    tensors.push(("scalar".into(), Tensor::from(2.5)));
    tensors.push(("empty".into(), Tensor::zeros([0, 3], (Kind::Float, Device::Cpu))));
    tensors.push(("leaf".into(), (&base + 1.0).set_requires_grad(true)));
    // The tensor has more than one chunk, and its length is no multiple of a chunk.
    tensors.push(("long".into(), Tensor::arange(700_001, (Kind::Float, Device::Cpu))));
    let content = CheckpointContent { tensors, state: json!({}) };
    let mut store = CheckpointStore::open(dir.path(), 1).expect("opens");
    store.save(7, &content).expect("saves");

    let checkpoint = store.latest_complete().expect("lists").checkpoint.expect("complete");
    for (name, tensor) in &content.tensors {
        let loaded = checkpoint.tensor(name).expect("present");
        assert_eq!((loaded.kind(), loaded.size()), (tensor.kind(), tensor.size()), "{name}");
        assert!(loaded.equal(tensor), "{name}");
    }
    let destination = base.zeros_like().set_requires_grad(true);
    checkpoint.load_into("leaf", &destination).expect("fits");
    assert!(destination.equal(&content.tensors[13].1) && destination.requires_grad());
}

#[test]
fn other_safetensors_readers_read_the_file() {
    let dir = temporary();
    save(dir.path(), 1, &[3]);
    let bytes = fs::read(dir.path().join("step-000003/shard-00000.safetensors")).expect("written");
    let tensors = SafeTensors::deserialize(&bytes).expect("a valid file");
    let weight = tensors.tensor("layers.0.weight").expect("present");
    assert_eq!(weight.shape(), [3, 4]);
    let values: Vec<f32> =
        weight.data().as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect();
    assert_eq!(values, (0..12).map(|idx| idx as f32 * 3.0).collect::<Vec<_>>());
}

#[test]
fn a_tensor_is_loaded_whole_from_any_number_of_writers() {
    let dir = temporary();
    let store = save(dir.path(), 1, &[1]);
    drop(store);
    let folder = dir.path().join("step-000001");
    // Rewrite the manifest as if two processes had held columns 0..1 and 1..4 in a file each.
    let whole = content(1).tensors.remove(0).1;
    let mut manifest = load::read_manifest(&folder).expect("complete");
    let mut pieces = Vec::new();
    for (file, (start, len)) in [("left", (0, 1)), ("right", (1, 3))] {
        let columns: Vec<f32> =
            Vec::try_from(whole.narrow(1, start, len).contiguous().view(-1)).expect("f32");
        let bytes: Vec<u8> = columns.iter().flat_map(|value| value.to_le_bytes()).collect();
        fs::write(folder.join(file), &bytes).expect("writes");
        let sha256 = manifest::hex(&<sha2::Sha256 as sha2::Digest>::digest(&bytes));
        manifest.files.insert(file.into(), FileEntry { num_bytes: bytes.len() as u64, sha256 });
        let (start, shape) = (vec![0, start as u64], vec![3, len as u64]);
        pieces.push(TensorPiece { start, shape, file: file.into(), byte_offset: 0 });
    }
    manifest.tensors.get_mut("layers.0.weight").expect("present").pieces = pieces;
    fs::write(folder.join("manifest.json"), manifest.to_json().expect("serialises")).expect("writes");

    let checkpoint = Checkpoint::open(&folder).expect("complete");
    assert!(checkpoint.tensor("layers.0.weight").expect("present").equal(&whole));
    for name in ["layers.0.weight", "layers.0.weight.exp_avg"] {
        let whole = checkpoint.tensor(name).expect("present").view(-1);
        for range in [0..12, 0..1, 2..7, 4..8, 5..12, 11..12, 12..12] {
            let (start, len) = (range.start as i64, range.len() as i64);
            let values = Tensor::zeros([len], (Kind::Float, Device::Cpu));
            checkpoint.fill(&TensorRun { name, shape: &[3, 4], range }, &values).expect("present");
            assert!(values.equal(&whole.narrow(0, start, len)), "{name} from {start} on");
        }
    }
    let values = Tensor::zeros([2], (Kind::Float, Device::Cpu));
    let misfit =
        checkpoint.fill(&TensorRun { name: "layers.0.weight", shape: &[4, 3], range: 0..2 }, &values);
    assert!(misfit.expect_err("another shape").is_misfit());
}

#[test]
fn retention_survives_a_restart() {
    let dir = temporary();
    save(dir.path(), 2, &[10, 20]);
    save(dir.path(), 2, &[30]);
    assert_eq!(steps_in(dir.path()), ["step-000020", "step-000030"]);
    save(dir.path(), 1, &[40]);
    assert_eq!(steps_in(dir.path()), ["step-000040"]);
}

#[test]
fn the_checkpoint_a_run_resumed_from_stays() {
    let dir = temporary();
    save(dir.path(), 5, &[10, 20]);
    let mut store = CheckpointStore::open(dir.path(), 1).expect("opens");
    let path = dir.path().join("step-000010");
    assert_eq!(store.checkpoint_at(&path).expect("complete").step(), 10);
    store.save(15, &content(15)).expect("saves");
    assert_eq!(steps_in(dir.path()), ["step-000010", "step-000015"]);
}

#[test]
fn the_newest_is_the_last_saved_and_not_the_highest_step() {
    let dir = temporary();
    save(dir.path(), 5, &[10, 20, 30]);
    let mut store = save(dir.path(), 5, &[20]);
    let latest = store.latest_complete().expect("lists").checkpoint.expect("complete");
    assert_eq!(latest.step(), 20);
    assert_eq!(steps_in(dir.path()), ["step-000010", "step-000020", "step-000030"]);
}

#[test]
fn foreign_folders_are_left_alone() {
    let dir = temporary();
    for name in ["step-7", "notes", "step-000001.bak"] {
        fs::create_dir(dir.path().join(name)).expect("creates");
    }
    let mut store = save(dir.path(), 1, &[1, 2]);
    assert_eq!(steps_in(dir.path()), ["notes", "step-000001.bak", "step-000002", "step-7"]);
    assert!(store.latest_complete().expect("lists").skipped.is_empty());
}

#[test]
fn a_truncated_file_is_named_and_the_previous_checkpoint_used() {
    for idx in 0..3 {
        let dir = temporary();
        let mut store = save(dir.path(), 3, &[10, 20]);
        let path = &files_of(&dir.path().join("step-000020"))[idx];
        let len = fs::metadata(path).expect("present").len();
        fs::File::options().write(true).open(path).and_then(|file| file.set_len(len - 3)).expect("shortens");
        let latest = store.latest_complete().expect("lists");
        assert_eq!(latest.checkpoint.expect("the previous one").step(), 10);
        let message = latest.skipped.first().expect("reported").to_string();
        assert!(message.contains(path.to_str().expect("UTF-8")), "{message}");
    }
}

#[test]
fn a_missing_file_is_named_and_the_previous_checkpoint_used() {
    for idx in 0..3 {
        let dir = temporary();
        let mut store = save(dir.path(), 3, &[10, 20]);
        let path = &files_of(&dir.path().join("step-000020"))[idx];
        fs::remove_file(path).expect("removes");
        let latest = store.latest_complete().expect("lists");
        assert_eq!(latest.checkpoint.expect("the previous one").step(), 10);
        let message = latest.skipped.first().expect("reported").to_string();
        assert!(message.contains(path.to_str().expect("UTF-8")), "{message}");
    }
}

#[test]
fn any_flipped_bit_is_found_or_changes_nothing() {
    let dir = temporary();
    save(dir.path(), 1, &[20]);
    let folder = dir.path().join("step-000020");
    let original = load::read_manifest(&folder).expect("complete");
    for path in files_of(&folder) {
        let bytes = fs::read(&path).expect("present");
        for idx in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[idx] ^= 1 << (idx % 8);
            fs::write(&path, &damaged).expect("writes");
            match Checkpoint::open(&folder) {
                Ok(_) => assert_eq!(load::read_manifest(&folder).expect("read before"), original),
                Err(error) => {
                    let message = error.to_string();
                    assert!(message.contains(path.to_str().expect("UTF-8")), "byte {idx}: {message}");
                }
            }
        }
        fs::write(&path, &bytes).expect("writes");
    }
    Checkpoint::open(&folder).expect("whole again");
}

#[test]
fn a_checkpoint_of_a_later_format_is_refused_by_its_version() {
    let dir = temporary();
    save(dir.path(), 1, &[1]);
    let path = dir.path().join("step-000001/manifest.json");
    let json = fs::read_to_string(&path).expect("present");
    fs::write(&path, json.replace("\"version\": 1", "\"version\": 2")).expect("writes");
    let error = Checkpoint::open(&dir.path().join("step-000001")).expect_err("refused");
    assert!(matches!(error, CheckpointError::Version { version: 2, .. }), "{error}");
}

#[test]
fn tensors_that_do_not_fit_are_refused_with_both_shapes() {
    let dir = temporary();
    let mut store = save(dir.path(), 1, &[1]);
    let checkpoint = store.latest_complete().expect("lists").checkpoint.expect("complete");
    let narrow = Tensor::zeros([3, 3], (Kind::Float, Device::Cpu));
    let message = checkpoint.load_into("layers.0.weight", &narrow).expect_err("refused").to_string();
    assert!(message.contains("[3, 3]") && message.contains("[3, 4]"), "{message}");
    assert!(matches!(checkpoint.tensor("absent"), Err(CheckpointError::UnknownTensor { .. })));

    let twice = vec![("a".into(), narrow.shallow_clone()), ("a".into(), narrow)];
    let content = CheckpointContent { tensors: twice, state: json!(null) };
    assert!(matches!(store.save(2, &content), Err(CheckpointError::DuplicateTensor { .. })));
    assert_eq!(steps_in(dir.path()), ["step-000001"]);
}

#[test]
fn state_numbers_are_loaded_bit_by_bit() {
    let dir = temporary();
    let values = [0.1 + 0.2, f64::MIN_POSITIVE, 1e308, -0.0, std::f64::consts::PI];
    let state = json!({ "values": values, "seed": u64::MAX });
    let mut store = CheckpointStore::open(dir.path(), 1).expect("opens");
    store.save(1, &CheckpointContent { tensors: vec![], state }).expect("saves");
    let checkpoint = store.latest_complete().expect("lists").checkpoint.expect("complete");
    let loaded: Vec<f64> = checkpoint.state_field("values").expect("present");
    assert_eq!(loaded.into_iter().map(f64::to_bits).collect::<Vec<_>>(), values.map(f64::to_bits));
    assert_eq!(checkpoint.state_field::<u64>("seed").expect("present"), u64::MAX);
}

#[test]
fn committed_checkpoints_are_listed_in_the_order_of_saving_without_damaged_ones() {
    let dir = temporary();
    // Step 20 is saved again after the run has returned to an earlier step.
    let store = save(dir.path(), 3, &[10, 20, 30, 20]);
    let ledger = store.committed().expect("lists");
    let steps: Vec<u64> = ledger.iter().map(|committed| committed.step).collect();
    assert_eq!(steps, [10, 30, 20], "a restart resumes from the last one");
    let checkpoint = Checkpoint::open(&ledger[2].path).expect("complete");
    assert_eq!((&ledger[2].digest, ledger[2].num_shards), (&checkpoint.manifest().sha256, 1));
    fs::write(dir.path().join("step-000030/manifest.json"), "{").expect("writes");
    let steps: Vec<u64> = store.committed().expect("lists").iter().map(|committed| committed.step).collect();
    assert_eq!(steps, [10, 20]);
}
