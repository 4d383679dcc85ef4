//! A vision tower that is trained with all other weights: gradients compared with transformers', rollout,
//! reference, export and several ranks.

use std::rc::Rc;

use rlt_decoder::{Adapter, Decoder, ExportOptions, LoadOptions, Weights};
use rlt_engine::{Engine, EngineOptions};
use rlt_parallel::{Ranks, ShardedParameters};
use rlt_trainer::roles::actor::Actor;
use rlt_trainer::roles::optim::{AdamW, AdamWOptions};
use rlt_trainer::roles::reference::{CopyOptions, FrozenPolicy};
use tch::{Kind, Tensor};

use super::fixture::{
    Fixture, MODELS, TOLERANCE, accumulate, actor, check_gradients, largest, on_ranks, options, sample, step,
    step_on,
};

const TRAINABLE: LoadOptions =
    LoadOptions { device: tch::Device::Cpu, param_dtype: Kind::Float, compute: Kind::Float, trainable: true };

fn trained(name: &str) -> Decoder {
    let mut decoder = Fixture::open(name).load();
    decoder.train_vision();
    decoder
}

/// An actor whose two ranks share the model, the tower included.
fn sharded(ranks: &Ranks, name: &str) -> Actor {
    let weights = Weights::open(&Fixture::open(name).dir).unwrap();
    let mut decoder = Decoder::meta(weights.config(), &TRAINABLE).unwrap();
    decoder.meta_vision();
    let shards = ShardedParameters::new(&decoder, Rc::new(ranks.on_mesh(2).unwrap()), None).unwrap();
    shards.read(&weights).unwrap();
    let optimizer = AdamW::new(shards.local_shards(), AdamWOptions::default()).unwrap();
    Actor::new(decoder, optimizer, options(true), ranks.clone()).with_shards(shards)
}

fn engine() -> Engine {
    Engine::new(EngineOptions { block_size: 4, ..EngineOptions::default() })
}

#[test]
fn gradients_of_the_whole_tower_are_those_of_transformers() {
    for name in MODELS {
        for (max_tokens, checkpointing) in [(usize::MAX, false), (usize::MAX, true), (90, true)] {
            let (fixture, actor) = (Fixture::open(name), actor(trained(name), checkpointing));
            let all = actor.learner.decoder().config.vision_tensors().len();
            let parameters = actor.learner.decoder().trainable_parameters();
            assert_eq!(parameters.iter().filter(|(name, _)| name.starts_with("visual.")).count(), all);
            let error = check_gradients(&fixture, &actor, &fixture.batch(), max_tokens);
            println!("{name}, {max_tokens} tokens: gradients {error:.1e}");
        }
    }
}

/// Graphs in 16 bits share casts of the weights or compute them again. Gradients equal those of 32 bits
/// except for rounding.
#[test]
fn casts_of_the_tower_and_images_that_are_computed_again_change_no_gradient() {
    for name in MODELS {
        let gradients = |compute: Kind, checkpointing: bool| {
            let options = LoadOptions { compute, ..TRAINABLE };
            let mut decoder = Decoder::load(&Fixture::open(name).dir, &options).unwrap();
            decoder.train_vision();
            let actor = actor(decoder, checkpointing);
            accumulate(&actor, &Fixture::open(name).batch(), usize::MAX);
            let of_tower = actor.learner.decoder().trainable_parameters().into_iter();
            of_tower.filter(|(name, _)| name.starts_with("visual.")).map(|(_, leaf)| leaf.grad()).collect()
        };
        let wide: Vec<Tensor> = gradients(Kind::Float, false);
        let [kept, again] = [false, true].map(|checkpointing| gradients(Kind::BFloat16, checkpointing));
        let norm = |tensors: &[Tensor]| {
            let squares = tensors.iter().map(|tensor| tensor.square().sum(Kind::Double).double_value(&[]));
            squares.sum::<f64>().sqrt()
        };
        let differences: Vec<Tensor> = kept.iter().zip(&wide).map(|(narrow, wide)| narrow - wide).collect();
        let error = norm(&differences) / norm(&wide);
        println!("{name}: gradients in bf16 differ by {error:.1e} of their norm");
        assert!(error < 0.2, "{name}: {error:.1e}");
        assert!(kept.iter().all(|gradient| gradient.kind() == Kind::Float));
        assert!(kept.iter().zip(&again).all(|(kept, again)| kept.equal(again)), "{name}");
    }
}

