//! What rests away from its device trains as what stays, bit for bit: every role, on one rank and on several, and from either's
//! checkpoints.

use std::path::Path;

use rlt_api::spec::OffloadSpec;

use super::*;
use crate::checkpoint::{Checkpoint, CheckpointContent, CheckpointStore};
use crate::parallel::tests::resting_actor;

const ALL: OffloadSpec = OffloadSpec { parameters: true, optimizer: true, activations: true };
const NONE: OffloadSpec = OffloadSpec { parameters: false, optimizer: false, activations: false };

/// Several micro-batches for each update, of which inputs alone are kept.
const TIED: Case = Case { tied: true, activation_checkpointing: true, ..FULL };
const UNTIED: Case = Case { activation_checkpointing: true, ..FULL };
const ADAPTER: Case = Case { lora: true, activation_checkpointing: true, ..FULL };

fn actor_that_rests(case: Case, ranks: &Ranks, dp_shard: usize, spec: OffloadSpec, folder: &Path) -> Actor {
    resting_actor(decoder(case), actor_options(case), ranks, dp_shard, &Offload::new(spec, folder))
}

/// What `body` makes on every rank, which must be the same; that of the first.
fn everywhere<T: PartialEq + std::fmt::Debug + Send>(size: usize, body: impl Fn(&Ranks) -> T + Sync) -> T {
    if size == 1 {
        return body(&Ranks::alone());
    }
    let mut all = on_ranks(size, |ranks| body(&ranks));
    assert!(all.iter().all(|one| one == &all[0]), "ranks differ");
    all.swap_remove(0)
}

#[test]
fn an_actor_that_rests_trains_as_one_that_stays() {
    let alone = [
        OffloadSpec { optimizer: true, ..NONE },
        OffloadSpec { activations: true, ..NONE },
        OffloadSpec { parameters: true, ..NONE },
        ALL,
    ];
    let in_bf16 = Case { compute: Kind::BFloat16, ..UNTIED };
    for (case, size, dp_shard, specs) in [
        (UNTIED, 1, 1, &alone[..]),
        (TIED, 1, 1, &[ALL]),
        (in_bf16, 1, 1, &[ALL]),
        (ADAPTER, 1, 1, &[ALL]),
        (TIED, 2, 1, &[ALL]),
        (UNTIED, 2, 2, &[ALL]),
        (ADAPTER, 2, 2, &[ALL]),
    ] {
        let trained = |spec| {
            let folder = tempfile::tempdir().unwrap();
            everywhere(size, |ranks| {
                train_actor(case, actor_that_rests(case, ranks, dp_shard, spec, folder.path()))
            })
        };
        let expected = trained(NONE);
        for spec in specs {
            assert!(trained(*spec) == expected, "{case:?} on {size} ranks by {dp_shard} with {spec:?}");
        }
    }
}

#[test]
fn a_critic_that_rests_learns_as_one_that_stays() {
    for (case, size, dp_shard) in [(TIED, 1, 1), (ADAPTER, 1, 1), (UNTIED, 2, 2), (ADAPTER, 2, 2)] {
        let learned = |spec| {
            let folder = tempfile::tempdir().unwrap();
            // The leader alone has all weights and moments.
            let state = std::sync::Mutex::new(Vec::new());
            let reported = everywhere(size, |ranks| {
                let actor = actor_that_rests(case, ranks, dp_shard, spec, folder.path());
                let (reported, own) = learn_beside(case, &actor, Offload::new(spec, folder.path()));
                if ranks.is_leader() {
                    *state.lock().unwrap() = own;
                }
                reported
            });
            (reported, state.into_inner().unwrap())
        };
        let (resting, staying) = (learned(ALL), learned(NONE));
        assert!(!staying.1.is_empty() && resting == staying, "{case:?} on {size} ranks by {dp_shard}");
    }
}

/// What an actor is, saved and found again.
fn saved(actor: &mut Actor, folder: &Path) -> Checkpoint {
    let tensors = actor.trained().tensors(folder).unwrap();
    let mut store = CheckpointStore::open(&folder.join("checkpoints"), 1).unwrap();
    store.save(1, &CheckpointContent { tensors, state: serde_json::json!({}) }).unwrap();
    store.latest_complete().unwrap().checkpoint.unwrap()
}

