//! Rule on parameters of an algorithm that nothing reads, such as those of another loss.

use rlt_api::Problem;

use crate::draft::Draft;

/// Words by which the validation says that the chosen algorithm does not read a field.
const UNUSED: [&str; 2] = [" is used only ", " is not used "];

/// Removes the fields of `algorithm` that `problems` of the manifest call unused. Other trainers ignore them.
pub(crate) fn leave_out(draft: &mut Draft, problems: &[Problem]) {
    for problem in
        problems.iter().filter(|problem| UNUSED.iter().any(|words| problem.message.contains(words)))
    {
        let Some(path) = problem.path.strip_prefix("spec.").filter(|path| path.starts_with("algorithm."))
        else {
            continue;
        };
        let Some(value) = draft.value(path).cloned() else { continue };
        draft.remove(path);
        draft.remark("algorithm", format!("{path} {value} is left out: {}.", problem.message));
    }
}
