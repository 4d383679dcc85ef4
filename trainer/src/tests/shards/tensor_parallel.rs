//! Tensor parallelism: training, checkpoints, weight sync and traffic of ranks with shards of every weight,
//! compared with one rank that has the full weights.

use std::collections::BTreeMap;

use rlt_decoder::PackedInput;
use rlt_layout::TensorRun;
use rlt_parallel::schedule::{self, DecoderPass, SaveOptions};
use rlt_storage::checkpoint::{Checkpoint, CheckpointStore};
use serde_json::json;

use super::*;
use crate::run::checkpoint_writer::{CheckpointWriter, Settled, Wait};

/// Qwen3 with four query and two key heads, whose norms act on the heads of a rank. The vocabulary of 11
/// tokens is split unevenly.
const CUT: Case = Case { kv_heads: 2, ..FULL };
/// Llama with biases on every projection.
const BIASED: Case = Case { dense: "LlamaForCausalLM", ..CUT };
/// Phi-3, with q, k and v in one projection, and gate and up in another.
const FUSED: Case = Case { dense: "Phi3ForCausalLM", ..CUT };

/// Layout of ranks: their number, `tp`, `dpShard` and `sp`.
pub(super) type TpLayout = (usize, usize, usize, usize);

fn on_layout<T: Send>((size, tp, _, sp): TpLayout, body: impl Fn(&Ranks) -> T + Sync) -> Vec<T> {
    match size {
        1 => vec![body(&Ranks::alone())],
        _ => on_ranks(size, |ranks| {
            body(&ranks.with_tensor_parallel(tp).unwrap().with_sequence_parallel(sp).unwrap())
        }),
    }
}

/// Checks that two trainings agree. In every layer, products over shards are summed in another order than
/// full products, which differ by a few roundings. One weight in hundreds has a gradient near zero, by which
/// the optimizer divides in its step of 0.01, so from the second update on all values differ more, as with
/// FSDP alone.
#[track_caller]
fn assert_equal(case: Case, layout: TpLayout, alone: &[f64], cut: &[f64]) {
    let pairs = alone.iter().zip(cut);
    let differences: Vec<f64> = pairs.map(|(one, other)| (one - other).abs() / one.abs().max(1.0)).collect();
    assert_eq!(alone.len(), cut.len());
    let largest = differences.iter().copied().fold(0.0, f64::max);
    let num_enlarged = differences.iter().filter(|difference| **difference >= TOLERANCE).count();
    let is_rare = num_enlarged <= alone.len() / 500;
    assert!(largest < 1e-3 && is_rare, "{case:?} on {layout:?}: {largest}, {num_enlarged} numbers");
    // Loss, gradient norm and log-probs of the first update, and of the four after it.
    let largest_of =
        |reported: std::ops::Range<usize>| differences[reported].iter().copied().fold(0.0, f64::max);
    let (first, others) = (largest_of(0..NUM_REPORTED), largest_of(NUM_REPORTED..5 * NUM_REPORTED));
    assert!(first < 2e-6 && others < 5e-5, "{case:?} on {layout:?}: {first} {others}");
}

/// Number of compared values of an update: log-probs of 19 predicted tokens of five sequences, loss, and
/// gradient norm.
const NUM_REPORTED: usize = 21;

#[track_caller]
fn assert_trains_as_one(case: Case, layouts: &[TpLayout]) {
    let alone = train(case, &Ranks::alone(), 1);
    for layout in layouts {
        let all = on_layout(*layout, |ranks| train(case, ranks, layout.2));
        assert!(all.iter().all(|numbers| numbers == &all[0]), "ranks differ on {layout:?}");
        assert_equal(case, *layout, &alone, &all[0]);
    }
}

#[test]
fn ranks_with_shards_of_every_weight_train_as_one_rank_with_fsdp_and_sequence_parallelism() {
    assert_trains_as_one(CUT, &[(2, 2, 1, 1), (4, 2, 2, 1), (4, 2, 1, 2), (4, 2, 1, 1)]);
    assert_trains_as_one(Case { kv_heads: 4, ..CUT }, &[(4, 4, 1, 1)]);
}

#[test]
fn a_rank_loads_as_many_numbers_as_are_planned() {
    for case in [CUT, BIASED, FUSED, Case { tied: true, ..CUT }] {
        let kept = on_layout((2, 2, 1, 1), |ranks| {
            let actor = actor(case, ranks, 1);
            let local_shards = actor.learner.shards().unwrap().local_shards();
            local_shards.iter().map(|(_, local_shard)| local_shard.numel() as u64).sum::<u64>()
        });
        // The first rank has six of 11 tokens of the vocabulary, one more than the second.
        assert_eq!(kept[0], config(case).parameter_count_of_rank(2).total(), "{case:?}");
        assert!(kept[1] < kept[0], "{case:?}");
    }
}

