//! Files of rows: their formats, and the sets that they belong to.

pub(super) mod integers;
pub(super) mod jsonl;
pub(super) mod parquet;
pub(super) mod sets;
