//! A synced reference has the same values unsharded or sharded, in memory, in a file or offloaded.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use rlt_decoder::{Decoder, LoadOptions};
use rlt_models::ModelConfig;
use rlt_parallel::{DecoderUnits, RankError, Ranks, copy_tensor_run};
use tch::{Kind, Tensor, no_grad};

use crate::roles::actor::{Actor, ActorOptions};
use crate::roles::reference::{CopyOptions, FrozenPolicy};
use crate::tests::{actor_on_mesh, on_ranks, whole_parameters};

const ALPHA: f64 = 0.3;

/// Creates a decoder of two layers whose parameter counts the ranks of the tests do not divide evenly.
fn decoder(seed: u64, compute: Kind) -> Decoder {
    let config = ModelConfig::from_json(&serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 11, "hidden_size": 13, "intermediate_size": 17,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6,
        "max_position_embeddings": 32, "initializer_range": 0.3, "tie_word_embeddings": false,
    }));
    let options = LoadOptions { trainable: true, compute, ..LoadOptions::default() };
    Decoder::from_config(&config.unwrap(), seed, &options).unwrap()
}

fn actor(seed: u64, compute: Kind, ranks: &Ranks, dp_shard: usize) -> Actor {
    let options = ActorOptions {
        temperature: 1.0,
        head_chunk_tokens: 2,
        activation_checkpointing: false,
        max_grad_norm: 1.0,
    };
    actor_on_mesh(decoder(seed, compute), options, ranks, dp_shard)
}

/// Gives an actor other weights, as an update would.
fn overwrite(actor: &Actor, with: &Decoder) {
    let with: BTreeMap<String, Tensor> = with.named_parameters().into_iter().collect();
    match actor.learner.shards() {
        Some(shards) => shards.load_shards(|tensor_run, values| {
            copy_tensor_run(tensor_run, &with[tensor_run.name], values);
            Ok::<(), RankError>(())
        }),
        None => {
            let own = actor.learner.decoder().named_parameters();
            no_grad(|| own.into_iter().for_each(|(name, mut own)| own.copy_(&with[&name])));
            Ok(())
        }
    }
    .unwrap();
}

fn bits(parameters: &BTreeMap<String, Tensor>) -> BTreeMap<String, Vec<u32>> {
    let of = |tensor: &Tensor| {
        assert_eq!(tensor.kind(), Kind::Float, "it is kept in fp32");
        let flat = tensor.detach().reshape([-1]);
        rlt_torch::f32_slice(&flat).unwrap().iter().map(|number| number.to_bits()).collect()
    };
    parameters.iter().map(|(name, tensor)| (name.clone(), of(tensor))).collect()
}

fn weights(reference: &FrozenPolicy) -> BTreeMap<String, Vec<u32>> {
    bits(&whole_parameters(DecoderUnits::new(reference.decoder(), reference.shards())))
}

/// Computes the expected weights of a reference of one model that is synced to the other.
fn expected(compute: Kind) -> BTreeMap<String, Vec<u32>> {
    let of = |seed| decoder(seed, compute).named_parameters();
    let mix = |((name, own), (_, theirs)): ((String, Tensor), (String, Tensor))| {
        (name, theirs.detach() * ALPHA + own.detach() * (1.0 - ALPHA))
    };
    bits(&of(7).into_iter().zip(of(8)).map(mix).collect())
}

/// Storage of a reference.
#[derive(Clone, Copy, Debug)]
struct Keeping {
    dp_shard: usize,
    /// FSDP degree of the reference's own mesh; `None` for the actor's mesh.
    own_dp_shard: Option<usize>,
    is_offloaded: bool,
    compute: Kind,
}

/// Returns the weights after one sync with `ALPHA`, read back from their storage, and after a full sync with
/// the actor.
fn follow(keeping: Keeping, ranks: &Ranks, folder: &Path) -> [BTreeMap<String, Vec<u32>>; 2] {
    let Keeping { dp_shard, own_dp_shard, is_offloaded, compute } = keeping;
    let mesh = own_dp_shard.map(|degree| Rc::new(ranks.on_mesh(degree).unwrap()));
    let copy_options =
        CopyOptions { keeps_master: true, mesh, ..CopyOptions::in_folder(folder, is_offloaded) };
    let followed = actor(7, compute, ranks, dp_shard);
    let reference = FrozenPolicy::copy_of(&followed, &copy_options).unwrap();
    overwrite(&followed, &decoder(8, compute));
    reference.sync(&followed, ALPHA).unwrap();
    reference.release_pages();
    let mixed = weights(&reference);
    reference.sync(&followed, 1.0).unwrap();
    assert_eq!(bits(&whole_parameters(followed.learner.units())), weights(&reference));
    [mixed, weights(&reference)]
}

#[test]
fn a_synced_reference_is_the_mixture_bit_for_bit_in_any_storage() {
    let whole = Keeping { dp_shard: 1, own_dp_shard: None, is_offloaded: false, compute: Kind::Float };
    let sharded = Keeping { dp_shard: 2, ..whole };
    let folder = tempfile::tempdir().unwrap();
    // The reference stays in memory if no file can be created.
    let nowhere = folder.path().join("nowhere");
    for compute in [Kind::Float, Kind::BFloat16] {
        let expected = expected(compute);
        for (size, keeping, folder) in [
            (1, whole, folder.path()),
            (1, whole, nowhere.as_path()),
            (2, whole, folder.path()),
            (2, sharded, folder.path()),
            (2, sharded, nowhere.as_path()),
            (2, Keeping { is_offloaded: true, ..sharded }, folder.path()),
            (4, Keeping { own_dp_shard: Some(4), ..sharded }, folder.path()),
        ] {
            let keeping = Keeping { compute, ..keeping };
            for [mixed, _] in on_ranks(size, |ranks| follow(keeping, &ranks, folder)) {
                assert_eq!(mixed, expected, "{size} ranks, {keeping:?}, {}", folder.display());
            }
        }
    }
}
