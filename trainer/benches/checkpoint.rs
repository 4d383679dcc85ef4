//! How fast a checkpoint of one gibibyte is saved and verified, beside writing and syncing the same bytes plainly.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints and may panic")]

use std::io::Write;
use std::time::Instant;

use rlt_trainer::checkpoint::{Checkpoint, CheckpointContent, CheckpointStore};
use tch::{Device, Kind, Tensor};

const NUM_TENSORS: i64 = 64;
const TENSOR_LEN: i64 = 4 << 20;
const MEBIBYTES: f64 = ((NUM_TENSORS * TENSOR_LEN * 4) >> 20) as f64;

fn main() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let tensor = |idx: i64| Tensor::rand([TENSOR_LEN], (Kind::Float, Device::Cpu)) + idx as f64;
    let tensors = (0..NUM_TENSORS).map(|idx| (format!("layers.{idx}.weight"), tensor(idx))).collect();
    let content = CheckpointContent { tensors, state: serde_json::json!({}) };
    let report = |what: &str, started: Instant| {
        println!("{what}: {:.0} MiB/s", MEBIBYTES / started.elapsed().as_secs_f64());
    };

    let plain = vec![1u8; 1 << 20];
    for round in 0..3 {
        let path = dir.path().join(format!("plain-{round}"));
        let started = Instant::now();
        let mut file = std::fs::File::create(&path).unwrap();
        (0..MEBIBYTES as usize).for_each(|_| file.write_all(&plain).unwrap());
        file.sync_all().unwrap();
        report("plain write and sync", started);
        std::fs::remove_file(path).unwrap();
    }
    let mut store = CheckpointStore::open(&dir.path().join("checkpoints"), 1).unwrap();
    for step in 1..=3 {
        let started = Instant::now();
        let saved = store.save(step, &content).unwrap();
        report("save", started);
        let started = Instant::now();
        Checkpoint::open(&saved.path).unwrap();
        report("verify", started);
    }
}
