//! The trackers that another trainer reports to.

use crate::draft::Draft;

/// What every run folder has: the terminal's lines, `metrics.jsonl`, TensorBoard files.
const WRITTEN: [&str; 4] = ["console", "file", "tensorboard", "none"];

/// What a run is called on its trackers.
#[derive(Debug, Default)]
pub(crate) struct RunNames {
    /// The project, or experiment.
    pub(crate) project: Option<String>,
    /// The run.
    pub(crate) run: Option<String>,
    /// The team or user.
    pub(crate) entity: Option<String>,
    /// The address of a server of Trackio.
    pub(crate) trackio: Option<String>,
}

/// Sets `tracking` for these loggers, and says what is missing for the others.
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

/// The address of a Space of the hub, of its owner and name.
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