#[test]
fn recomputed_layers_and_tied_weights_train_as_on_one_rank() {
    let tied = Case { tied: true, activation_checkpointing: true, ..CUT };
    assert_trains_as_one(tied, &[(2, 2, 1, 1), (4, 2, 2, 1)]);
}

#[test]
fn biases_are_sharded_with_their_rows_or_added_once() {
    assert_trains_as_one(BIASED, &[(2, 2, 1, 1), (4, 2, 2, 1)]);
    assert_trains_as_one(Case { lora: true, ..BIASED }, &[(2, 2, 1, 1)]);
}

#[test]
fn fused_projections_are_sharded_part_by_part() {
    assert_trains_as_one(FUSED, &[(2, 2, 1, 1), (4, 2, 2, 1)]);
    assert_trains_as_one(Case { lora: true, ..FUSED }, &[(2, 2, 1, 1)]);
}

#[test]
fn adapters_and_modules_saved_with_them_train_as_on_one_rank() {
    let lora = Case { lora: true, ..CUT };
    assert_trains_as_one(lora, &[(2, 2, 1, 1), (4, 2, 2, 1), (4, 2, 1, 2)]);
    assert_trains_as_one(Case { saves: true, ..lora }, &[(2, 2, 1, 1), (4, 2, 2, 1)]);
    assert_trains_as_one(Case { saves: true, tied: true, ..lora }, &[(2, 2, 1, 1)]);
}

#[test]
fn layers_in_bf16_learn_as_on_one_rank() {
    let case = Case { compute: Kind::BFloat16, max_tokens: 64, ..CUT };
    let all = on_layout((2, 2, 1, 1), |ranks| train(case, ranks, 1));
    let alone = train(case, &Ranks::alone(), 1);
    // The first steps of AdamW depend on the sign of a gradient.
    assert!((alone[0] - all[0][0]).abs() < 5e-3, "{} {}", alone[0], all[0][0]);
    assert_eq!(all[0], all[1]);
}

#[test]
fn offload_changes_no_bit() {
    let case = Case { activation_checkpointing: true, ..CUT };
    let trained = |spec| {
        let folder = tempfile::tempdir().unwrap();
        on_layout((4, 2, 2, 1), |ranks| {
            train_actor(case, offloaded_actor(case, ranks, 2, spec, folder.path()))
        })
    };
    assert!(trained(ALL) == trained(NONE));
}

#[test]
fn a_critic_holds_the_shards_of_its_rank() {
    for (case, layout) in [(CUT, (4, 2, 2, 1)), (Case { lora: true, ..CUT }, (2, 2, 1, 1))] {
        let (alone, _) = learn(case, &Ranks::alone(), 1);
        for (numbers, _) in on_layout(layout, |ranks| learn(case, ranks, layout.2)) {
            let difference = largest_difference(&alone, &numbers);
            assert!(difference < TOLERANCE, "{case:?} on {layout:?}: {difference}");
        }
    }
}

pub(super) type State = BTreeMap<String, Tensor>;

fn state_of(actor: &mut Actor) -> State {
    let folder = tempfile::tempdir().unwrap();
    let state = actor.learner.train_state().tensors(folder.path()).unwrap();
    state.into_iter().map(|(name, tensor)| (name, tensor.detach().copy())).collect()
}

fn train_steps(actor: &mut Actor, case: Case, steps: std::ops::Range<u64>) {
    steps.for_each(|step| drop(update(actor, &batch(), &plan(case, step)).unwrap()));
}

/// Makes two updates, saves a checkpoint in `dir`, and makes two more. Returns the state at the checkpoint
/// and at the end.
pub(super) fn save(case: Case, layout: TpLayout, dir: &Path) -> [State; 2] {
    let ended = on_layout(layout, |ranks| {
        let (mut actor, all) = (actor(case, ranks, layout.2), ranks.world());
        train_steps(&mut actor, case, 0..2);
        let mut store = match all.is_leader() {
            true => CheckpointStore::open(dir, 1).unwrap(),
            false => CheckpointStore::follow(dir),
        };
        let mut writer = CheckpointWriter::prepare(&all, &store).unwrap();
        let saved = state_of(&mut actor);
        writer
            .begin(&all, &store, 2, json!({}), Some(actor.learner.train_state().checkpoint_shards().unwrap()))
            .unwrap();
        train_steps(&mut actor, case, 2..4);
        let settled = writer.settle(&all, &mut store, Wait::UntilWritten).unwrap();
        assert!(matches!(settled, Settled::Committed));
        [saved, state_of(&mut actor)]
    });
    ended.into_iter().next().unwrap()
}

