//! The rules of `spec.data`.

use super::{Check, Rule};
use crate::spec::{DataSpec, TaskSpec};

fn has_known_ending(path: &str) -> bool {
    [".jsonl", ".json", ".parquet"].iter().any(|ending| path.ends_with(ending))
}

/// Every operator and unordered pair of operands from 0 on.
fn num_problems(task: &TaskSpec) -> u64 {
    let num_operands = u64::from(task.max_operand) + 1;
    task.operators.len() as u64 * (num_operands * (num_operands + 1) / 2)
}

fn task_holds(data: &DataSpec, holds: fn(&TaskSpec) -> bool) -> bool {
    data.task.as_ref().is_none_or(holds)
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.data",
        at: "",
        reads: &["task", "train"],
        message: "exactly one of task and train must be given",
        cel: || "has(self.task) != (self.train.size() > 0)".into(),
        holds: Check::Spec(|spec| spec.data.task.is_some() == spec.data.train.is_empty()),
        allowed: None,
    },
    Rule {
        scope: "spec.data",
        at: "heldOut",
        reads: &["heldOut", "task"],
        message: "a task generates its held-out prompts: set task.numHeldOut instead",
        cel: || "!has(self.task) || self.heldOut.size() == 0".into(),
        holds: Check::Spec(|spec| spec.data.task.is_none() || spec.data.held_out.is_empty()),
        allowed: None,
    },
    Rule {
        scope: "spec.data.train",
        at: "",
        reads: &[""],
        message: "every file to train on must end in .jsonl, .json or .parquet",
        cel: || {
            "self.all(file, file.endsWith('.jsonl') || file.endsWith('.json') || file.endsWith('.parquet'))"
                .into()
        },
        holds: Check::Spec(|spec| spec.data.train.iter().all(|file| has_known_ending(file))),
        allowed: None,
    },
    Rule {
        scope: "spec.data.heldOut",
        at: "",
        reads: &[""],
        message: "every held-out file must end in .jsonl, .json or .parquet",
        cel: || {
            "self.all(file, file.endsWith('.jsonl') || file.endsWith('.json') || file.endsWith('.parquet'))"
                .into()
        },
        holds: Check::Spec(|spec| spec.data.held_out.iter().all(|file| has_known_ending(file))),
        allowed: None,
    },
    Rule {
        scope: "spec.data.task.operators",
        at: "",
        reads: &[""],
        message: "each operator may be named once",
        cel: || "self.all(one, self.exists_one(other, other == one))".into(),
        holds: Check::Spec(|spec| {
            task_holds(&spec.data, |task| {
                task.operators.iter().enumerate().all(|(idx, one)| !task.operators[..idx].contains(one))
            })
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.data.task",
        at: "numTrain",
        reads: &["numTrain", "numHeldOut", "operators", "maxOperand"],
        message: "there are fewer different problems than numTrain and numHeldOut ask for",
        cel: || {
            "self.numTrain + self.numHeldOut <= \
             self.operators.size() * ((self.maxOperand + 1) * (self.maxOperand + 2) / 2)"
                .into()
        },
        holds: Check::Spec(|spec| {
            task_holds(&spec.data, |task| {
                u64::from(task.num_train) + u64::from(task.num_held_out) <= num_problems(task)
            })
        }),
        allowed: Some(|spec| {
            spec.data.task.as_ref().map_or_else(String::new, |task| {
                format!("together at most {} with this maxOperand and these operators", num_problems(task))
            })
        }),
    },
    Rule {
        scope: "spec",
        at: "model.tokenizer.characters",
        reads: &["model.tokenizer.characters", "data.task.operators", "data.task.kind"],
        message: "characters must hold the digits, '=' and the operators of data.task",
        cel: || {
            "!has(self.data.task) || !has(self.model.tokenizer) || !has(self.model.tokenizer.characters) || \
             [self.model.tokenizer.characters].all(alphabet, \
             ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', '='].all(symbol, alphabet.contains(symbol)) && \
             self.data.task.operators.all(symbol, alphabet.contains(symbol)))"
                .into()
        },
        holds: Check::Spec(|spec| {
            let alphabet = spec.model.tokenizer.as_ref().and_then(|tokenizer| tokenizer.characters.as_ref());
            let (Some(task), Some(alphabet)) = (&spec.data.task, alphabet) else { return true };
            let operators = task.operators.iter().map(|operator| operator.symbol());
            "0123456789=".chars().chain(operators).all(|symbol| alphabet.contains(symbol))
        }),
        allowed: None,
    },
];
