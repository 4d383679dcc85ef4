//! Rules of `spec.data`, except those of a generated task.

use super::model::{MIRROR, cel_is_plain_mirror, is_plain_mirror};
use super::{Check, Rule, conflict};
use crate::conflicts::STREAM_LIMIT;
use crate::spec::{DataSpec, DatasetSpec};

fn has_known_ending(path: &str) -> bool {
    [".jsonl", ".json", ".parquet"].iter().any(|ending| path.ends_with(ending))
}

fn cel_known_endings() -> String {
    "self.all(file, file.endsWith('.jsonl') || file.endsWith('.json') || file.endsWith('.parquet'))".into()
}

/// Yields the entries of `datasets` used for training.
fn trained(data: &DataSpec) -> impl Iterator<Item = &DatasetSpec> {
    data.datasets.iter().filter(|set| !set.held_out)
}

/// CEL list of the entries of `datasets` used for training that meet `condition`.
fn cel_trained(condition: &str) -> String {
    format!("self.datasets.filter(each, (!has(each.heldOut) || !each.heldOut) && {condition})")
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.data",
        at: "",
        reads: &["task", "train", "datasets"],
        message: "exactly one of task, train and datasets must be given",
        cel: || {
            "[has(self.task), self.train.size() > 0, has(self.datasets) && self.datasets.size() > 0]\
             .filter(given, given).size() == 1"
                .into()
        },
        holds: Check::Spec(|spec| {
            let data = &spec.data;
            let given = [data.task.is_some(), !data.train.is_empty(), !data.datasets.is_empty()];
            given.into_iter().filter(|given| *given).count() == 1
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.data",
        at: "datasets",
        reads: &["datasets"],
        message: "one of the datasets must be trained on: without heldOut, or with heldOut false",
        cel: || {
            format!("!has(self.datasets) || self.datasets.size() == 0 || {}.size() > 0", cel_trained("true"))
        },
        holds: Check::Spec(|spec| spec.data.datasets.is_empty() || trained(&spec.data).next().is_some()),
        allowed: None,
    },
    Rule {
        scope: "spec.data",
        at: "datasets",
        reads: &["datasets"],
        message: "either all datasets to train on have a weight, or none has",
        cel: || {
            format!(
                "!has(self.datasets) || {}.size() in [0, {}.size()]",
                cel_trained("has(each.weight)"),
                cel_trained("true")
            )
        },
        holds: Check::Spec(|spec| {
            let num_weighted = trained(&spec.data).filter(|set| set.weight.is_some()).count();
            [0, trained(&spec.data).count()].contains(&num_weighted)
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.data.datasets[]",
        at: "",
        reads: &["files", "hub"],
        message: "exactly one of files and hub must be given",
        cel: || "has(self.hub) != (has(self.files) && self.files.size() > 0)".into(),
        holds: Check::Dataset(|set| set.hub.is_some() == set.files.is_empty()),
        allowed: None,
    },
    Rule {
        scope: "spec.data.datasets[].hub",
        at: "endpoint",
        reads: &["endpoint"],
        message: MIRROR,
        cel: cel_is_plain_mirror,
        holds: Check::Dataset(|set| is_plain_mirror(set.hub.as_ref().and_then(|hub| hub.endpoint.as_ref()))),
        allowed: None,
    },
    Rule {
        scope: "spec.data.datasets[]",
        at: "weight",
        reads: &["weight", "heldOut"],
        message: "a weight is for data to train on: held-out rows are each measured once",
        cel: || "!has(self.weight) || !has(self.heldOut) || !self.heldOut".into(),
        holds: Check::Dataset(|set| set.weight.is_none() || !set.held_out),
        allowed: None,
    },
    Rule {
        scope: "spec.data.datasets[].files",
        at: "",
        reads: &[""],
        message: "every file of a data set must end in .jsonl, .json or .parquet",
        cel: cel_known_endings,
        holds: Check::Dataset(|set| set.files.iter().all(|file| has_known_ending(file))),
        allowed: None,
    },
    Rule {
        scope: "spec.data",
        at: "streaming",
        reads: &["streaming", "task"],
        message: "streaming is for files and data sets of the hub: a task generates its problems",
        cel: || "!has(self.streaming) || !has(self.task)".into(),
        holds: Check::Spec(|spec| spec.data.streaming.is_none() || spec.data.task.is_none()),
        allowed: None,
    },
    conflict(STREAM_LIMIT),
    Rule {
        scope: "spec",
        at: "training.steps",
        reads: &["data.streaming", "training.steps"],
        message: "data.streaming needs training.steps: the rows of an epoch are not counted before",
        cel: || "!has(self.data.streaming) || has(self.training.steps)".into(),
        holds: Check::Spec(|spec| spec.data.streaming.is_none() || spec.training.steps.is_some()),
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
        cel: cel_known_endings,
        holds: Check::Spec(|spec| spec.data.train.iter().all(|file| has_known_ending(file))),
        allowed: None,
    },
    Rule {
        scope: "spec.data.heldOut",
        at: "",
        reads: &[""],
        message: "every held-out file must end in .jsonl, .json or .parquet",
        cel: cel_known_endings,
        holds: Check::Spec(|spec| spec.data.held_out.iter().all(|file| has_known_ending(file))),
        allowed: None,
    },
];
