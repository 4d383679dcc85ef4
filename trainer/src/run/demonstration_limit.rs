//! The maximum length of demonstrations, which decides which rows are trained.
//!
//! A demonstration has to fit into a micro-batch and into the model's context; `data.overlongPrompts` applies
//! to longer ones. The token budget of a micro-batch is otherwise a matter of memory, so a continuation may
//! change it ([`super::identity`]). Checkpoints therefore contain the limit, and a run that continues with
//! another limit is refused if any row that it trains would be left out, read or cut differently.

use std::sync::Arc;

use rlt_api::resolved::ResolvedSpec;
use rlt_data::{Demonstration, DemonstrationLoader, LoaderState};
use serde::{Deserialize, Serialize};

/// Maximum length of a demonstration, with the fields from which it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DemonstrationLimit {
    /// Value of `training.maxTokensPerMicroBatch`.
    max_tokens_per_micro_batch: u32,
    /// Value of `workers.mesh.sp`.
    sp: u32,
    /// Maximum number of tokens: the product of both, or the model's context where that is less.
    max_tokens: u64,
}

/// A run continues with another limit, under which it would train other rows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the checkpoint was trained on other demonstrations: {}, so a demonstration may have {} tokens, not {}, and {}; \
     {}start a new run: --overwrite, another run folder, or another spec.checkpoint.resumeFrom",
    changed_fields(earlier, now), now.max_tokens, earlier.max_tokens, effect(*num_rows), way_back(earlier, now)
)]
pub struct OtherDemonstrations {
    earlier: DemonstrationLimit,
    now: DemonstrationLimit,
    /// Number of rows that would be trained differently; `None` for streamed rows, whose lengths are not
    /// known before they are read.
    num_rows: Option<u64>,
}

impl DemonstrationLimit {
    /// Creates the limit of a job whose demonstrations have at most `max_tokens` tokens.
    pub(crate) fn new(spec: &ResolvedSpec, max_tokens: usize) -> Self {
        Self {
            max_tokens_per_micro_batch: spec.training.max_tokens_per_micro_batch,
            sp: spec.workers.mesh.sp,
            max_tokens: max_tokens as u64,
        }
    }

    /// Checks that `loader`, whose rows were read with this limit, has the rows of a checkpoint that was
    /// saved with the limit `earlier` at the position `saved`.
    ///
    /// Other data are left to [`DemonstrationLoader::resume`], which compares digests.
    pub(crate) fn check_continues(
        self,
        earlier: Self,
        loader: &DemonstrationLoader,
        saved: &LoaderState,
    ) -> Result<(), OtherDemonstrations> {
        if self.max_tokens == earlier.max_tokens || loader.state().data_digest != saved.data_digest {
            return Ok(());
        }
        let num_rows = loader.in_memory().map(|items| {
            let loaded = LoadedRows { lens: lengths(items), num_truncated: loader.num_truncated() };
            loaded.num_different(self.max_tokens, earlier.max_tokens, saved.num_items)
        });
        match num_rows {
            Some(0) => Ok(()),
            num_rows => Err(OtherDemonstrations { earlier, now: self, num_rows }),
        }
    }
}

/// Rows in memory, as they were read under a limit.
struct LoadedRows {
    /// Number of tokens of each row that was not left out.
    lens: Vec<u64>,
    /// Number of these rows that were truncated to the limit.
    num_truncated: u64,
}

impl LoadedRows {
    /// Counts the rows that differ between the limits `now` and `earlier`. The rows in memory were read under
    /// `now`; `num_saved` rows were not left out under `earlier`.
    fn num_different(&self, now: u64, earlier: u64, num_saved: u64) -> u64 {
        if now > earlier {
            // Rows within the earlier limit are the same under both.
            return self.lens.iter().filter(|len| **len > earlier).count() as u64;
        }
        // Rows that are left out under the larger limit are left out under the smaller one, too.
        self.num_truncated + num_saved.saturating_sub(self.lens.len() as u64)
    }
}

fn lengths(items: &[Arc<Demonstration>]) -> Vec<u64> {
    items.iter().map(|item| item.tokens.len() as u64).collect()
}

