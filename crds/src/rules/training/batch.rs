//! Rules of the prompts of a step and of an update, and of the number of epochs. Their division among ranks
//! is not checked here.

use crate::rules::{Check, Rule, cel_learns_from, divisors, learns_from};
use crate::spec::LearnsFrom;

pub(in crate::rules) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.training",
        at: "epochs",
        reads: &["epochs", "steps"],
        message: "give steps or epochs, not both",
        cel: || "!(has(self.steps) && has(self.epochs))".into(),
        holds: Check::Spec(|spec| spec.training.steps.is_none() || spec.training.epochs.is_none()),
        allowed: None,
    },
    Rule {
        scope: "spec.training",
        at: "promptsPerUpdate",
        reads: &["promptsPerUpdate", "promptsPerStep"],
        message: "promptsPerUpdate must divide promptsPerStep",
        cel: || "!has(self.promptsPerUpdate) || self.promptsPerStep % self.promptsPerUpdate == 0".into(),
        holds: Check::Spec(|spec| {
            let per_step = spec.training.prompts_per_step;
            spec.training.prompts_per_update.is_none_or(|per_update| per_step.is_multiple_of(per_update))
        }),
        allowed: Some(|spec| divisors(spec.training.prompts_per_step)),
    },
    Rule {
        scope: "spec",
        at: "training.promptsPerUpdate",
        reads: &["training.promptsPerUpdate", "training.promptsPerStep", "algorithm.kind"],
        message: "SFT, preference training and reward models make one update a step: promptsPerUpdate must be promptsPerStep",
        cel: || {
            format!(
                "!has(self.training.promptsPerUpdate) || !({}) || \
                 self.training.promptsPerUpdate == self.training.promptsPerStep",
                cel_learns_from("self.algorithm", LearnsFrom::updates_once)
            )
        },
        holds: Check::Spec(|spec| {
            let given = spec.training.prompts_per_update;
            !learns_from(spec).updates_once()
                || given.is_none_or(|prompts| prompts == spec.training.prompts_per_step)
        }),
        allowed: Some(|spec| spec.training.prompts_per_step.to_string()),
    },
    Rule {
        scope: "spec",
        at: "training.epochsPerBatch",
        reads: &["training.epochsPerBatch", "algorithm.kind"],
        message: "SFT, preference training and reward models make one update a step: epochsPerBatch must be 1",
        cel: || {
            format!(
                "self.training.epochsPerBatch == 1 || !({})",
                cel_learns_from("self.algorithm", LearnsFrom::updates_once)
            )
        },
        holds: Check::Spec(|spec| !learns_from(spec).updates_once() || spec.training.epochs_per_batch == 1),
        allowed: Some(|_| "1".into()),
    },
];
