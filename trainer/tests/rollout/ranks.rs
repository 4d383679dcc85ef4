//! Ranks that run as threads, and the engines of those in a rollout TP group.

use std::thread;
use std::time::Duration;

use rlt_engine::{Engine, EngineOptions};
use rlt_parallel::{RankEnvironment, Ranks};
use rlt_torch::collectives::serve_store;

/// Runs `body` on every rank, with a timeout of `patience` seconds for other ranks. Returns the results in
/// the order of ranks.
pub(crate) fn on_ranks<T: Send>(size: usize, patience: u64, body: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    let store = serve_store(0, 1, size).unwrap();
    let environment = |rank| RankEnvironment {
        rank,
        world_size: size,
        local_world_size: size,
        master_address: "localhost".into(),
        master_port: store.port(),
        attempt: 1,
        key: None,
    };
    let run = |rank| body(Ranks::join(&environment(rank), Duration::from_secs(patience)).unwrap());
    thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> = (0..size).map(|rank| scope.spawn(move || run(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The engine of a rank of a rollout tensor-parallel group.
pub(crate) fn engine(ranks: &Ranks, options: EngineOptions) -> Engine {
    let shards = ranks.rollout_tp_group(ranks.size()).unwrap();
    assert!(shards.is_some(), "the engine has a shard");
    Engine::new(options).with_tp_group(shards)
}
