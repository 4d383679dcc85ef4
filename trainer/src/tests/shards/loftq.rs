//! Ranks divide the decompositions with which LoftQ initializes an adapter.

use super::*;

/// Returns the adapter that LoftQ initializes, unsharded, by parameter name.
fn started(ranks: &Ranks, dp_shard: usize, offload: OffloadSpec, folder: &Path) -> BTreeMap<String, Tensor> {
    let weights = weights(QUANTIZED);
    let lora = LoraSpec { rank: 3, init: LoraInit::Loftq, ..LoraSpec::default() };
    let mut decoder = Decoder::from_weights(&weights, &options(QUANTIZED)).unwrap();
    decoder.attach_lora_spec(&lora, 3).unwrap();
    let offload = Offload::new(offload, folder);
    let mut actor = actor_with_offload(decoder, actor_options(QUANTIZED), ranks, (dp_shard, 1), &offload);
    actor.start_from_error::<Box<dyn std::error::Error>>(&weights).unwrap();
    trained_parameters(&actor)
}

/// Computes the product B A of every module, because the signs of B and A are arbitrary.
fn products(adapter: &BTreeMap<String, Tensor>) -> Vec<f64> {
    let products = adapter.iter().filter_map(|(name, a)| {
        let b = adapter.get(&name.replace("lora_A", "lora_B")).filter(|_| name.contains("lora_A"))?;
        Some(b.matmul(a))
    });
    numbers(&products.collect::<Vec<_>>())
}

#[test]
fn any_number_of_ranks_starts_loftq_as_one_does() {
    let folder = tempfile::tempdir().unwrap();
    let alone = products(&started(&Ranks::alone(), 1, NONE, folder.path()));
    assert!(alone.iter().any(|number| number.abs() > 1e-4));
    for (size, dp_shard, offload) in [(1, 1, ALL), (2, 1, NONE), (2, 2, NONE), (3, 3, ALL), (4, 2, NONE)] {
        let of_ranks = on_ranks(size, |ranks| started(&ranks, dp_shard, offload, folder.path()));
        let layout = format!("{size} ranks in shards of {dp_shard}, offload {offload:?}");
        assert!(of_ranks.iter().all(|own| own == &of_ranks[0]), "{layout}: the ranks differ");
        let difference = largest_difference(&products(&of_ranks[0]), &alone);
        assert!(difference < 1e-6, "{layout}: differs by {difference}");
    }
}
