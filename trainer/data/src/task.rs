//! Generated tasks as rows with verl's columns, so that the readers treat them like files.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rlt_api::spec::{ArithmeticOperator, COUNTING_QUESTION, PicturesSpec, TaskKind, TaskSpec};
use rlt_core::task::{
    self, Arithmetic, ArithmeticOptions, CountingPictures, Operator, PictureProblem, PicturesOptions,
};
use serde_json::{Map, Value, json};

use super::rows::{Row, Rows};
use super::{DataError, RowLocation, Split, images};

/// `data_source` of generated arithmetic problems.
const ARITHMETIC: &str = "arithmetic";
/// `data_source` of generated pictures.
const PICTURES: &str = "pictures";

pub(super) fn rows(spec: &TaskSpec, split: Split) -> Result<Rows, DataError> {
    match spec.kind {
        TaskKind::Arithmetic => arithmetic_rows(spec, split),
        TaskKind::CountingPictures => picture_rows(spec, split),
    }
}

fn task_split(split: Split) -> task::Split {
    match split {
        Split::Train => task::Split::Train,
        Split::HeldOut => task::Split::HeldOut,
    }
}

fn arithmetic_rows(spec: &TaskSpec, split: Split) -> Result<Rows, DataError> {
    let task = Arithmetic::new(options(spec))?;
    let task_split = task_split(split);
    let problems = (0..task.num_problems(task_split)).map_while(move |idx| {
        let problem = task.problem(task_split, idx)?;
        let location = RowLocation { file: None, number: idx + 1 };
        Some(Ok(Row { location, fields: columns(&problem) }))
    });
    Ok(Box::new(problems))
}

/// Seed of generated tasks, the same for every job, so that jobs with different seeds are evaluated on the
/// same problems.
const SEED: u64 = 0;

fn options(spec: &TaskSpec) -> ArithmeticOptions {
    let operator = |operator: &ArithmeticOperator| match operator {
        ArithmeticOperator::Add => Operator::Add,
        ArithmeticOperator::Subtract => Operator::Subtract,
        ArithmeticOperator::Multiply => Operator::Multiply,
    };
    ArithmeticOptions {
        operators: spec.operators.iter().map(operator).collect(),
        max_operand: u64::from(spec.max_operand),
        zero_padded: spec.zero_padded,
        reversed_answers: spec.reversed_answers,
        demonstration_error_rate: spec.demonstration_error_rate,
        num_train: u64::from(spec.num_train),
        num_held_out: u64::from(spec.num_held_out),
        seed: SEED,
    }
}

fn columns(problem: &task::Problem) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("prompt".into(), json!(problem.prompt));
    fields.insert("data_source".into(), json!(ARITHMETIC));
    fields.insert("reward_model".into(), json!({"style": "rule", "ground_truth": problem.answer}));
    fields.insert("demonstration".into(), json!(problem.demonstration));
    fields.insert("chosen".into(), json!(problem.answer));
    fields.insert("rejected".into(), json!(problem.wrong_answer));
    fields
}

fn picture_rows(spec: &TaskSpec, split: Split) -> Result<Rows, DataError> {
    let PicturesSpec { cells, cell_pixels, max_count } = spec.pictures.unwrap_or_default();
    let task = CountingPictures::new(PicturesOptions {
        cells: cells as usize,
        cell_pixels: cell_pixels as usize,
        max_count: max_count as usize,
        demonstration_error_rate: spec.demonstration_error_rate,
        num_train: u64::from(spec.num_train),
        num_held_out: u64::from(spec.num_held_out),
        seed: SEED,
    })?;
    let task_split = task_split(split);
    let problems = (0..task.num_problems(task_split)).map_while(move |idx| {
        let problem = task.problem(task_split, idx)?;
        let location = RowLocation { file: None, number: idx + 1 };
        let fields = picture_columns(&problem, &location);
        Some(fields.map(|fields| Row { location, fields }))
    });
    Ok(Box::new(problems))
}

fn picture_columns(
    problem: &PictureProblem,
    location: &RowLocation,
) -> Result<Map<String, Value>, DataError> {
    let png = images::png(problem.picture.side, &problem.picture.rgb)
        .map_err(|source| DataError::Images { location: location.clone(), source })?;
    let question = format!("<image>{COUNTING_QUESTION}");
    let mut fields = Map::new();
    fields.insert("prompt".into(), json!([{"role": "user", "content": question}]));
    fields.insert("images".into(), json!([{"bytes": BASE64_STANDARD.encode(png)}]));
    fields.insert("data_source".into(), json!(PICTURES));
    fields.insert("reward_model".into(), json!({"style": "rule", "ground_truth": problem.answer}));
    fields.insert("demonstration".into(), json!(problem.demonstration));
    fields.insert("chosen".into(), json!(problem.answer));
    fields.insert("rejected".into(), json!(problem.wrong_answer));
    Ok(fields)
}
