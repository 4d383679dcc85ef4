//! Every composition of FSDP, sequence, tensor and expert parallelism on up to eight ranks has the losses and
//! gradients of one rank in an update.

use super::tensor_parallel::{TpLayout, go_on, save};
use super::*;

/// Experts with a router loss and a gated shared expert. Two, four and eight ranks divide all sizes.
const MIXTURE: Case = Case { shared: true, experts: true, num_experts: 8, kv_heads: 8, ..FULL };
/// Adapters on every weight, with activation checkpointing.
const ADAPTED: Case = Case { lora: true, activation_checkpointing: true, ..MIXTURE };

/// Degrees of the parallel axes.
#[derive(Clone, Copy, Debug)]
struct Axes {
    dp_shard: usize,
    sp: usize,
    tp: usize,
    ep: usize,
}

/// Returns all combinations of degrees of `size` ranks.
fn compositions(size: usize) -> Vec<Axes> {
    let divisors = |number: usize| (1..=number).filter(move |divisor| number.is_multiple_of(*divisor));
    let mut all = Vec::new();
    for tp in divisors(size) {
        for sp in divisors(size / tp) {
            let dp_shard = size / tp / sp;
            all.extend(divisors(dp_shard * sp).map(|ep| Axes { dp_shard, sp, tp, ep }));
        }
    }
    all
}

/// Creates the model of `case`. The B matrices of its adapters are not zero, because A would have no
/// gradient.
fn mixture(case: Case) -> Decoder {
    let decoder = decoder(case);
    for (name, matrix) in decoder.trainable_parameters() {
        if name.contains(".lora_B.") {
            let values = Tensor::arange(matrix.numel() as i64, (Kind::Float, tch::Device::Cpu)).sin() * 0.1;
            tch::no_grad(|| matrix.detach().copy_(&values.view(matrix.size().as_slice())));
        }
    }
    decoder
}

/// Returns loss, gradient norm, log-probs and expert choices of an update, and on the leader the first
/// moments of all parameters, which are proportional to their gradients.
fn first_update(case: Case, ranks: &Ranks, dp_shard: usize) -> (Vec<f64>, Vec<f64>) {
    let degrees = (dp_shard, expert_parallel_degree(case, ranks));
    let actor = actor_with_offload(mixture(case), actor_options(case), ranks, degrees, &Offload::default());
    let mut actor = actor.with_router_loss(Some(0.5));
    let report = update(&mut actor, &batch(), &plan(case, 0)).unwrap();
    assert_eq!(report.updates.num_skipped, 0);
    let mut reported = vec![report.loss.pg_loss];
    reported.extend(report.updates.grad_norms);
    reported.extend(report.actor_logprobs);
    reported.extend(report.router_loads.iter().flat_map(|load| load.chosen.clone()));
    let folder = tempfile::tempdir().unwrap();
    let mut moments = actor.learner.train_state().tensors(folder.path()).unwrap();
    moments.retain(|(name, _)| name.ends_with(".exp_avg"));
    moments.sort_by(|(one, _), (other, _)| one.cmp(other));
    (reported, numbers(moments.iter().map(|(_, moment)| moment)))
}

/// Checks every composition of axes against one rank. Products over shards of a width are summed in another
/// order, so values of about 1 differ by a few roundings; moments are a tenth of a gradient that is clipped
/// to a norm of 1.
#[track_caller]
fn assert_every_composition_trains_as_one(case: Case, size: usize) {
    let (alone, gradients) = first_update(case, &Ranks::alone(), 1);
    assert!(gradients.iter().filter(|gradient| **gradient != 0.0).count() > gradients.len() / 2);
    for axes in compositions(size) {
        let Axes { dp_shard, sp, tp, ep } = axes;
        let all = on_ranks(size, |ranks| {
            let ranks = ranks.with_tensor_parallel(tp).unwrap().with_sequence_parallel(sp).unwrap();
            first_update(Case { ep, ..case }, &ranks, dp_shard)
        });
        assert!(all.iter().all(|(reported, _)| reported == &all[0].0), "ranks differ on {axes:?}");
        let reported = largest_difference(&alone, &all[0].0);
        let moments = largest_difference(&gradients, &all[0].1);
        assert!(reported < 5e-6 && moments < 1e-6, "{case:?} on {axes:?}: {reported}, gradients {moments}");
    }
}

#[test]
fn every_composition_of_axes_trains_as_one_rank() {
    assert_eq!(compositions(8).len(), 30, "products of four degrees, of which ep divides two");
    for size in [2, 4] {
        assert_every_composition_trains_as_one(MIXTURE, size);
        assert_every_composition_trains_as_one(ADAPTED, size);
    }
}

