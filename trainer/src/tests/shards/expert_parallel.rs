//! Expert parallelism: training, checkpoints, weight sync and traffic of ranks with different experts,
//! compared with one rank that has all experts.

use std::collections::BTreeMap;

use rlt_decoder::{PackedInput, RouterObserver};
use rlt_layout::TensorRun;
use rlt_parallel::schedule::{self, DecoderPass, SaveOptions};

use super::saved::{Layout, Way, go_on, save};
use super::*;

/// Qwen3-MoE with a router loss.
const EXPERTS: Case = Case { experts: true, num_experts: 4, ..FULL };
/// DeepSeek-V3 with six routed experts and a shared one.
const SHARED: Case = Case { latent: true, ..FULL };

/// Returns the results of [`train`] on the ranks of `layout`, which must be equal on all ranks.
fn train_on_layout(case: Case, (size, dp_shard, sp): Layout) -> Vec<f64> {
    let mut all = on_ranks(size, |ranks| train(case, &ranks.with_sequence_parallel(sp).unwrap(), dp_shard));
    assert!(all.iter().all(|numbers| numbers == &all[0]), "ranks differ");
    all.swap_remove(0)
}

/// Tolerance of results whose sums have another order: the gradient of an expert is one product over the rows
/// of all ranks, where FSDP adds the products of ranks. Results differ by 2e-6, except for one weight with a
/// gradient near zero, which the optimizer divides by its own size: 4e-6 with FSDP alone, 1.3e-5 with expert
/// parallelism.
const TOLERANCE: f64 = 2e-5;

#[track_caller]
fn assert_trains_as_one(case: Case, layouts: &[(Layout, usize)]) {
    let alone = train(case, &Ranks::alone(), 1);
    for (layout, ep) in layouts {
        let numbers = train_on_layout(Case { ep: *ep, ..case }, *layout);
        let difference = largest_difference(&alone, &numbers);
        assert!(difference < TOLERANCE, "{case:?} on {layout:?} by {ep}: {difference}");
    }
}

#[test]
fn ranks_with_different_experts_train_as_one_rank_with_fsdp_and_sequence_parallelism() {
    let layouts = [((2, 2, 1), 2), ((2, 1, 2), 2), ((4, 2, 1), 2), ((4, 2, 2), 2), ((4, 4, 1), 4)];
    assert_trains_as_one(EXPERTS, &layouts);
}

/// libtorch's product rounds a row differently for other numbers of rows, and an expert gets the rows of all
/// ranks. Everything else is computed in the same order.
#[test]
fn log_probs_differ_from_those_of_ranks_with_all_experts_by_roundings_of_products() {
    let scored = |ep: usize| {
        let case = Case { ep, ..EXPERTS };
        on_ranks(2, |ranks| {
            actor(case, &ranks, 2).score(&batch(), Adapter::On, case.max_tokens).unwrap().logprobs
        })
    };
    let (distributed, all) = (scored(2), scored(1));
    assert_eq!(distributed[0], distributed[1], "ranks differ");
    let difference = largest_difference(&distributed[0], &all[0]);
    assert!(difference < 8.0 * f64::from(f32::EPSILON), "{difference}");
}

#[test]
fn layers_in_bf16_learn_as_with_all_experts() {
    let trained = |ep: usize| {
        let case = Case { ep, compute: Kind::BFloat16, max_tokens: 64, ..EXPERTS };
        on_ranks(2, |ranks| train(case, &ranks, 2)).swap_remove(0)
    };
    // The first steps of AdamW depend on the sign of a gradient.
    let (all, distributed) = (trained(1), trained(2));
    assert!((all[0] - distributed[0]).abs() < 1e-3, "{} {}", all[0], distributed[0]);
}

#[test]
fn recomputed_layers_exchange_rows_again() {
    let recomputed = Case { activation_checkpointing: true, ..EXPERTS };
    assert_trains_as_one(recomputed, &[((4, 4, 1), 2), ((2, 1, 2), 2)]);
}

#[test]
fn a_shared_expert_is_computed_on_the_rank_of_the_token() {
    assert_trains_as_one(SHARED, &[((2, 2, 1), 2), ((4, 2, 2), 2), ((3, 3, 1), 3)]);
}

#[test]
fn experts_with_biases_are_distributed_with_them() {
    let biased = Case { sinks: true, num_experts: 4, ..FULL };
    assert_trains_as_one(biased, &[((2, 2, 1), 2), ((4, 4, 1), 2)]);
}

