//! Collectives between ranks that are threads: the result on each rank.

mod traffic;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;

use rlt_core::batch::Batch;
use rlt_decoder::Decoder;
use rlt_torch::collectives::serve_store;

use super::*;
use crate::roles::actor::{Actor, ActorOptions};
use crate::roles::offload::Offload;
use crate::roles::optim::AdamWOptions;

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

/// An actor whose decoder `dp_shard` ranks share.
pub(crate) fn actor_on_mesh(
    decoder: Decoder,
    options: ActorOptions,
    ranks: &Ranks,
    dp_shard: usize,
) -> Actor {
    actor_with_offload(decoder, options, ranks, dp_shard, &Offload::default())
}

/// Makes the same actor with `offload`.
pub(super) fn actor_with_offload(
    decoder: Decoder,
    options: ActorOptions,
    ranks: &Ranks,
    dp_shard: usize,
    offload: &Offload,
) -> Actor {
    actor_keeping_unsharded(decoder, options, ranks, (dp_shard, 1), offload)
}

/// Makes the same actor, whose last layers stay unsharded between forward and backward pass.
pub(super) fn actor_keeping_unsharded(
    decoder: Decoder,
    options: ActorOptions,
    ranks: &Ranks,
    (dp_shard, unsharded_layers): (usize, usize),
    offload: &Offload,
) -> Actor {
    let offload_to = offload.parameters();
    let by_unit = dp_shard > 1 || ranks.ep > 1 || ranks.tp_group().is_some() || offload_to.is_some();
    let shards = by_unit.then(|| {
        let mesh = Rc::new(ranks.on_mesh(dp_shard).unwrap());
        let shards = ShardedParameters::new(&decoder, mesh, offload_to).unwrap();
        shards.keeping_unsharded(unsharded_layers)
    });
    let trained =
        shards.as_ref().map_or_else(|| decoder.trainable_parameters(), ShardedParameters::local_shards);
    let optimizer = offload.optimizer(trained, AdamWOptions::default()).unwrap();
    let mut actor = Actor::new(decoder, optimizer, options, ranks.clone());
    if let Some(shards) = shards {
        actor = actor.with_shards(shards);
    }
    match offload.activations() {
        Some(folder) => actor.with_offloaded_inputs(folder.to_owned()),
        None => actor,
    }
}

/// Copies of a decoder's parameters by name, gathered if they are sharded.
pub(crate) fn whole_parameters(decoder: DecoderUnits<'_>) -> BTreeMap<String, Tensor> {
    let (layers, outer) = decoder.decoder().parameters_by_layer();
    let mut all = BTreeMap::new();
    let visited = decoder.visit(WeightDtype::Master, |unit| {
        let of_part = unit.layer_idx().map_or(&outer, |layer_idx| &layers[layer_idx]);
        all.extend(of_part.iter().map(|(name, leaf)| (name.clone(), leaf.detach().copy())));
        Ok::<(), RankError>(())
    });
    visited.unwrap();
    all
}

/// Full parameters that an actor trains, by name.
pub(crate) fn trained_parameters(actor: &Actor) -> BTreeMap<String, Tensor> {
    let mut all = whole_parameters(actor.learner.units());
    let trained = actor.learner.decoder().trainable_parameters();
    all.retain(|name, _| trained.iter().any(|(trained, _)| trained == name));
    all
}

#[test]
fn every_rank_has_the_values_of_all_ranks() {
    for size in [1, 2, 3] {
        let results = on_ranks(size, |ranks| {
            let own = "x".repeat(ranks.rank() * 3);
            let gathered = ranks.all_gather((ranks.rank(), own, 0.1 + ranks.rank() as f64)).unwrap();
            let (mut sums, mut empty) = (vec![1.0, ranks.rank() as f64], Vec::new());
            ranks.all_reduce(&mut [&mut sums, &mut empty]).unwrap();
            let said = ranks.broadcast(ranks.is_leader().then(|| "go".to_owned())).unwrap();
            let nothing: Option<String> = ranks.broadcast(ranks.is_leader().then_some(None)).unwrap();
            assert_eq!(nothing, None);
            (gathered, sums, ranks.all_reduce_max(ranks.rank() as i64 - 5).unwrap(), said)
        });
        let all: Vec<_> = (0..size).map(|rank| (rank, "x".repeat(rank * 3), 0.1 + rank as f64)).collect();
        let sum = (0..size).sum::<usize>() as f64;
        for result in results {
            assert_eq!(result, (all.clone(), vec![size as f64, sum], size as i64 - 6, "go".to_owned()));
        }
    }
}

/// Returns the folder of the calling thread below `/proc`.
fn thread_folder() -> PathBuf {
    Path::new("/proc").join(std::fs::read_link("/proc/thread-self").unwrap())
}

/// Waits until the thread of this folder waits for something.
fn wait_until_blocked(thread_folder: &Path) {
    loop {
        let stat = std::fs::read_to_string(thread_folder.join("stat")).unwrap();
        // The state follows the name, which is in brackets.
        if stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S')) {
            return;
        }
        thread::yield_now();
    }
}

#[test]
fn the_leader_works_first() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("made");
    let (announce, announced) = mpsc::channel();
    let announced = Mutex::new(announced);
    let found = on_ranks(3, |ranks| {
        if !ranks.is_leader() {
            announce.send(thread_folder()).unwrap();
        }
        ranks
            .leader_first(|| -> Result<bool, RankError> {
                let found = file.exists();
                if ranks.is_leader() {
                    // A rank that did not wait for the leader would look for the file before it is blocked.
                    let announced = announced.lock().unwrap();
                    announced.iter().take(2).for_each(|other| wait_until_blocked(&other));
                    std::fs::write(&file, "").unwrap();
                }
                Ok(found)
            })
            .unwrap()
    });
    assert_eq!(found, [false, true, true]);
}

#[test]
fn ranks_get_full_groups_if_there_are_enough_and_every_row_once() {
    let demonstration = |len: usize| rlt_core::batch::Demonstration {
        tokens: vec![1; len],
        loss_mask: [vec![false], vec![true; len - 1]].concat(),
        images: Vec::new(),
    };
    let rows: Vec<_> = [9, 3, 7, 5, 2, 8].map(demonstration).into();
    let mut batch = Batch::from_demonstrations(rows.iter());
    for (groups, size, is_whole) in
        [(vec![0, 0, 1, 1, 2, 2], 3, true), (vec![0, 0, 0, 0, 1, 1], 2, true), (vec![0; 6], 4, false)]
    {
        batch.groups = groups;
        let all: Vec<usize> = (0..6).collect();
        if size == 2 {
            let shares = on_ranks(size, |ranks| ranks.balanced_by(Balance::Order).share_of(&batch, &all, 16));
            assert_eq!(shares, [vec![0, 1, 2, 3], vec![4, 5]], "the first group and the second");
        }
        if size == 4 {
            let shares = on_ranks(size, |ranks| ranks.balanced_by(Balance::Count).share_of(&batch, &all, 16));
            let mut counts: Vec<usize> = shares.iter().map(Vec::len).collect();
            counts.sort_unstable();
            assert_eq!(counts, [1, 1, 2, 2]);
        }
        let shares = on_ranks(size, |ranks| ranks.share_of(&batch, &all, 16));
        let mut together = shares.concat();
        together.sort_unstable();
        assert_eq!(together, all);
        assert!(shares.iter().all(|share| !share.is_empty()));
        if is_whole {
            assert!(
                shares
                    .iter()
                    .all(|share| share.chunks(2).all(|pair| batch.groups[pair[0]] == batch.groups[pair[1]]))
            );
        }
    }
}