#[test]
fn every_composition_of_axes_of_eight_ranks_trains_all_weights_as_one_rank() {
    assert_every_composition_trains_as_one(MIXTURE, 8);
}

#[test]
fn every_composition_of_axes_of_eight_ranks_trains_adapters_as_one_rank() {
    assert_every_composition_trains_as_one(ADAPTED, 8);
}

/// Returns both models with `num_parts` heads and experts; their widths and vocabularies are multiples of it.
fn in_parts(num_parts: usize) -> [Case; 2] {
    [MIXTURE, ADAPTED].map(|case| Case { num_experts: num_parts, kv_heads: num_parts, ..case })
}

#[test]
fn every_composition_of_axes_of_three_and_six_ranks_trains_as_one_rank() {
    for case in in_parts(6) {
        assert_every_composition_trains_as_one(case, 3);
        assert_every_composition_trains_as_one(case, 6);
    }
}

/// A prime number of ranks allows FSDP, sequence or tensor parallelism alone, the first two also with expert
/// parallelism.
#[test]
fn every_composition_of_axes_of_five_and_seven_ranks_trains_as_one_rank() {
    for size in [5, 7] {
        for case in in_parts(size) {
            assert_every_composition_trains_as_one(case, size);
        }
    }
}

/// Every rank has half of the experts, and half of their width.
#[test]
fn ranks_read_their_shards_of_experts_and_gather_the_weights_of_one_rank() {
    let one = decoder(MIXTURE);
    let folder = tempfile::tempdir().unwrap();
    one.export(folder.path(), &ExportOptions { merge_lora: false, dtype: Kind::Float }).unwrap();
    let one = whole_parameters(DecoderUnits::from(&one));
    let (drawn, read) = (Weights::random_init(&config(MIXTURE), 7), Weights::open(folder.path()).unwrap());
    for weights in [&drawn, &read] {
        let all = on_ranks(4, |ranks| {
            let ranks = ranks.with_tensor_parallel(2).unwrap().with_expert_parallel(2);
            let decoder = Decoder::meta(weights.config(), &options(MIXTURE)).unwrap();
            let mesh = Rc::new(ranks.on_mesh(2).unwrap());
            let shards = ShardedParameters::new(&decoder, mesh, None).unwrap();
            shards.read(weights).unwrap();
            verify(&decoder, &shards);
            whole_parameters(DecoderUnits::new(&decoder, Some(&shards)))
        });
        assert!(all.iter().all(|parameters| parameters == &one));
    }
}

/// Checks that gathered weights match the shards of all ranks, and that a changed value of any rank is
/// detected.
fn verify(decoder: &Decoder, shards: &ShardedParameters) {
    let digest = |tensor: &Tensor| Ok::<u64, RankError>(tensor.sum(Kind::Double).double_value(&[]).to_bits());
    let down = || {
        let is_it = |(name, _): &(String, Tensor)| name == "model.layers.0.mlp.experts.down_proj";
        decoder.named_parameters().into_iter().find(is_it).unwrap().1
    };
    let visited = shards.visit(WeightDtype::Master, |unit| {
        assert!(shards.matches_shards(unit, digest)?, "{unit:?}");
        if unit == FsdpUnit::Layer(0) {
            assert_eq!(down().size(), [8, 12, 8]);
            // The value belongs to the last rank, which has the second half of the experts and of their
            // width.
            tch::no_grad(|| drop(down().detach().get(6).get(3).get(5).fill_(0.25)));
            assert!(!shards.matches_shards(unit, digest)?, "a changed number of any rank is found");
        }
        Ok::<(), RankError>(())
    });
    visited.unwrap();
    assert_eq!(down().size(), [4, 12, 4]);
}

#[test]
fn a_checkpoint_of_sharded_experts_is_read_by_any_other_composition() {
    let by_both: TpLayout = (4, 2, 2, 1);
    let with_ep = |case: Case, ep: usize| Case { ep, ..case };
    for case in [MIXTURE, ADAPTED] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("step-000002");
        let [saved, _] = save(with_ep(case, 2), by_both, dir.path());
        for (heir, ep) in [((1, 1, 1, 1), 1), ((2, 2, 1, 1), 1), ((2, 1, 2, 1), 2), ((4, 2, 2, 1), 1)] {
            let [restored, _] = go_on(with_ep(case, ep), heir, &path);
            assert_eq!(restored, saved, "{heir:?} by {ep}");
        }
        let dir = tempfile::tempdir().unwrap();
        let [saved, _] = save(case, (1, 1, 1, 1), dir.path());
        let [restored, _] = go_on(with_ep(case, 2), by_both, &dir.path().join("step-000002"));
        assert_eq!(restored, saved, "from one rank");
    }
}