#[test]
fn a_checkpoint_goes_on_whether_what_it_holds_rests_or_stays() {
    let ranks = Ranks::alone();
    let numbers_of = |actor: &mut Actor, folder: &Path| {
        let mut state = actor.trained().tensors(folder).unwrap();
        state.sort_by(|(one, _), (other, _)| one.cmp(other));
        numbers(&state)
    };
    let train_on = |actor: &mut Actor, steps: std::ops::Range<u64>| {
        steps.for_each(|step| drop(update(actor, &batch(), &plan(TIED, step)).unwrap()));
    };
    let folder = tempfile::tempdir().unwrap();
    let mut whole = actor_that_rests(TIED, &ranks, 1, NONE, folder.path());
    train_on(&mut whole, 0..4);
    let expected = numbers_of(&mut whole, folder.path());
    for (before, after) in [(NONE, ALL), (ALL, NONE), (ALL, ALL)] {
        let folder = tempfile::tempdir().unwrap();
        let mut first = actor_that_rests(TIED, &ranks, 1, before, folder.path());
        train_on(&mut first, 0..2);
        let checkpoint = saved(&mut first, folder.path());
        drop(first);
        let mut second = actor_that_rests(TIED, &ranks, 1, after, folder.path());
        second.trained().restore(&checkpoint).unwrap();
        train_on(&mut second, 2..4);
        assert!(numbers_of(&mut second, folder.path()) == expected, "{before:?}, then {after:?}");
    }
}

#[test]
fn parameters_that_rest_take_no_memory_between_passes_and_two_layers_in_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut actor = actor_that_rests(TIED, &Ranks::alone(), 1, ALL, folder.path());
    let num_bytes = |actor: &Actor| actor.shards().unwrap().num_bytes();
    assert_eq!(num_bytes(&actor), 0);
    update(&mut actor, &batch(), &plan(TIED, 0)).unwrap();
    assert_eq!(num_bytes(&actor), 0);
    let num_parameters: usize = actor.decoder.trainable_parameters().iter().map(|(_, t)| t.numel()).sum();
    actor.hold().unwrap();
    assert!(num_bytes(&actor) >= 4 * num_parameters);
    actor.let_go().unwrap();
    assert_eq!(num_bytes(&actor), 0);
    let (layer, outer) = {
        let (layers, outer) = actor.decoder.parameters_by_layer();
        let count = |part: &[(String, Tensor)]| part.iter().map(|(_, t)| t.numel()).sum::<usize>();
        (count(&layers[0]), count(&outer))
    };
    let shards = actor.shards().unwrap();
    [Part::Outer, Part::Layer(0), Part::Layer(1)].into_iter().for_each(|part| shards.need(part).unwrap());
    // Each parameter may begin up to a cache line later than the last one ends.
    let expected = 4 * (outer + 2 * layer);
    assert!(
        (expected..expected + 64 * 30).contains(&num_bytes(&actor)),
        "{} of {expected}",
        num_bytes(&actor)
    );
}

#[test]
fn a_folder_that_cannot_be_written_is_named_by_whoever_needs_it() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let told = |error: &dyn std::error::Error| {
        let causes = std::iter::successors(Some(error), |error| error.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    };
    let offload = Offload::new(ALL, &missing);
    let whole = decoder(TIED);
    let error = offload.optimizer(whole.trainable_parameters(), AdamWOptions::default()).unwrap_err();
    assert!(
        told(&error).contains("moments rest: making a nameless file in") && told(&error).contains("missing")
    );
    let mesh = Rc::new(Ranks::alone().on_mesh(1).unwrap());
    let error = ShardedParameters::new(&whole, mesh, offload.parameters()).unwrap_err();
    assert!(told(&error).contains("making a nameless file in") && told(&error).contains("missing"));
    let spec = OffloadSpec { activations: true, ..NONE };
    let mut actor = actor_that_rests(TIED, &Ranks::alone(), 1, spec, &missing);
    let error = update(&mut actor, &batch(), &plan(TIED, 0)).unwrap_err();
    let told = told(&error);
    assert!(told.contains("what a layer's backward pass needs") && told.contains("missing"), "{told}");
}
