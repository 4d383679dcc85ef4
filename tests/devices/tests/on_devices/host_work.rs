//! Host work of trainings other than the policy's. Copies between host and device and waits depend on neither
//! tokens nor layers, even if weights are offloaded or sharded over tensor-parallel ranks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use rlt_api::spec::{CriticSpec, OffloadSpec};
use rlt_core::batch::Batch;
use rlt_core::fixtures::{preference, varied_token};
use rlt_core::preferences::PreferenceExample;
use rlt_core::types::TokenId;
use rlt_decoder::{Adapter, Decoder, LoadOptions, Weights};
use rlt_models::OutputHead;
use rlt_parallel::{RankEnvironment, Ranks, ShardedParameters};
use rlt_torch::collectives::serve_store;
use rlt_trainer::roles::actor::update::{UpdatePlan, update};
use rlt_trainer::roles::actor::{Actor, ActorOptions};
use rlt_trainer::roles::critic::{Critic, CriticOptions};
use rlt_trainer::roles::objective::supervised_objective;
use rlt_trainer::roles::offload::Offload;
use rlt_trainer::roles::optim::AdamWOptions;
use rlt_trainer::roles::reference::{CopyOptions, FrozenPolicy};
use tch::Device;

use crate::asked::asked_by;
use crate::passes::{FEW, Groups, LARGE, MANY, VANILLA, batch, layered_config, plan};
use crate::process::{on_device, on_devices};

/// Copies to the device, copies from it, and waits.
type HostWork = [i64; 3];

/// Counts the host work of the second call of `work`; the first call loads libraries and kernels.
fn host_work(mut work: impl FnMut()) -> HostWork {
    work();
    let asked = asked_by(work).1;
    [asked.host_to_device, asked.device_to_host, asked.waits]
}

/// Checks that one layer with few tokens costs the host as much as three layers with many tokens. The host
/// does not wait if values were copied before it requests them.
#[track_caller]
fn assert_constant(name: &str, [few, many]: [HostWork; 2], max_waits: i64) {
    println!("{name}: {few:?} and {many:?}");
    assert_eq!(few[..2], many[..2], "{name}: copies");
    assert!(few[2].max(many[2]) <= max_waits, "{name}: waits {} and {}", few[2], many[2]);
}

/// Settings of a model's passes that the tests vary.
struct Setup<'a> {
    num_layers: usize,
    head: OutputHead,
    head_chunk_tokens: usize,
    offload: &'a Offload,
    ranks: Ranks,
    device: Device,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        static NONE: std::sync::LazyLock<Offload> = std::sync::LazyLock::new(Offload::default);
        Self {
            num_layers: 1,
            head: OutputHead::Vocabulary,
            head_chunk_tokens: LARGE,
            offload: &NONE,
            ranks: Ranks::alone(),
            device: Device::Cuda(0),
        }
    }
}

impl Setup<'_> {
    /// Makes the model as a run does: as FSDP units if it is sharded or offloaded.
    fn actor(self) -> Actor {
        let weights = Weights::random_init(&layered_config(self.num_layers).with_head(self.head), 3);
        let options = LoadOptions { device: self.device, trainable: true, ..LoadOptions::default() };
        let is_by_unit = self.ranks.tp_group().is_some() || self.offload.parameters().is_some();
        let decoder = match is_by_unit {
            true => Decoder::meta(weights.config(), &options).unwrap(),
            false => Decoder::from_weights(&weights, &options).unwrap(),
        };
        let shards = is_by_unit.then(|| {
            let mesh = Rc::new(self.ranks.on_mesh(1).unwrap());
            let shards = ShardedParameters::new(&decoder, mesh, self.offload.parameters()).unwrap();
            shards.read(&weights).unwrap();
            shards
        });
        let trained =
            shards.as_ref().map_or_else(|| decoder.trainable_parameters(), ShardedParameters::local_shards);
        let optimizer = self.offload.optimizer(trained, AdamWOptions::default()).unwrap();
        let options = ActorOptions {
            temperature: 0.9,
            head_chunk_tokens: self.head_chunk_tokens,
            activation_checkpointing: self.offload.activations().is_some(),
            max_grad_norm: 1.0,
        };
        let mut actor = Actor::new(decoder, optimizer, options, self.ranks);
        if let Some(shards) = shards {
            actor = actor.with_shards(shards);
        }
        match self.offload.activations() {
            Some(folder) => actor.with_offloaded_inputs(folder.to_owned()),
            None => actor,
        }
    }
}

/// Plan of an update of the policy in one micro-batch.
fn policy_plan() -> UpdatePlan {
    UpdatePlan { num_epochs: 1, ..plan(VANILLA, LARGE) }
}

/// Plan of an update from the derivatives of a loss with respect to each log-prob, as preference losses make
/// it.
fn gradient_plan() -> UpdatePlan {
    UpdatePlan { objective: supervised_objective(), ..policy_plan() }
}