/// Resumes from a checkpoint and makes two more updates. Returns the restored state and the state at the end.
pub(super) fn go_on(case: Case, layout: TpLayout, path: &Path) -> [State; 2] {
    let ended = on_layout(layout, |ranks| {
        let mut actor = actor(case, ranks, layout.2);
        actor.learner.train_state().restore(&Checkpoint::open(path).unwrap()).unwrap();
        let restored = state_of(&mut actor);
        train_steps(&mut actor, case, 2..4);
        [restored, state_of(&mut actor)]
    });
    ended.into_iter().next().unwrap()
}

#[test]
fn a_checkpoint_of_any_mesh_resumes_with_any_other_tp() {
    let one = (1, 1, 1, 1);
    let adapter = Case { lora: true, ..CUT };
    let heirs: &[TpLayout] = &[one, (2, 1, 2, 1), (4, 2, 1, 2)];
    for (case, from, heirs) in [
        (CUT, (4, 2, 2, 1), heirs),
        (CUT, one, &[(4, 2, 2, 1)]),
        (FUSED, (2, 2, 1, 1), &[one]),
        (adapter, (4, 2, 2, 1), &[one, (2, 2, 1, 1)]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let [saved, ended] = save(case, from, dir.path());
        let path = dir.path().join("step-000002");
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.manifest().files.len(), from.0 + 1, "a file of each rank, and the state");
        assert!(checkpoint.manifest().tensors.keys().eq(saved.keys()));
        for (name, tensor) in &saved {
            assert!(checkpoint.tensor(name).unwrap().equal(tensor), "{name} of {from:?}");
        }
        for heir in heirs {
            let [restored, went_on] = go_on(case, *heir, &path);
            assert_eq!(restored, saved, "{heir:?} from {from:?}");
            let difference = largest_difference(&numbers(ended.values()), &numbers(went_on.values()));
            assert!(difference < 2e-6, "{case:?}: {heir:?} from {from:?} differ by {difference}");
        }
    }
}

#[test]
fn ranks_read_or_draw_their_shards_of_the_weights_of_one_rank() {
    let lora = Case { lora: true, ..CUT };
    for case in [CUT, Case { tied: true, ..CUT }, BIASED, FUSED, lora, Case { saves: true, ..lora }] {
        let whole = decoder(case);
        let folder = tempfile::tempdir().unwrap();
        whole.export(folder.path(), &ExportOptions { merge_lora: false, dtype: Kind::Float }).unwrap();
        let whole = whole_parameters(DecoderUnits::from(&whole));
        let (drawn, read) = (Weights::random_init(&config(case), 7), Weights::open(folder.path()).unwrap());
        for (layout, weights) in [((2, 2, 1, 1), &drawn), ((4, 2, 2, 1), &read)] {
            let all = on_layout(layout, |ranks| {
                let meta = Decoder::meta(weights.config(), &options(case)).unwrap();
                let decoder = with_adapter(meta, case);
                let mesh = Rc::new(ranks.on_mesh(layout.2).unwrap());
                let shards = ShardedParameters::new(&decoder, mesh, None).unwrap();
                shards.read(weights).unwrap();
                shards.start_adapter(&decoder, |name| name).unwrap();
                whole_parameters(DecoderUnits::new(&decoder, Some(&shards)))
            });
            assert!(all.iter().all(|parameters| parameters == &whole), "{case:?} on {layout:?}");
        }
    }
}

#[test]
fn a_rank_reads_and_keeps_only_its_shard_of_a_weight() {
    let of_ranks = on_layout((2, 2, 1, 1), |ranks| {
        let actor = actor(CUT, ranks, 1);
        let mut read = BTreeMap::<String, Vec<std::ops::Range<usize>>>::new();
        let filled = actor.learner.shards().unwrap().load_shards(|shard: &TensorRun<'_>, _: &Tensor| {
            read.entry(shard.name.to_owned()).or_default().push(shard.range.clone());
            Ok::<(), RankError>(())
        });
        filled.unwrap();
        read
    });
    for (place, read) in of_ranks.iter().enumerate() {
        let one = |name: &str| match read[name].as_slice() {
            [one] => one.clone(),
            others => panic!("{name}: {others:?}"),
        };
        // Queries have 24 rows of 13 inputs; outputs have 13 rows of 24 columns.
        assert_eq!(one("model.layers.0.self_attn.q_proj.weight"), place * 12 * 13..(place + 1) * 12 * 13);
        let columns = |row: usize| row * 24 + place * 12..row * 24 + (place + 1) * 12;
        assert_eq!(read["model.layers.1.self_attn.o_proj.weight"], (0..13).map(columns).collect::<Vec<_>>());
        // The ranks have 6 and 5 of the 11 tokens.
        assert_eq!(one("lm_head.weight"), if place == 0 { 0..6 * 13 } else { 6 * 13..11 * 13 });
        assert_eq!(one("model.norm.weight"), 0..13);
    }
}