#[test]
fn adapters_of_experts_and_routers_train_as_on_one_rank() {
    assert_trains_as_one(Case { lora: true, ..EXPERTS }, &[((2, 2, 1), 2), ((4, 2, 2), 2)]);
    assert_trains_as_one(Case { lora: true, ..SHARED }, &[((2, 2, 1), 2)]);
}

#[test]
fn an_offloaded_mixture_trains_like_one_on_the_device() {
    let case = Case { activation_checkpointing: true, ep: 2, ..EXPERTS };
    let trained = |spec| {
        let folder = tempfile::tempdir().unwrap();
        on_ranks(4, |ranks| train_actor(case, offloaded_actor(case, &ranks, 4, spec, folder.path())))
    };
    assert!(trained(ALL) == trained(NONE));
}

/// A critic with its own backbone, or with an adapter on the actor's, computes values by the experts of its
/// rank.
#[test]
fn a_critic_has_the_experts_of_its_rank() {
    for (case, layout) in [(EXPERTS, (2, 2, 1)), (Case { lora: true, ..EXPERTS }, (2, 1, 2))] {
        let values = |case: Case, ranks: &Ranks, dp_shard| {
            let actor = actor(case, ranks, dp_shard);
            numbers_of_critic(case, &actor)
        };
        let alone = values(case, &Ranks::alone(), 1);
        let (size, dp_shard, sp) = layout;
        let all = on_ranks(size, |ranks| {
            values(Case { ep: 2, ..case }, &ranks.with_sequence_parallel(sp).unwrap(), dp_shard)
        });
        for numbers in all {
            let difference = largest_difference(&alone, &numbers);
            assert!(difference < TOLERANCE, "{case:?} on {layout:?}: {difference}");
        }
    }
}

fn numbers_of_critic(case: Case, actor: &Actor) -> Vec<f64> {
    learn_beside(case, actor, Offload::default()).0
}

#[test]
fn a_checkpoint_of_distributed_experts_is_resumed_with_all_on_one_rank_and_back() {
    let adapter = Case { lora: true, ..EXPERTS };
    for (case, from, heirs) in [
        (EXPERTS, ((4, 2, 2), 2), &[((1, 1, 1), 1), ((2, 2, 1), 1), ((4, 4, 1), 4)][..]),
        (EXPERTS, ((1, 1, 1), 1), &[((2, 2, 1), 2), ((4, 2, 1), 2)]),
        (adapter, ((2, 2, 1), 2), &[((1, 1, 1), 1)]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let way = |(layout, ep): (Layout, usize)| Way { case: Case { ep, ..case }, layout, offload: NONE };
        let [saved, ended] = save(way(from), dir.path());
        for heir in heirs {
            let [restored, went_on] = go_on(way(*heir), &dir.path().join("step-000002"));
            assert_eq!(restored, saved, "{heir:?} from {from:?}");
            let difference = largest_difference(&numbers(ended.values()), &numbers(went_on.values()));
            assert!(difference < 1e-6, "{case:?}: {heir:?} from {from:?} differ by {difference}");
        }
    }
}

/// Returns the ranges that a rank reads of each tensor when it loads the model.
fn read_by(case: Case, ranks: &Ranks, dp_shard: usize) -> BTreeMap<String, Vec<std::ops::Range<usize>>> {
    let actor = actor(case, ranks, dp_shard);
    let mut read = BTreeMap::<String, Vec<_>>::new();
    let filled = actor.learner.shards().unwrap().load_shards(|shard: &TensorRun<'_>, _: &Tensor| {
        read.entry(shard.name.to_owned()).or_default().push(shard.range.clone());
        Ok::<(), RankError>(())
    });
    filled.unwrap();
    read
}

#[test]
fn a_rank_reads_and_keeps_the_weights_of_its_own_experts_alone() {
    let case = Case { ep: 2, ..EXPERTS };
    let of_ranks = on_ranks(4, |ranks| read_by(case, &ranks, 4));
    // Gate and up have 14 rows of 13 inputs for each expert.
    let (name, of_expert) = ("model.layers.0.mlp.experts.gate_up_proj", 14 * 13);
    for (rank, read) in of_ranks.iter().enumerate() {
        let own = rank % 2 * 2 * of_expert..(rank % 2 + 1) * 2 * of_expert;
        let num_read: usize = read[name].iter().map(std::ops::Range::len).sum();
        assert!(read[name].iter().all(|range| range.start >= own.start && range.end <= own.end), "{rank}");
        // Two ranks shard the same experts, in a buffer with the other tensors of experts.
        assert!(num_read <= own.len(), "rank {rank} has {num_read} numbers");
    }
    let all: usize = of_ranks.iter().flat_map(|read| &read[name]).map(std::ops::Range::len).sum();
    assert_eq!(all, 4 * of_expert, "every number is on one rank");
}

