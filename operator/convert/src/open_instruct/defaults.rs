//! Defaults of open-instruct's trainers, which apply if a script omits a setting.

/// Learning rate of every trainer but `olmo_core_finetune`.
pub(super) const LEARNING_RATE: f64 = 2e-5;
/// Weight decay of PyTorch's AdamW, which holds where a trainer passes none.
pub(super) const TORCH_WEIGHT_DECAY: f64 = 0.01;
/// Epsilon of AdamW in this project, and in PyTorch.
pub(super) const EPSILON: f64 = 1e-8;

/// Defaults in which the trainers differ.
pub(super) struct Defaults {
    /// Peak learning rate.
    pub(super) learning_rate: f64,
    /// Decay rates of AdamW's means; `None` means 0.9 and 0.999, as in this project.
    pub(super) betas: Option<[f64; 2]>,
    /// Weight decay of AdamW.
    pub(super) weight_decay: f64,
    /// Epsilon of AdamW.
    pub(super) epsilon: f64,
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
        learning_rate: LEARNING_RATE,
        betas: None,
        weight_decay: 0.0,
        epsilon: EPSILON,
        warmup_ratio: 0.1,
        clips: false,
        epochs: 1,
        rows_per_device: 8,
        passes: 1,
        max_tokens: Some(4096),
    };
    if trainer.starts_with("grpo") {
        Defaults { warmup_ratio: 0.0, clips: true, ..shared }
    } else if trainer.starts_with("ppo") {
        Defaults { weight_decay: TORCH_WEIGHT_DECAY, warmup_ratio: 0.0, clips: true, ..shared }
    } else if trainer.starts_with("finetune") {
        Defaults { warmup_ratio: 0.03, epochs: 2, max_tokens: None, ..shared }
    } else if trainer.starts_with("dpo") {
        Defaults { max_tokens: None, ..shared }
    } else if trainer.starts_with("olmo_core_finetune") {
        let betas = Some([0.9, 0.95]);
        Defaults { learning_rate: 8e-5, betas, warmup_ratio: 0.03, epochs: 3, ..shared }
    } else if trainer.starts_with("reward") {
        Defaults {
            weight_decay: TORCH_WEIGHT_DECAY,
            epsilon: 1e-5,
            warmup_ratio: 0.0,
            rows_per_device: 1,
            passes: 8,
            max_tokens: Some(512),
            ..shared
        }
    } else {
        shared
    }
}
