//! Values that a manifest refuses although the other trainer accepts them: they are written in another form,
//! or left out.

use rlt_api::Problem;
use serde_json::Value;

use crate::draft::Draft;
use crate::launch::Launch;
use crate::outcome::{Fate, Outcome};
use crate::settings;

/// Largest number of values that are corrected.
const MAX_CORRECTIONS: usize = 32;

/// Corrects fields one by one, as long as a problem of the manifest is solved by another form of a field's
/// value, or by leaving the field out. Fields that are left out are recorded.
pub(crate) fn correct(draft: &mut Draft, launch: &Launch, outcomes: &mut [Outcome]) {
    for _ in 0..MAX_CORRECTIONS {
        let problems = problems(draft, launch);
        let solution = problems.iter().find_map(|problem| {
            let (corrected, is_left_out) = solution(draft, problem, problems.len(), launch)?;
            Some((corrected, is_left_out.then_some(problem)))
        });
        let Some((corrected, left_out)) = solution else { return };
        *draft = corrected;
        if let Some(problem) = left_out {
            name(draft, problem, outcomes);
        }
    }
}

fn problems(draft: &Draft, launch: &Launch) -> Vec<Problem> {
    rlt_api::validate(&draft.to_yaml(launch, &[])).err().unwrap_or_default()
}

/// Returns a draft without the problem, and whether its field had to be left out; `None` if no change of this
/// field alone solves the problem.
fn solution(draft: &Draft, problem: &Problem, num_problems: usize, launch: &Launch) -> Option<(Draft, bool)> {
    let path = problem.path.strip_prefix("spec.")?;
    let given = draft.value(path)?;
    let others = other_forms(given).into_iter().map(Some).chain([None]);
    for value in others {
        let mut corrected = draft.clone();
        let is_left_out = value.is_none();
        match value {
            Some(value) => corrected.set(path, value),
            None => corrected.remove(path),
        }
        let rest = problems(&corrected, launch);
        if rest.len() < num_problems && rest.iter().all(|other| other.path != problem.path) {
            return Some((corrected, is_left_out));
        }
    }
    None
}

/// Returns other forms of a value: a text as the number or choice that it contains, a number without a
/// fraction as an integer.
fn other_forms(value: &Value) -> Vec<Value> {
    match value {
        Value::String(text) => {
            let choice = match text.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" => Some(Value::Bool(true)),
                "false" | "no" | "off" => Some(Value::Bool(false)),
                _ => None,
            };
            settings::number(text.trim()).into_iter().chain(choice).collect()
        }
        Value::Number(number) => number.as_f64().and_then(integer).map(Value::from).into_iter().collect(),
        _ => Vec::new(),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "checked to be an integer of moderate size")]
fn integer(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < 1e15).then_some(number as i64)
}

/// Records a value that is left out: as the outcome of its setting, or in a remark.
fn name(draft: &mut Draft, problem: &Problem, outcomes: &mut [Outcome]) {
    let path = problem.path.strip_prefix("spec.").unwrap_or(&problem.path);
    let allowed = problem.allowed.as_ref().map(|allowed| format!(", allowed: {allowed}"));
    let reason = format!("{path} refuses it ({}{})", problem.message, allowed.unwrap_or_default());
    let is_of_field =
        |outcome: &&mut Outcome| matches!(&outcome.fate, Fate::Converted(field) if field == path);
    let mut is_named = false;
    for outcome in outcomes.iter_mut().filter(is_of_field) {
        outcome.fate = Fate::Unknown(reason.clone());
        is_named = true;
    }
    if !is_named {
        let value = problem.value.as_ref().map(ToString::to_string).unwrap_or_default();
        draft.remark_on(path, format!("{path}={value} is left out: {reason}."));
    }
}
