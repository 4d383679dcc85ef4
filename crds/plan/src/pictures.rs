//! Pictures of a generated task: their number, and the number of tokens of each. Pixels are generated
//! elsewhere.

use rlt_api::resolved::ResolvedSpec;
use rlt_api::spec::{TaskKind, VisionSpec};
use rlt_models::VisionConfig;

/// Sizes of the pictures of a generated task.
pub(super) struct Pictures {
    /// Height and width of a picture in pixels.
    side: u32,
    /// Number of different pictures in both splits.
    pub(super) num_different: u64,
    /// Number of rows that are read: one picture can belong to a prompt and to a demonstration.
    pub(super) num_rows: u64,
}

impl Pictures {
    /// Returns the pictures of a job; `None` where its task generates none.
    pub(super) fn of(spec: &ResolvedSpec) -> Option<Self> {
        let task = spec.data.task.as_ref().filter(|task| task.kind == TaskKind::CountingPictures)?;
        let train = task.num_train_prompts(spec.data.max_train_prompts);
        let held_out = u64::from(task.num_held_out).min(spec.data.max_held_out_prompts.unwrap_or(u64::MAX));
        let algorithm = &spec.algorithm;
        let shows = algorithm.is_supervised() || algorithm.cold_start.is_some();
        Some(Self {
            side: task.pictures.unwrap_or_default().side(),
            num_different: train + held_out,
            num_rows: train * (u64::from(algorithm.samples()) + u64::from(shows)) + held_out,
        })
    }

    /// Returns the number of tokens of a picture.
    pub(super) fn num_tokens(&self, vision: &VisionConfig) -> u64 {
        let token_side = (vision.patch_size * vision.spatial_merge_size) as u32;
        u64::from(VisionSpec::tokens_of_square(self.side, token_side))
    }
}