/// Pairs of completions of different lengths.
fn pairs(num_pairs: usize) -> Vec<Arc<PreferenceExample>> {
    let tokens =
        |seed: usize, len: usize| -> Vec<TokenId> { (0..len).map(|idx| varied_token(seed, idx)).collect() };
    let pair = |idx: usize| {
        preference(&tokens(idx, 5 + idx), &[&tokens(idx + 40, 3 + 2 * idx), &tokens(idx + 80, 9)])
    };
    (0..num_pairs).map(pair).collect()
}

/// Numbers of layers and of pairs: few and many.
const PAIRS: [(usize, usize); 2] = [(1, 2), (3, 7)];

#[test]
fn copies_and_waits_of_a_critic_depend_on_neither_tokens_nor_layers() {
    on_device("host_work::copies_and_waits_of_a_critic_depend_on_neither_tokens_nor_layers", || {
        let work = |num_layers, groups: Groups<'_>| {
            let actor = Setup { num_layers, ..Setup::default() }.actor();
            let critic = CriticSpec { learning_rate: 1e-3, warmup_steps: None, value_clip: 0.2 };
            let options = CriticOptions { critic, ..CriticOptions::default() };
            let mut critic = Critic::from_actor(&actor, None, options, Ranks::alone()).unwrap();
            let mut batch = batch(groups);
            batch.returns = Some(batch.advantages.clone());
            let values = host_work(|| {
                critic.values(&batch, LARGE).unwrap();
            });
            batch.values = Some(critic.values(&batch, LARGE).unwrap());
            let learning = host_work(|| {
                critic.learn(&batch, policy_plan().mini_batches()).unwrap();
            });
            [values, learning]
        };
        let ([few_values, few], [many_values, many]) = (work(1, FEW), work(3, MANY));
        assert_constant("values", [few_values, many_values], 1);
        assert_constant("updates of a critic", [few, many], 2);
    });
}

#[test]
fn copies_and_waits_of_a_preference_update_depend_on_neither_tokens_nor_layers() {
    on_device(
        "host_work::copies_and_waits_of_a_preference_update_depend_on_neither_tokens_nor_layers",
        || {
            let folder = tempfile::tempdir().unwrap();
            let work = |(num_layers, num_pairs)| {
                let mut actor = Setup { num_layers, ..Setup::default() }.actor();
                let copy_options = CopyOptions::in_folder(folder.path(), false);
                let reference = FrozenPolicy::copy_of(&actor, &copy_options).unwrap();
                let mut batch = Batch::from_preferences(&pairs(num_pairs));
                let score = |actor: &Actor, batch: &Batch| {
                    let score = || {
                        reference.score(actor, batch, LARGE).unwrap();
                    };
                    [
                        host_work(score),
                        host_work(|| {
                            actor.score(batch, Adapter::On, LARGE).unwrap();
                        }),
                    ]
                };
                let [by_reference, by_actor] = score(&actor, &batch);
                batch.advantages = (0..batch.rows.num_tokens()).map(|at| (at as f64).sin()).collect();
                let learning = host_work(|| {
                    update(&mut actor, &batch, &gradient_plan()).unwrap();
                });
                [by_reference, by_actor, learning]
            };
            let [few, many] = PAIRS.map(work);
            assert_constant("scores of the reference", [few[0], many[0]], 1);
            assert_constant("scores of the actor", [few[1], many[1]], 1);
            assert_constant("updates by preferences", [few[2], many[2]], 1);
        },
    );
}

#[test]
fn copies_and_waits_of_a_reward_model_depend_on_neither_tokens_nor_layers() {
    on_device("host_work::copies_and_waits_of_a_reward_model_depend_on_neither_tokens_nor_layers", || {
        let work = |(num_layers, num_pairs)| {
            let mut actor = Setup { num_layers, head: OutputHead::Sequence, ..Setup::default() }.actor();
            let batch = Batch::to_score(&pairs(num_pairs), None);
            let scores = host_work(|| {
                actor.labels::<1>(&batch, LARGE).unwrap();
            });
            let slopes = [batch.at_read_positions(&vec![0.3; 2 * num_pairs])];
            let mut learn = || {
                actor.update_by_label_gradient(&batch, &slopes, LARGE, 1e-4).unwrap();
            };
            [scores, host_work(&mut learn)]
        };
        let [few, many] = PAIRS.map(work);
        assert_constant("scores of a reward model", [few[0], many[0]], 1);
        assert_constant("updates of a reward model", [few[1], many[1]], 1);
    });
}

