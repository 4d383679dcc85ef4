//! Layers that stay unsharded between forward and backward pass train like resharded ones, bit for bit.

use super::*;

/// Number of layers of every model in these tests.
const LAYERS: usize = 3;

/// Returns the results of five updates, which must be equal on every rank.
fn trained(
    case: Case,
    (size, dp_shard, sp): (usize, usize, usize),
    unsharded: usize,
    spec: OffloadSpec,
) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let train = |ranks: &Ranks| {
        let offload = Offload::new(spec, folder.path());
        let degrees = (dp_shard, 1, unsharded);
        train_actor(
            case,
            actor_keeping_unsharded(decoder(case), actor_options(case), ranks, degrees, &offload),
        )
    };
    if size == 1 {
        return train(&Ranks::alone());
    }
    let mut all = on_ranks(size, |ranks| train(&ranks.with_sequence_parallel(sp).unwrap()));
    assert!(all.iter().all(|one| one == &all[0]), "ranks differ");
    all.swap_remove(0)
}

#[test]
fn layers_that_stay_unsharded_train_as_those_that_are_gathered_again_bit_for_bit() {
    let checkpointing = Case { activation_checkpointing: true, ..FULL };
    let lora = Case { lora: true, ..FULL };
    let in_bf16 = Case { compute: Kind::BFloat16, tied: true, ..FULL };
    for (case, layout, offload) in [
        (FULL, (2, 2, 1), NONE),
        (FULL, (4, 2, 1), NONE),
        (in_bf16, (2, 2, 1), NONE),
        (checkpointing, (4, 2, 2), NONE),
        (lora, (2, 2, 1), NONE),
        (QUANTIZED, (2, 2, 1), NONE),
        (checkpointing, (1, 1, 1), ALL),
        (lora, (1, 1, 1), OffloadSpec { parameters: true, ..NONE }),
    ] {
        let gathered_again = trained(case, layout, 1, offload);
        for unsharded in [2, LAYERS] {
            let kept = trained(case, layout, unsharded, offload);
            assert!(kept == gathered_again, "{case:?} on {layout:?} with {unsharded} layers unsharded");
        }
    }
}

#[test]
fn the_last_layers_stay_and_none_of_them_is_left_whole_by_an_update() {
    for unsharded in 1..=LAYERS {
        on_ranks(2, |ranks| {
            let offload = Offload::default();
            let mut actor = actor_keeping_unsharded(
                decoder(FULL),
                actor_options(FULL),
                &ranks,
                (2, 1, unsharded),
                &offload,
            );
            let shards = actor.learner.shards().unwrap();
            let at_rest = shards.num_bytes();
            let staying = (0..LAYERS).filter(|layer_idx| shards.stays_unsharded(*layer_idx));
            assert_eq!(staying.collect::<Vec<_>>(), (LAYERS - unsharded..LAYERS).collect::<Vec<_>>());
            update(&mut actor, &batch(), &plan(FULL, 0)).unwrap();
            assert_eq!(actor.learner.shards().unwrap().num_bytes(), at_rest);
        });
    }
}
