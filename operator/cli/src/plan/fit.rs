//! Message for a job that does not fit its GPU: the phase, the memory needed, the memory available, and which
//! fields to change.

use std::fmt::Write as _;

use rlt_plan::{Plan, Remedy};

use crate::measure::bytes;

/// Explains why the job cannot run on its GPU; `None` if it fits, or the GPU is unknown.
pub(super) fn refusal(plan: &Plan) -> Option<String> {
    let fit = plan.fit.as_ref().filter(|fit| !fit.fits)?;
    let worst = fit.misfits.first()?;
    let phases: Vec<String> = fit.misfits.iter().map(|misfit| format!("{:?}", misfit.phase)).collect();
    let mut text = format!(
        "the job does not fit the GPU of a worker: {:?} needs {} of {} (too large: {})",
        worst.phase,
        bytes(worst.needed_bytes),
        bytes(fit.available_bytes),
        phases.join(", ")
    );
    match fit.remedies.as_slice() {
        [] => text.push_str(
            "; no setting of memory makes it fit: take a smaller model, an adapter or a larger GPU",
        ),
        remedies => {
            text.push_str("; it would fit with one of");
            remedies.iter().for_each(|remedy| push(&mut text, remedy));
        }
    }
    Some(text)
}

fn push(text: &mut String, remedy: &Remedy) {
    let fields: Vec<String> = remedy.fields.iter().map(|field| format!("spec.{field}")).collect();
    let _ = write!(text, "\n  {} ({})", fields.join(" and "), bytes(remedy.needed_bytes));
}
