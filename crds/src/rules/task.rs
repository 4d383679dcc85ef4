//! Rules of `spec.data.task`.

use super::{Check, Rule};
use crate::spec::{
    ArithmeticOperator, COUNTING_QUESTION, DataSpec, RLTrainingJobSpec, TaskKind, TaskSpec, VisionSpec,
};

/// Returns the characters that a task's texts need: the digits, and those of its question.
fn needed_characters(task: &TaskSpec) -> String {
    let operators = task.operators.iter().map(|operator| operator.symbol());
    let asked: String = match task.kind {
        TaskKind::Arithmetic => ['='].into_iter().chain(operators).collect(),
        TaskKind::CountingPictures => COUNTING_QUESTION.to_owned(),
    };
    format!("0123456789{asked}")
}

/// Number of different problems: every operator with every unordered pair of operands from 0 on.
fn num_problems(task: &TaskSpec) -> u64 {
    let num_operands = u64::from(task.max_operand) + 1;
    task.operators.len() as u64 * (num_operands * (num_operands + 1) / 2)
}

fn task_holds(data: &DataSpec, holds: fn(&TaskSpec) -> bool) -> bool {
    data.task.as_ref().is_none_or(holds)
}

/// Number of prompt tokens of `CountingPictures` with a newly initialized tower and a character tokenizer:
/// the picture, the tokens before and after it, and the question. `None` for other jobs.
fn num_picture_tokens(spec: &RLTrainingJobSpec) -> Option<u32> {
    let task = spec.data.task.as_ref().filter(|task| task.kind == TaskKind::CountingPictures)?;
    let tower = spec.model.architecture.as_ref()?.vision?;
    spec.model.tokenizer.as_ref()?.characters.as_ref().filter(|_| spec.model.chat_template.is_none())?;
    let side = task.pictures.unwrap_or_default().side();
    Some(VisionSpec::tokens_of_square(side, tower.token_side()) + 2 + COUNTING_QUESTION.len() as u32)
}

/// CEL condition that the prompts of [`num_picture_tokens`] fit. A list of one item serves as a variable.
fn cel_picture_tokens_fit() -> String {
    let side = "has(self.data.task.pictures) ? \
                self.data.task.pictures.cells * self.data.task.pictures.cellPixels : 84";
    let token = "self.model.architecture.vision.patchSize * self.model.architecture.vision.mergeSize";
    let rounded = "(2 * side + token) / (2 * token)";
    let even = format!("{rounded} - ((2 * side + token) % (2 * token) == 0 ? {rounded} % 2 : 0)");
    let (largest, others) = (VisionSpec::MAX_SIDE, 2 + COUNTING_QUESTION.len());
    format!(
        "!has(self.data.task) || self.data.task.kind != 'CountingPictures' || \
         !has(self.model.architecture) || !has(self.model.architecture.vision) || \
         !has(self.model.tokenizer) || !has(self.model.tokenizer.characters) || has(self.model.chatTemplate) || \
         [{side}].all(side, [{token}].all(token, [{even}].all(even, \
         [even * token > {largest} ? {largest} / token : even].all(edge, \
         (edge < 1 ? 1 : edge * edge) + {others} <= self.data.maxPromptTokens))))"
    )
}