/// The engine samples with the tower after each update, and the reference scores with the tower before the
/// first.
#[test]
fn rollout_and_reference_have_the_towers_of_their_versions() {
    for name in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let mut actor = actor(trained(name), false);
        let (mut engine, fixture) = (engine(), Fixture::open(name));
        let reference = FrozenPolicy::copy_of(&actor, &CopyOptions::in_folder(folder.path(), false)).unwrap();
        let prompt = fixture.prompt(0);
        let mut seen = Vec::new();
        for version in 0..2 {
            engine.sync_weights(actor.learner.decoder(), version).unwrap();
            let (batch, rollout) = sample(&mut engine, actor.learner.decoder(), &prompt);
            let scores = actor.score(&batch, Adapter::On, usize::MAX).unwrap();
            let error = largest(&rollout, &scores.logprobs);
            assert!(error <= 5e-5, "{name}, version {version}: {error:.1e}");
            engine.sleep();
            step(&mut actor, name);
            seen.push(actor.learner.decoder().image_features(&prompt.images, Adapter::On));
        }
        assert!(!seen[0].equal(&seen[1]), "{name}: updates change the features");
        let scores = reference.score(&actor, &fixture.batch(), usize::MAX).unwrap();
        let error = largest(&scores.logprobs, &fixture.logprobs());
        assert!(error <= TOLERANCE, "{name}: the reference differs by {error:.1e}");
        reference.sync(&actor, 1.0).unwrap();
        let scores = reference.score(&actor, &fixture.batch(), usize::MAX).unwrap();
        let own = actor.score(&fixture.batch(), Adapter::On, usize::MAX).unwrap();
        let error = largest(&scores.logprobs, &own.logprobs);
        assert!(error <= 1e-6, "{name}: the reference that follows differs by {error:.1e}");
    }
}

#[test]
fn two_ranks_with_shards_train_and_sample_with_the_tower_of_one() {
    for name in MODELS {
        let alone = step(&mut actor(trained(name), false), name);
        let many = on_ranks(2, |ranks| {
            let folder = tempfile::tempdir().unwrap();
            let mut actor = sharded(&ranks, name);
            let reference =
                FrozenPolicy::copy_of(&actor, &CopyOptions::in_folder(folder.path(), false)).unwrap();
            let stepped = step(&mut actor, name);
            let mut engine = engine();
            engine.sync_weights(actor.learner.units(), 0).unwrap();
            let (batch, rollout) = sample(&mut engine, actor.learner.units(), &Fixture::open(name).prompt(0));
            let scores = actor.score(&batch, Adapter::On, usize::MAX).unwrap();
            let error = largest(&rollout, &scores.logprobs);
            assert!(error <= 5e-5, "{name}: rollout and actor differ by {error:.1e}");
            let fixture = Fixture::open(name);
            let scores = reference.score(&actor, &fixture.batch(), usize::MAX).unwrap();
            let error = largest(&scores.logprobs, &fixture.logprobs());
            assert!(error <= TOLERANCE, "{name}: the reference differs by {error:.1e}");
            reference.sync(&actor, 1.0).unwrap();
            let scores = reference.score(&actor, &fixture.batch(), usize::MAX).unwrap();
            let error = largest(&scores.logprobs, &stepped.1);
            assert!(error <= 1e-5, "{name}: the reference that follows differs by {error:.1e}");
            stepped
        });
        for (norm, logprobs) in many {
            let error = largest(&logprobs, &alone.1);
            println!("{name}: gradient norms {norm} and {}, log-probs differ by {error:.1e}", alone.0);
            assert!((norm - alone.0).abs() <= 1e-4 * alone.0 && error <= TOLERANCE, "{norm}, {error:.1e}");
        }
    }
}

/// An update without images gives the tower no gradient, but its optimizer has moments of earlier updates.
#[test]
fn an_update_without_images_moves_the_tower_alike_on_one_rank_and_on_two() {
    for name in MODELS {
        let steps = |mut actor: Actor| {
            let fixture = Fixture::open(name);
            step(&mut actor, name);
            step_on(&mut actor, &fixture.text_batch());
            actor.score(&fixture.batch(), Adapter::On, 200).unwrap().logprobs
        };
        let alone = steps(actor(trained(name), false));
        let replicated = on_ranks(2, |ranks| {
            let decoder = trained(name);
            let optimizer = AdamW::new(decoder.trainable_parameters(), AdamWOptions::default()).unwrap();
            steps(Actor::new(decoder, optimizer, options(false), ranks))
        });
        let sharded = on_ranks(2, |ranks| steps(sharded(&ranks, name)));
        for logprobs in replicated.into_iter().chain(sharded) {
            let error = largest(&logprobs, &alone);
            println!("{name}: log-probs differ by {error:.1e}");
            assert!(error <= 1e-3, "{name}: {error:.1e}");
        }
    }
}

#[test]
fn an_export_holds_the_tower_as_it_was_trained() {
    for name in MODELS {
        let mut actor = actor(trained(name), false);
        let (_, expected) = step(&mut actor, name);
        let folder = tempfile::tempdir().unwrap();
        let whole = ExportOptions { merge_lora: true, dtype: Kind::Float };
        actor.learner.decoder().export(folder.path(), &whole).unwrap();
        let again = Decoder::load(folder.path(), &TRAINABLE).unwrap();
        let images = Fixture::open(name).prompt(0).images.clone();
        let features = |decoder: &Decoder| decoder.image_features(&images, Adapter::On);
        assert!(features(&again).equal(&features(actor.learner.decoder())), "{name}");
        assert!(
            !features(&again).equal(&features(&Fixture::open(name).load())),
            "{name}: the tower is trained"
        );
        let again = super::fixture::actor(again, false);
        let scores = again.score(&Fixture::open(name).batch(), Adapter::On, 200).unwrap();
        assert!(largest(&scores.logprobs, &expected) <= 1e-6, "{name}");
    }
}
