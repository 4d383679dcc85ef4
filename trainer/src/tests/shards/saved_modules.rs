//! Modules that are trained in full together with an adapter (`model.lora.modulesToSave`), in shards.

use super::*;

/// Returns the names of the saved modules; with tied weights the head is the embedding.
pub(super) fn names(case: Case) -> Vec<String> {
    let all = ["embed_tokens", "norm", "lm_head"].map(str::to_owned);
    if case.saves { all.to_vec() } else { Vec::new() }
}

#[test]
fn modules_that_are_saved_with_an_adapter_train_on_shards_as_on_the_whole() {
    let saves = Case { lora: true, saves: true, ..FULL };
    assert_trains_as_one(saves, &[(2, 2), (4, 2)], TOLERANCE);
    assert_trains_as_one(Case { tied: true, activation_checkpointing: true, ..saves }, &[(3, 3)], TOLERANCE);
    let folder = tempfile::tempdir().unwrap();
    let offloaded = offloaded_actor(saves, &Ranks::alone(), 1, ALL, folder.path());
    assert_eq!(train_actor(saves, offloaded), train(saves, &Ranks::alone(), 1));
}
