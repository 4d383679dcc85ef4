//! Data sets of a split, each with the specification by which its rows are read.

use rlt_api::spec::{DataSource, DataSpec, DatasetSpec};

use super::super::Split;

/// Returns one specification per data set of a split: the columns are that data set's, and `datasets` holds
/// it alone.
pub(crate) fn specs(spec: &DataSpec, split: Split) -> Vec<DataSpec> {
    let held_out = split == Split::HeldOut;
    match spec.source() {
        DataSource::Task(_) => vec![spec.clone()],
        DataSource::Datasets => spec.sets(held_out).into_iter().map(|set| of_set(spec, set)).collect(),
    }
}

fn of_set(spec: &DataSpec, set: DatasetSpec) -> DataSpec {
    DataSpec {
        train: Vec::new(),
        held_out: Vec::new(),
        prompt_key: set.prompt_key.clone().unwrap_or_else(|| spec.prompt_key.clone()),
        ground_truth_key: set.ground_truth_key.clone().or_else(|| spec.ground_truth_key.clone()),
        datasets: vec![set],
        ..spec.clone()
    }
}

/// Weight of the data set of a specification from [`specs`].
pub(crate) fn weight(spec: &DataSpec) -> Option<f64> {
    spec.datasets.first().and_then(|set| set.weight)
}

/// Files of the data set of a specification from [`specs`]. Those of a data set of the hub have been
/// downloaded.
pub(crate) fn files(spec: &DataSpec) -> &[String] {
    spec.datasets.first().map_or(&[], |set| &set.files)
}
