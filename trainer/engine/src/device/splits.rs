//! The number of blocks that share the context of a row in paged attention, and their workspace.

use rlt_torch::cuda::{attention_splits, attention_workspace_bytes};

/// Sizes that determine the number of splits of a context. The number also depends on how many rows run: a
/// few rows with few splits would leave most multiprocessors idle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Splits {
    /// Number of query heads.
    pub(super) heads: usize,
    /// Number of KV heads.
    pub(super) kv_heads: usize,
    /// Width of a head in dimensions.
    pub(super) head_dim: usize,
    /// Number of multiprocessors of the device.
    pub(super) multiprocessors: usize,
}

impl Splits {
    /// Number of splits of a launch with `rows` rows.
    pub(super) fn of(self, rows: usize) -> usize {
        attention_splits(rows, self.kv_heads, self.multiprocessors)
    }

    /// Bytes of workspace for launches of at most `rows` rows. Fewer rows have more splits, so the maximum
    /// need not be at `rows`.
    pub(super) fn workspace_bytes(self, rows: usize) -> usize {
        let Self { heads, kv_heads, head_dim, .. } = self;
        let bytes = |rows| attention_workspace_bytes(rows, heads, kv_heads, head_dim, self.of(rows));
        (1..=rows.max(1)).map(bytes).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rows_of_a_rollout_split_their_contexts_over_all_multiprocessors() {
        let splits = Splits { heads: 12, kv_heads: 2, head_dim: 128, multiprocessors: 132 };
        for rows in 1..=256 {
            let blocks = rows * splits.kv_heads * splits.of(rows);
            assert!(blocks >= 132.min(64 * rows * splits.kv_heads), "{rows} rows occupy {blocks} blocks");
        }
        assert_eq!([1, 2, 64, 256].map(|rows| splits.of(rows)), [64, 64, 3, 1]);
    }

    #[test]
    fn a_workspace_suffices_for_every_smaller_number_of_rows() {
        for multiprocessors in [2, 132] {
            let splits = Splits { heads: 14, kv_heads: 2, head_dim: 64, multiprocessors };
            for most in [1, 3, 64, 200] {
                let bytes = splits.workspace_bytes(most);
                for rows in 1..=most {
                    let needed = attention_workspace_bytes(rows, 14, 2, 64, splits.of(rows));
                    assert!(needed <= bytes, "{rows} of {most} rows on {multiprocessors} multiprocessors");
                }
            }
        }
    }
}
