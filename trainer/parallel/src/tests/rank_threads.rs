//! Ranks that are threads of a test. Tests of the trainer use this file too.

use std::thread;
use std::time::Duration;

use rlt_torch::collectives::serve_store;

use super::{RankEnvironment, Ranks};

/// Runs `body` on every rank; returns the results in the order of ranks.
pub(crate) fn on_ranks<T: Send>(size: usize, body: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    let store = serve_store(0, 1, size).unwrap();
    let master_port = store.port();
    let join = |rank| {
        let environment = RankEnvironment {
            rank,
            world_size: size,
            local_world_size: size,
            master_address: "localhost".into(),
            master_port,
            attempt: 1,
            key: None,
        };
        Ranks::join(&environment, Duration::from_secs(100)).unwrap()
    };
    thread::scope(|scope| {
        let handles: Vec<_> = (0..size)
            .map(|rank| {
                let (join, body) = (&join, &body);
                scope.spawn(move || {
                    let ranks = join(rank);
                    let result = body(ranks.clone());
                    ranks.all_reduce_max(0).unwrap();
                    result
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}
