//! Offloaded training equals training without offload, bit for bit: every role, on one rank and on several,
//! and resumed from either's checkpoints.

use super::saved::{Layout, Way, go_on, save};
use super::*;

/// Several micro-batches for each update, whose backward pass keeps only layer inputs.
const TIED: Case = Case { tied: true, activation_checkpointing: true, ..FULL };
const UNTIED: Case = Case { activation_checkpointing: true, ..FULL };
const ADAPTER: Case = Case { lora: true, activation_checkpointing: true, ..FULL };

/// Runs `body` on every rank; the results must be equal. Returns the first.
fn everywhere<T: PartialEq + std::fmt::Debug + Send>(size: usize, body: impl Fn(&Ranks) -> T + Sync) -> T {
    if size == 1 {
        return body(&Ranks::alone());
    }
    let mut all = on_ranks(size, |ranks| body(&ranks));
    assert!(all.iter().all(|one| one == &all[0]), "ranks differ");
    all.swap_remove(0)
}

#[test]
fn an_offloaded_actor_trains_like_one_on_the_device() {
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
                train_actor(case, offloaded_actor(case, ranks, dp_shard, spec, folder.path()))
            })
        };
        let expected = trained(NONE);
        for spec in specs {
            assert!(trained(*spec) == expected, "{case:?} on {size} ranks by {dp_shard} with {spec:?}");
        }
    }
}

#[test]
fn an_offloaded_critic_trains_like_one_on_the_device() {
    for (case, size, dp_shard) in [(TIED, 1, 1), (ADAPTER, 1, 1), (UNTIED, 2, 2), (ADAPTER, 2, 2)] {
        let learned = |spec| {
            let folder = tempfile::tempdir().unwrap();
            // Only the leader has all weights and moments.
            let state = std::sync::Mutex::new(Vec::new());
            let reported = everywhere(size, |ranks| {
                let actor = offloaded_actor(case, ranks, dp_shard, spec, folder.path());
                let (reported, own) = learn_beside(case, &actor, Offload::new(spec, folder.path()));
                if ranks.is_leader() {
                    *state.lock().unwrap() = own;
                }
                reported
            });
            (reported, state.into_inner().unwrap())
        };
        let (offloaded, staying) = (learned(ALL), learned(NONE));
        assert!(!staying.1.is_empty() && offloaded == staying, "{case:?} on {size} ranks by {dp_shard}");
    }
}

#[test]
fn a_checkpoint_is_resumed_with_offload_on_or_off() {
    let in_bf16 = Case { compute: Kind::BFloat16, ..UNTIED };
    let (alone, copies, shards): (Layout, Layout, Layout) = ((1, 1, 1), (2, 1, 1), (4, 2, 1));
    for (case, layout, changes) in [
        (TIED, alone, &[(NONE, ALL), (ALL, NONE), (ALL, ALL)][..]),
        (TIED, copies, &[(ALL, NONE)]),
        (UNTIED, shards, &[(ALL, NONE), (ALL, ALL)]),
        (ADAPTER, alone, &[(ALL, NONE)]),
        (ADAPTER, shards, &[(ALL, ALL)]),
        (in_bf16, (2, 2, 1), &[(ALL, ALL)]),
    ] {
        let staying = tempfile::tempdir().unwrap();
        let expected = save(Way { case, layout, offload: NONE }, staying.path());
        for &(before, after) in changes {
            let named = format!("{case:?} on {layout:?}: {before:?}, then {after:?}");
            let offloaded = tempfile::tempdir().unwrap();
            assert!(save(Way { case, layout, offload: before }, offloaded.path()) == expected, "{named}");
            let path = offloaded.path().join("step-000002");
            assert!(go_on(Way { case, layout, offload: after }, &path) == expected, "{named}");
        }
    }
}

#[test]
fn any_number_of_ranks_resumes_from_a_checkpoint_saved_with_offload() {
    let dir = tempfile::tempdir().unwrap();
    let [saved, ended] = save(Way { case: UNTIED, layout: (4, 4, 1), offload: ALL }, dir.path());
    for (layout, offload) in [((1, 1, 1), ALL), ((2, 2, 1), NONE), ((4, 2, 2), ALL)] {
        let way = Way { case: UNTIED, layout, offload };
        let [restored, went_on] = go_on(way, &dir.path().join("step-000002"));
        assert_eq!(restored, saved, "{way:?}");
        let difference = largest_difference(&numbers(ended.values()), &numbers(went_on.values()));
        // Two updates from the same bits differ only by the order of sums over ranks.
        assert!(difference < 1e-6, "{way:?}: {difference}");
    }
}

#[test]
fn offloaded_parameters_take_no_memory_between_passes_and_that_of_two_layers_within_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut actor = offloaded_actor(TIED, &Ranks::alone(), 1, ALL, folder.path());
    let num_bytes = |actor: &Actor| actor.learner.shards().unwrap().num_bytes();
    assert_eq!(num_bytes(&actor), 0);
    update(&mut actor, &batch(), &plan(TIED, 0)).unwrap();
    assert_eq!(num_bytes(&actor), 0);
    let (layer, outer) = {
        let (layers, outer) = actor.learner.decoder().parameters_by_layer();
        let count = |unit: &[(String, Tensor)]| unit.iter().map(|(_, t)| t.numel()).sum::<usize>();
        (count(&layers[0]), count(&outer))
    };
    let mut largest = 0;
    let visited = actor.learner.units().visit(WeightDtype::Master, |_| {
        largest = largest.max(num_bytes(&actor));
        Ok::<(), RankError>(())
    });
    visited.unwrap();
    // Each parameter may begin up to a cache line later than the last one ends.
    let is_near = |num_bytes: usize, num: usize| (4 * num..4 * num + 64 * 30).contains(&num_bytes);
    assert!(is_near(largest, layer + outer.max(layer)), "{largest} of a unit and the next one");
    assert_eq!(num_bytes(&actor), 0);
    let shards = actor.learner.shards().unwrap();
    [FsdpUnit::Root, FsdpUnit::Layer(0), FsdpUnit::Layer(1)]
        .into_iter()
        .for_each(|unit| shards.unshard(unit).unwrap());
    assert!(is_near(num_bytes(&actor), outer + 2 * layer), "{} in a pass", num_bytes(&actor));
}

#[test]
fn errors_of_an_unwritable_offload_folder_name_the_tensor_and_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let chain = |error: &dyn std::error::Error| {
        let causes = std::iter::successors(Some(error), |error| error.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    };
    let offload = Offload::new(ALL, &missing);
    let whole = decoder(TIED);
    let error = offload.optimizer(whole.trainable_parameters(), AdamWOptions::default()).unwrap_err();
    assert!(chain(&error).contains("the optimizer's moments: making an unlinked file in"));
    assert!(chain(&error).contains("missing"));
    let mesh = Rc::new(Ranks::alone().on_mesh(1).unwrap());
    let error = ShardedParameters::new(&whole, mesh, offload.parameters()).unwrap_err();
    assert!(chain(&error).contains("making an unlinked file in") && chain(&error).contains("missing"));
    let spec = OffloadSpec { activations: true, ..NONE };
    let mut actor = offloaded_actor(TIED, &Ranks::alone(), 1, spec, &missing);
    let error = update(&mut actor, &batch(), &plan(TIED, 0)).unwrap_err();
    let text = chain(&error);
    assert!(text.contains("a layer's input for its backward pass") && text.contains("missing"), "{text}");
}