#[test]
fn gathered_experts_are_verified_and_freed_with_their_unit() {
    let case = Case { ep: 2, ..EXPERTS };
    on_ranks(2, |ranks| {
        let actor = actor(case, &ranks, 2);
        let shards = actor.learner.shards().unwrap();
        let digest =
            |tensor: &Tensor| Ok::<u64, RankError>(tensor.sum(Kind::Double).double_value(&[]).to_bits());
        let leaf = || {
            actor
                .learner
                .decoder()
                .named_parameters()
                .into_iter()
                .find(|(name, _)| name.ends_with("down_proj"))
        };
        let num_experts = || leaf().unwrap().1.size()[0];
        let visited = shards.visit(WeightDtype::Master, |unit| {
            assert!(shards.matches_shards(unit, digest)?, "{unit:?}");
            if unit == FsdpUnit::Layer(0) {
                assert_eq!(num_experts(), 4);
                let (_, changed) = leaf().unwrap();
                let last = changed.detach().get(3).copy();
                tch::no_grad(|| drop(changed.get(3).fill_(0.25)));
                assert!(!shards.matches_shards(unit, digest)?, "a changed expert of any rank is found");
                tch::no_grad(|| changed.get(3).copy_(&last));
            }
            Ok::<(), RankError>(())
        });
        visited.unwrap();
        assert_eq!(num_experts(), 2);
    });
}

/// Runs a forward and backward pass over `tokens`.
fn pass(model: DecoderPass<'_>, tokens: &[u32]) {
    let input = PackedInput::new(&[tokens], model.decoder.device());
    let mut context = model.decoder.context(&input, Adapter::On);
    let keep = SaveOptions { inputs_only: false, embedding_gradient: false, offload_to: None };
    let tape = schedule::forward(model, &input, &mut context, keep).unwrap();
    model.begin_outer_gradient();
    let grad_td = tape.normed_td.ones_like();
    schedule::backward_through(model, tape, &context, &grad_td).unwrap();
    model.end_pass().unwrap();
    model.end_outer_gradient().unwrap();
}

/// Counts the tokens that choose each expert, in all layers of a decoder with all experts.
fn choices(case: Case, tokens: &[u32]) -> Vec<f64> {
    let decoder = decoder(case);
    let input = PackedInput::new(&[tokens], decoder.device());
    let mut context = decoder.context(&input, Adapter::On);
    let weights_t = Tensor::ones([tokens.len() as i64], (Kind::Float, decoder.device()));
    context.router = Some(RouterObserver::counting(weights_t, case.num_experts));
    let model = DecoderPass { decoder: &decoder, shards: None, sp_group: None };
    let _ = schedule::infer(model, &input, &mut context).unwrap();
    context.router.unwrap().load().chosen
}

#[test]
fn each_row_is_sent_once_to_the_rank_of_its_expert_and_back_and_so_is_its_gradient() {
    const TOKENS: [&[u32]; 2] = [&[3, 1, 4, 1, 5, 9, 2], &[6, 5, 3]];
    let case = Case { ep: 2, ..EXPERTS };
    let sent = on_ranks(2, |ranks| {
        let actor = actor(case, &ranks, 2);
        let model =
            DecoderPass { decoder: actor.learner.decoder(), shards: actor.learner.shards(), sp_group: None };
        let measured = |run: &dyn Fn()| {
            let before = ranks.traffic();
            run();
            ranks.traffic().since(before)
        };
        // A pass without tokens exchanges only weights, gradients and the counts of rows.
        let without = measured(&|| model.join_forward_backward(false).unwrap());
        let with = measured(&|| pass(model, TOKENS[ranks.rank()]));
        (with.sent - without.sent, with.received - without.received)
    });
    // The first rank has experts 0 and 1.
    let for_other = [&choices(case, TOKENS[0])[2..], &choices(case, TOKENS[1])[..2]];
    let rows: f64 = for_other.iter().flat_map(|counts| counts.iter()).sum();
    // Each rank sends its rows and returns the outputs of the other's rows, then the same for gradients; a
    // row has 13 fp32 values.
    let expected = 2 * rows as u64 * 13 * 4;
    assert!(
        rows > 0.0 && sent == vec![(expected, expected); 2],
        "{sent:?}, expected {expected} for {rows} rows"
    );
}