/// Offload copies each layer and each moment, so its copies grow with the layers, but not with the tokens.
#[test]
fn an_offloaded_update_costs_the_host_the_same_for_each_layer_and_any_tokens() {
    let name = "host_work::an_offloaded_update_costs_the_host_the_same_for_each_layer_and_any_tokens";
    on_device(name, || {
        let folder = tempfile::tempdir().unwrap();
        let all = OffloadSpec { parameters: true, optimizer: true, activations: true };
        let offload = Offload::new(all, folder.path());
        let work = |num_layers, groups: Groups<'_>| {
            let mut actor = Setup { num_layers, offload: &offload, ..Setup::default() }.actor();
            let batch = batch(groups);
            host_work(|| {
                update(&mut actor, &batch, &policy_plan()).unwrap();
            })
        };
        let by_layers = [2, 3, 4].map(|num_layers| work(num_layers, FEW));
        println!("offloaded: {by_layers:?}");
        assert_eq!(by_layers[1], work(3, MANY), "tokens");
        for kind in 0..by_layers[0].len() {
            let [two, three, four] = by_layers.map(|work| work[kind]);
            assert_eq!(three - two, four - three, "layers: {by_layers:?}");
        }
    });
}

/// Runs `body` on two ranks, each a thread with its own device. It gets its ranks and a barrier for both.
fn on_two_ranks<T: Send>(body: impl Fn(Ranks, &Barrier) -> T + Sync) -> [T; 2] {
    let store = serve_store(0, 1, 2).unwrap();
    let environment = |rank| RankEnvironment {
        rank,
        world_size: 2,
        local_world_size: 2,
        master_address: "localhost".into(),
        master_port: store.port(),
        attempt: 1,
        key: None,
    };
    let barrier = Barrier::new(2);
    let run = |rank| {
        let ranks = Ranks::join(&environment(rank), Duration::from_secs(60)).unwrap();
        let ranks = ranks.with_tensor_parallel(2).unwrap();
        // A panic must end the process, because the other rank would wait at the barrier forever.
        catch_unwind(AssertUnwindSafe(|| body(ranks, &barrier))).unwrap_or_else(|_| std::process::exit(101))
    };
    thread::scope(|scope| {
        let run = &run;
        [0, 1].map(|rank| scope.spawn(move || run(rank))).map(|rank| rank.join().unwrap())
    })
}

/// Counts the host work of scoring and of an update. The head computes chunks of `head_chunk_tokens` tokens,
/// on one rank or on two tensor-parallel ranks together.
fn work_of_head(
    num_layers: usize,
    head_chunk_tokens: usize,
    groups: Groups<'_>,
    num_ranks: usize,
) -> [HostWork; 2] {
    let run = |ranks: Ranks, device, wait: &dyn Fn()| {
        let mut actor = Setup { num_layers, head_chunk_tokens, ranks, device, ..Setup::default() }.actor();
        let batch = batch(groups);
        // When the counts are read, all ranks have ended the previous call, and none has begun the next one.
        let counted = |work: &mut dyn FnMut()| {
            work();
            wait();
            let asked = asked_by(|| {
                wait();
                work();
                wait();
            });
            wait();
            [asked.1.host_to_device, asked.1.device_to_host, asked.1.waits]
        };
        let scoring = counted(&mut || {
            actor.score(&batch, Adapter::On, LARGE).unwrap();
        });
        let learning = counted(&mut || {
            update(&mut actor, &batch, &policy_plan()).unwrap();
        });
        [scoring, learning]
    };
    if num_ranks == 1 {
        return run(Ranks::alone(), Device::Cuda(0), &|| ());
    }
    let of_ranks = on_two_ranks(|ranks, barrier| {
        let device = Device::Cuda(ranks.tp_group().unwrap().place().index);
        run(ranks, device, &|| {
            barrier.wait();
        })
    });
    of_ranks[0]
}

/// The loss of each chunk takes one copy in each direction on each rank. Statistics that went through the
/// host would add copies.
#[test]
fn a_sharded_head_copies_for_each_chunk_what_the_full_head_copies() {
    on_devices("host_work::a_sharded_head_copies_for_each_chunk_what_the_full_head_copies", 2, &[], || {
        let chunk = |num_ranks| {
            let [whole, chunked] = [LARGE, 16].map(|tokens| work_of_head(1, tokens, FEW, num_ranks));
            println!("{num_ranks} ranks: {whole:?} and {chunked:?}");
            [0, 1].map(|pass| [0, 1].map(|kind| chunked[pass][kind] - whole[pass][kind]))
        };
        let (alone, sharded) = (chunk(1), chunk(2));
        assert_eq!(alone[0], [0, 0], "scoring copies once for all chunks");
        // 60 tokens are four chunks of 16.
        assert_eq!(alone[1], [3, 3], "an update copies for the loss of each chunk");
        assert_eq!(sharded, alone.map(|pass| pass.map(|copies| 2 * copies)));
    });
}

#[test]
fn copies_and_waits_of_tensor_parallel_ranks_depend_on_neither_tokens_nor_layers() {
    on_devices(
        "host_work::copies_and_waits_of_tensor_parallel_ranks_depend_on_neither_tokens_nor_layers",
        2,
        &[],
        || {
            let [few, many] =
                [(1, FEW), (3, MANY)].map(|(num_layers, groups)| work_of_head(num_layers, LARGE, groups, 2));
            assert_constant("scores of two ranks", [few[0], many[0]], 2);
            assert_constant("updates of two ranks", [few[1], many[1]], 4);
        },
    );
}