/// Describes the fields that differ, with both values.
fn changed_fields(earlier: &DemonstrationLimit, now: &DemonstrationLimit) -> String {
    let fields = [
        (
            "spec.training.maxTokensPerMicroBatch",
            earlier.max_tokens_per_micro_batch,
            now.max_tokens_per_micro_batch,
        ),
        ("spec.workers.mesh.sp", earlier.sp, now.sp),
    ];
    let changed = fields.into_iter().filter(|(_, earlier, now)| earlier != now);
    let changed: Vec<String> =
        changed.map(|(field, earlier, now)| format!("{field} was {earlier} and is {now}")).collect();
    if changed.is_empty() { "the model's context was another".to_owned() } else { changed.join(", ") }
}

/// Describes what the other limit does to the rows.
fn effect(num_rows: Option<u64>) -> String {
    match num_rows {
        Some(num_rows) => format!("{num_rows} row(s) would be trained differently"),
        None => "rows are streamed, of which any may be trained differently".to_owned(),
    }
}

/// Returns how the earlier limit can be kept, as the beginning of a sentence; empty if its fields did not
/// change.
fn way_back(earlier: &DemonstrationLimit, now: &DemonstrationLimit) -> String {
    let product =
        |limit: &DemonstrationLimit| u64::from(limit.max_tokens_per_micro_batch) * u64::from(limit.sp);
    if product(earlier) == product(now) {
        return String::new();
    }
    let product = product(earlier);
    format!(
        "keep the product of spec.training.maxTokensPerMicroBatch and spec.workers.mesh.sp at {product}, such as by half \
         the budget with twice the sp, or "
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row before it is read.
    #[derive(Clone, Copy)]
    struct Row {
        num_tokens: u64,
        /// Whether the row is truncated, and not left out, if it is too long.
        is_truncated: bool,
    }

    impl Row {
        /// Returns the number of tokens that the row has under a limit; `None` if it is left out.
        fn len(self, limit: u64) -> Option<u64> {
            (self.num_tokens <= limit || self.is_truncated).then_some(self.num_tokens.min(limit))
        }
    }

    fn load(rows: &[Row], limit: u64) -> LoadedRows {
        LoadedRows {
            lens: rows.iter().filter_map(|row| row.len(limit)).collect(),
            num_truncated: rows.iter().filter(|row| row.is_truncated && row.num_tokens > limit).count()
                as u64,
        }
    }

    #[test]
    fn rows_that_another_limit_reads_differently_are_counted() {
        let kinds: [fn(usize) -> bool; 3] = [|_| false, |_| true, |idx| idx % 2 == 0];
        for is_truncated in kinds {
            let lens = [2, 2, 5, 7, 7, 8, 11, 30].into_iter().enumerate();
            let rows: Vec<Row> =
                lens.map(|(idx, num_tokens)| Row { num_tokens, is_truncated: is_truncated(idx) }).collect();
            for earlier in 1..=32 {
                let num_saved = load(&rows, earlier).lens.len() as u64;
                for now in (1..=32).filter(|now| *now != earlier) {
                    let expected = rows.iter().filter(|row| row.len(now) != row.len(earlier)).count() as u64;
                    let counted = load(&rows, now).num_different(now, earlier, num_saved);
                    assert_eq!(counted, expected, "from {earlier} to {now}");
                }
            }
        }
    }

    fn limit(max_tokens_per_micro_batch: u32, sp: u32, max_tokens: u64) -> DemonstrationLimit {
        DemonstrationLimit { max_tokens_per_micro_batch, sp, max_tokens }
    }

    #[test]
    fn a_refusal_names_the_changed_fields_both_limits_the_rows_and_the_way_out() {
        let text = |earlier, now, num_rows| OtherDemonstrations { earlier, now, num_rows }.to_string();
        let budget = text(limit(2048, 1, 2048), limit(1024, 1, 1024), Some(3));
        for words in [
            "spec.training.maxTokensPerMicroBatch was 2048 and is 1024,",
            "1024 tokens, not 2048",
            "3 row(s)",
            "at 2048",
            "--overwrite",
        ] {
            assert!(budget.contains(words), "{words} in {budget}");
        }
        assert!(!budget.contains("mesh.sp was"), "{budget}");
        let sp = text(limit(1024, 1, 1024), limit(1024, 4, 3000), None);
        for words in ["spec.workers.mesh.sp was 1 and is 4,", "3000 tokens, not 1024", "streamed", "at 1024"]
        {
            assert!(sp.contains(words), "{words} in {sp}");
        }
        assert!(!sp.contains("maxTokensPerMicroBatch was"), "{sp}");
        let context = text(limit(1024, 1, 512), limit(1024, 1, 1000), Some(1));
        assert!(context.contains("the model's context") && !context.contains("product"), "{context}");
    }
}
