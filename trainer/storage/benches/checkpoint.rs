//! Measures the time to save a checkpoint of one gibibyte by one process and by four, the time that training
//! waits for it, and the time to verify it, compared with plain writes and syncs of the same bytes.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints and may panic")]

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use rlt_storage::checkpoint::{
    Checkpoint, CheckpointShard, CheckpointStore, WrittenShard, split_between_copies,
};
use tch::{Device, Kind, Tensor};

const NUM_TENSORS: i64 = 64;
const TENSOR_LEN: i64 = 4 << 20;
const MEBIBYTES: f64 = ((NUM_TENSORS * TENSOR_LEN * 4) >> 20) as f64;

fn main() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let tensor = |idx: i64| Tensor::rand([TENSOR_LEN], (Kind::Float, Device::Cpu)) + idx as f64;
    let tensors: Vec<(String, Tensor)> =
        (0..NUM_TENSORS).map(|idx| (format!("layers.{idx}.weight"), tensor(idx))).collect();
    for round in 0..3 {
        report("plain write and sync", write_plainly(&dir.path().join(format!("plain-{round}"))));
    }
    let folder = dir.path().join("checkpoints");
    let mut step = 0;
    for num_writers in [1, 4] {
        for _ in 0..3 {
            step += 1;
            let (waited, saved, path) = save(&folder, step, &tensors, num_writers);
            report(&format!("{num_writers} writing, training waits"), waited);
            report(&format!("{num_writers} writing, saved"), saved);
            let started = Instant::now();
            Checkpoint::open(&path).unwrap();
            report("verified", started.elapsed());
        }
    }
}

fn report(what: &str, duration: Duration) {
    let seconds = duration.as_secs_f64();
    println!("{what}: {seconds:.2} s, {:.0} MiB/s", MEBIBYTES / seconds);
}

fn write_plainly(path: &Path) -> Duration {
    let plain = vec![1u8; 1 << 20];
    let started = Instant::now();
    let mut file = std::fs::File::create(path).unwrap();
    (0..MEBIBYTES as usize).for_each(|_| file.write_all(&plain).unwrap());
    file.sync_all().unwrap();
    let duration = started.elapsed();
    std::fs::remove_file(path).unwrap();
    duration
}

/// Saves on `num_writers` threads. Returns how long the slowest of them used its tensors, how long the save
/// took, and the path of the checkpoint.
fn save(
    folder: &Path,
    step: u64,
    tensors: &[(String, Tensor)],
    num_writers: usize,
) -> (Duration, Duration, std::path::PathBuf) {
    let mut store = CheckpointStore::open(folder, 1).unwrap();
    let parts = |writer_idx| {
        let whole = tensors.iter();
        let whole = whole.map(|(name, tensor)| CheckpointShard::full(name.clone(), tensor.shallow_clone()));
        split_between_copies(whole.collect(), writer_idx, num_writers)
    };
    let all: Vec<Vec<CheckpointShard>> = (0..num_writers).map(parts).collect();
    let started = Instant::now();
    store.begin(step).unwrap();
    let (waited, shards): (Vec<Duration>, Vec<WrittenShard>) = std::thread::scope(|scope| {
        let write = |(writer_idx, parts): (usize, Vec<CheckpointShard>)| {
            scope.spawn(move || {
                let shard = CheckpointStore::follow(folder).write(step, writer_idx, parts).unwrap();
                (started.elapsed(), shard.complete().unwrap())
            })
        };
        let threads: Vec<_> = all.into_iter().enumerate().map(write).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).unzip()
    });
    let saved = store.commit(step, shards, &serde_json::json!({})).unwrap();
    (waited.into_iter().max().unwrap_or_default(), started.elapsed(), saved.path)
}