#[test]
fn gathered_weights_are_verified_and_freed_with_their_unit() {
    on_layout((2, 2, 1, 1), |ranks| {
        let actor = actor(CUT, ranks, 1);
        let shards = actor.learner.shards().unwrap();
        let digest =
            |tensor: &Tensor| Ok::<u64, RankError>(tensor.sum(Kind::Double).double_value(&[]).to_bits());
        let leaf = || {
            let is_it = |(name, _): &(String, Tensor)| name == "model.layers.0.mlp.down_proj.weight";
            actor.learner.decoder().named_parameters().into_iter().find(is_it).unwrap().1
        };
        let visited = shards.visit(WeightDtype::Master, |unit| {
            assert!(shards.matches_shards(unit, digest)?, "{unit:?}");
            if unit == FsdpUnit::Layer(0) {
                assert_eq!(leaf().size(), [13, 34]);
                // The value is in the columns of the second rank.
                tch::no_grad(|| drop(leaf().detach().get(3).get(20).fill_(0.25)));
                assert!(!shards.matches_shards(unit, digest)?, "a changed number of any rank is found");
            }
            Ok::<(), RankError>(())
        });
        visited.unwrap();
        assert_eq!(leaf().size(), [13, 17]);
    });
}

/// Runs a forward and backward pass over `tokens`.
fn pass(model: DecoderPass<'_>, tokens: &[u32], inputs_only: bool) {
    let input = PackedInput::new(&[tokens], model.decoder.device());
    let mut context = model.decoder.context(&input, Adapter::On);
    let keep = SaveOptions { inputs_only, embedding_gradient: true, offload_to: None };
    let tape = schedule::forward(model, &input, &mut context, keep).unwrap();
    model.begin_outer_gradient();
    let grad_td = tape.normed_td.ones_like();
    schedule::backward_through(model, tape, &context, &grad_td).unwrap();
    model.end_pass().unwrap();
    model.end_outer_gradient().unwrap();
}

/// A pass all-reduces the embeddings once, and in each of three layers two tensors forward and two backward,
/// of fp32 values for each token; recomputed layers repeat their forward all-reduces. Of two ranks, each
/// sends half of its summands and half of the sums.
#[test]
fn a_pass_exchanges_two_sums_a_layer_forward_and_two_backward() {
    const TOKENS: [u32; 8] = [3, 1, 4, 1, 5, 9, 2, 6];
    for (inputs_only, num_sums) in [(false, 1 + 3 * 4), (true, 1 + 3 * 6)] {
        let sent = on_layout((2, 2, 1, 1), |ranks| {
            let actor = actor(CUT, ranks, 1);
            let model = DecoderPass {
                decoder: actor.learner.decoder(),
                shards: actor.learner.shards(),
                sp_group: None,
            };
            let before = ranks.traffic();
            pass(model, &TOKENS, inputs_only);
            ranks.traffic().since(before).sent
        });
        assert_eq!(sent, [num_sums * 8 * 13 * 4; 2], "inputs only: {inputs_only}");
    }
}

/// The statistics of each predicted position are four fp32 values, and the gradient of its hidden state is
/// all-reduced.
#[test]
fn an_update_adds_statistics_and_the_gradient_of_hidden_states_to_the_sums_of_layers() {
    let case = Case { max_tokens: 64, ..CUT };
    let sent = on_layout((2, 2, 1, 1), |ranks| {
        let mut actor = actor(case, ranks, 1);
        let before = ranks.traffic();
        assert_eq!(update(&mut actor, &batch(), &plan(case, 0)).unwrap().updates.num_skipped, 0);
        ranks.traffic().since(before).sent
    });
    // The last tokens of the sequences of 6, 3, 5, 2 and 8 tokens are not computed.
    let (computed, predicted) = (19, 19);
    let layers = (1 + 3 * 4) * computed * 13 * 4;
    let head = predicted * (4 * 4 + 13 * 4);
    // The rest are gradients of the q and k norms, 6 values each in three layers, and a sum of squares.
    let expected = layers + head + 3 * 2 * 6 * 4 + 8;
    assert_eq!(sent, [expected; 2]);
}
