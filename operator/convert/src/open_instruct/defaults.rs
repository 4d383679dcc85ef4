//! Defaults of open-instruct's trainers, which apply if a script omits a setting.

/// Learning rate of every trainer.
pub(super) const LEARNING_RATE: f64 = 2e-5;

/// Defaults in which the trainers differ.
pub(super) struct Defaults {
    /// Fraction of the steps in which the learning rate rises.
    pub(super) warmup_ratio: f64,
    /// Whether gradients are clipped, at the norm 1.
    pub(super) clips: bool,
    /// Number of epochs of a data set with completions.
    pub(super) epochs: u64,
    /// Rows of one pass on one device.
    pub(super) rows_per_device: u64,
    /// Passes of one update.
    pub(super) passes: u64,
    /// Tokens of prompt and completion together; `None` means that rows of any length are learned.
    pub(super) max_tokens: Option<u64>,
}

/// Returns the defaults of a trainer, by the beginning of its name.
pub(super) fn of(trainer: &str) -> Defaults {
    let shared = Defaults {
        warmup_ratio: 0.1,
        clips: false,
        epochs: 1,
        rows_per_device: 8,
        passes: 1,
        max_tokens: Some(4096),
    };
    if trainer.starts_with("grpo") || trainer.starts_with("ppo") {
        Defaults { warmup_ratio: 0.0, clips: true, ..shared }
    } else if trainer.starts_with("finetune") {
        Defaults { warmup_ratio: 0.03, epochs: 2, max_tokens: None, ..shared }
    } else if trainer.starts_with("reward") {
        Defaults { warmup_ratio: 0.0, rows_per_device: 1, passes: 8, max_tokens: Some(512), ..shared }
    } else {
        shared
    }
}
