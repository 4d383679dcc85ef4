//! Trackers to which another trainer reports.

use crate::draft::Draft;

/// Loggers whose output every run folder has: console lines, `metrics.jsonl`, TensorBoard files.
const WRITTEN: [&str; 4] = ["console", "file", "tensorboard", "none"];

/// Names of a run on its trackers.
#[derive(Debug, Default)]
pub(crate) struct RunNames {
    /// Name of the project, or experiment.
    pub(crate) project: Option<String>,
    /// Name of the run.
    pub(crate) run: Option<String>,
    /// Name of the team or user.
    pub(crate) entity: Option<String>,
    /// Address of a Trackio server.
    pub(crate) trackio: Option<String>,
}

/// Sets `tracking` for these loggers, and adds remarks on those that need more or have no equivalent.
pub(crate) fn report_to(loggers: &[String], names: &RunNames, draft: &mut Draft) {
    for logger in loggers.iter().filter(|logger| !WRITTEN.contains(&logger.as_str())) {
        match (logger.as_str(), &names.trackio) {
            ("wandb", _) => wandb(names, draft),
            ("trackio", Some(url)) => {
                draft.set("spec.tracking.trackio.url", url.as_str());
                draft.set_some("spec.tracking.trackio.project", names.project.clone());
                draft.set_some("spec.tracking.trackio.runName", names.run.clone());
            }
            ("mlflow" | "trackio", _) => draft.remark(
                "tracking",
                format!("{logger}: say its server's address, `{logger}.url`, or send the run later by rlctl track."),
            ),
            (other, _) => draft.remark(
                "tracking",
                format!("{other} has no equal: TensorBoard files are always written, and rlctl track sends a run to W&B, MLflow and Trackio."),
            ),
        }
    }
}

fn wandb(names: &RunNames, draft: &mut Draft) {
    draft.remark("tracking", "W&B gets an offline run in the run folder: wandb sync uploads it.");
    let named = [("project", &names.project), ("entity", &names.entity), ("runName", &names.run)];
    if named.iter().all(|(_, name)| name.is_none()) {
        draft.set("spec.tracking.wandb", serde_json::json!({}));
    }
    for (field, name) in named {
        draft.set_some(&format!("spec.tracking.wandb.{field}"), name.clone());
    }
}

/// Returns the address of a Space of the Hugging Face Hub, from its owner and name.
pub(crate) fn space(id: &str) -> String {
    let host = id
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' });
    format!("https://{}.hf.space", host.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_is_reached_at_a_host_of_its_owner_and_name() {
        assert_eq!(space("Some-Org/my_runs.v2"), "https://some-org-my-runs-v2.hf.space");
    }
}