pub(super) const RULES: &[Rule] = &[
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
        at: "kind",
        reads: &["kind", "operators", "maxOperand", "zeroPadded", "reversedAnswers"],
        message: "operators, maxOperand, zeroPadded and reversedAnswers are of kind Arithmetic",
        cel: || {
            "self.kind == 'Arithmetic' || (self.operators == ['+', '-'] && self.maxOperand == 99 && \
             !self.zeroPadded && !self.reversedAnswers)"
                .into()
        },
        holds: Check::Spec(|spec| {
            task_holds(&spec.data, |task| {
                let arithmetic = (task.max_operand, task.zero_padded, task.reversed_answers);
                let operators = [ArithmeticOperator::Add, ArithmeticOperator::Subtract];
                task.kind == TaskKind::Arithmetic
                    || arithmetic == (99, false, false) && task.operators == operators
            })
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.data.task",
        at: "pictures",
        reads: &["kind", "pictures"],
        message: "pictures are of kind CountingPictures",
        cel: || "!has(self.pictures) || self.kind == 'CountingPictures'".into(),
        holds: Check::Spec(|spec| {
            task_holds(&spec.data, |task| task.pictures.is_none() || task.kind == TaskKind::CountingPictures)
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "data.task.kind",
        reads: &["data.task.kind", "model.architecture.vision"],
        message: "CountingPictures needs a model with a vision tower, such as model.architecture.vision \
                  describes",
        cel: || {
            "!has(self.data.task) || self.data.task.kind != 'CountingPictures' || \
             !has(self.model.architecture) || has(self.model.architecture.vision)"
                .into()
        },
        holds: Check::Spec(|spec| {
            let sees = spec.model.architecture.as_ref().is_none_or(|shape| shape.vision.is_some());
            sees || task_holds(&spec.data, |task| task.kind != TaskKind::CountingPictures)
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "data.maxPromptTokens",
        reads: &[
            "data.maxPromptTokens",
            "data.task.kind",
            "data.task.pictures.cells",
            "data.task.pictures.cellPixels",
            "model.architecture.vision.patchSize",
            "model.architecture.vision.mergeSize",
            "model.tokenizer.characters",
            "model.chatTemplate",
        ],
        message: "maxPromptTokens must hold a picture of data.task, one token before and one behind it, and \
                  the question",
        cel: cel_picture_tokens_fit,
        holds: Check::Spec(|spec| {
            num_picture_tokens(spec).is_none_or(|tokens| tokens <= spec.data.max_prompt_tokens)
        }),
        allowed: Some(|spec| {
            num_picture_tokens(spec).map_or_else(String::new, |tokens| format!("at least {tokens}"))
        }),
    },
    Rule {
        scope: "spec.data.task.pictures",
        at: "maxCount",
        reads: &["maxCount", "cells"],
        message: "a picture has no more squares than cells: maxCount must be at most cells * cells",
        cel: || "self.maxCount <= self.cells * self.cells".into(),
        holds: Check::Spec(|spec| {
            task_holds(&spec.data, |task| {
                task.pictures.is_none_or(|pictures| pictures.max_count <= pictures.cells * pictures.cells)
            })
        }),
        allowed: Some(|spec| {
            let pictures = spec.data.task.as_ref().and_then(|task| task.pictures);
            pictures.map_or_else(String::new, |pictures| format!("1 to {}", pictures.cells * pictures.cells))
        }),
    },
    Rule {
        scope: "spec.data.task",
        at: "numTrain",
        reads: &["kind", "numTrain", "numHeldOut", "operators", "maxOperand"],
        message: "there are fewer different problems than numTrain and numHeldOut ask for",
        cel: || {
            "self.kind != 'Arithmetic' || self.numTrain + self.numHeldOut <= \
             self.operators.size() * ((self.maxOperand + 1) * (self.maxOperand + 2) / 2)"
                .into()
        },
        holds: Check::Spec(|spec| {
            task_holds(&spec.data, |task| {
                task.kind != TaskKind::Arithmetic
                    || u64::from(task.num_train) + u64::from(task.num_held_out) <= num_problems(task)
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
        message: "characters must hold the digits and what data.task asks with: '=' and its operators, or \
                  'how many?'",
        cel: || {
            "!has(self.data.task) || !has(self.model.tokenizer) || !has(self.model.tokenizer.characters) || \
             [self.model.tokenizer.characters].all(alphabet, \
             ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9'].all(symbol, alphabet.contains(symbol)) && \
             (self.data.task.kind == 'Arithmetic' ? \
             alphabet.contains('=') && self.data.task.operators.all(symbol, alphabet.contains(symbol)) : \
             ['h', 'o', 'w', ' ', 'm', 'a', 'n', 'y', '?'].all(symbol, alphabet.contains(symbol))))"
                .into()
        },
        holds: Check::Spec(|spec| {
            let alphabet = spec.model.tokenizer.as_ref().and_then(|tokenizer| tokenizer.characters.as_ref());
            let (Some(task), Some(alphabet)) = (&spec.data.task, alphabet) else { return true };
            needed_characters(task).chars().all(|symbol| alphabet.contains(symbol))
        }),
        allowed: Some(|spec| {
            spec.data
                .task
                .as_ref()
                .map_or_else(String::new, |task| format!("at least {:?}", needed_characters(task)))
        }),
    },
];
