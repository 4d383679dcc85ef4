//! TRL's mixture of data sets: the list `datasets` of a settings file, with the parameters of `load_dataset`.

use serde_json::{Map, Value, json};

use crate::draft::Draft;
use crate::settings::{Settings, text_of};

/// Returns the data sets of the mixture; `None` without one.
pub(super) fn datasets(settings: &Settings, draft: &mut Draft) -> Option<Vec<Value>> {
    let entries = settings.get("datasets")?.as_array()?;
    let datasets = entries.iter().filter_map(|entry| dataset(entry.as_object()?, draft)).collect();
    Some(datasets).filter(|datasets: &Vec<Value>| !datasets.is_empty())
}

/// Makes one data set, and remarks on its parameters that have no equivalent.
fn dataset(entry: &Map<String, Value>, draft: &mut Draft) -> Option<Value> {
    let text = |name: &str| entry.get(name).filter(|value| !value.is_null()).map(text_of);
    let path = text("path")?;
    let files = entry.get("data_files").filter(|files| !files.is_null());
    let (dataset, taken) = match files {
        Some(files) if matches!(path.as_str(), "json" | "parquet") => {
            let files = files.as_array().cloned().unwrap_or_else(|| vec![files.clone()]);
            (json!({ "files": files }), &["path", "data_files", "split"][..])
        }
        _ => {
            let split = text("split").unwrap_or_else(|| "train".to_owned());
            let mut hub = json!({"repo": path, "split": split});
            if let Some(config) = text("name") {
                hub["config"] = config.into();
            }
            (json!({ "hub": hub }), &["path", "name", "split"][..])
        }
    };
    for (name, value) in
        entry.iter().filter(|(name, value)| !value.is_null() && !taken.contains(&name.as_str()))
    {
        draft.remark("data", format!("{name}={} of {path} has no equal.", text_of(value)));
    }
    Some(dataset)
}
