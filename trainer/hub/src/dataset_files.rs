//! Finds the files of a data set's split in its repository, by the rules of Hugging Face's library
//! `datasets`: the `configs` at the head of the README, else the names of files and folders.
//!
//! Names and README come from an untrusted server; here they are only compared.

mod glob;

use serde::Deserialize;
use serde_json::Value;

use glob::Glob;

/// Endings of the files whose rows are read.
const READABLE: [&str; 3] = [".parquet", ".jsonl", ".json"];
/// Names of files with metadata, which end like files with rows.
const NO_ROWS: [&str; 5] =
    ["config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"];
/// The configuration of a repository that names none.
const DEFAULT_CONFIG: &str = "default";
/// The split of files whose names contain no split.
const DEFAULT_SPLIT: &str = "train";
/// Pattern of shards, whose names contain their split.
const SHARDS: &str = "data/*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*";
/// Splits with the words by which files and folders name them.
const SPLIT_WORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];
/// The characters around a split's word.
const SEPARATORS: &str = "[-._ 0-9]";

/// A split's files could not be found.
#[derive(Debug, thiserror::Error)]
pub enum DatasetFilesError {
    /// The README is too long to be read.
    #[error("README.md has {num_bytes} bytes, expected at most {}", super::MAX_README_BYTES)]
    LongReadme {
        /// Length of the README in bytes.
        num_bytes: u64,
    },
    /// The head of the README is not valid YAML of the expected form.
    #[error("the head of README.md is not the YAML that was expected: {message}")]
    Readme {
        /// The parser's message.
        message: String,
    },
    /// A pattern of the README is not a glob.
    #[error("README.md: {pattern:?} is no pattern of file names")]
    Pattern {
        /// The pattern as it is written in the README.
        pattern: String,
    },
    /// No configuration was requested, and of several none is the default one.
    #[error("config: expected one of {known:?}, none is given and none of them is the default one")]
    WhichConfig {
        /// Names of the configurations.
        known: Vec<String>,
    },
    /// The requested configuration does not exist.
    #[error("config: {config:?} is unknown, expected one of {known:?}")]
    UnknownConfig {
        /// The configuration that was requested.
        config: String,
        /// Names of the configurations.
        known: Vec<String>,
    },
    /// The requested split does not exist.
    #[error("split: unknown, expected one of {known:?}")]
    UnknownSplit {
        /// Names of the splits.
        known: Vec<String>,
    },
    /// The repository, or the split, has no files in a format that can be read.
    #[error("expected files that end in .parquet, .jsonl or .json, found {found:?}")]
    Unreadable {
        /// Some of the files that were found.
        found: Vec<String>,
    },
}

/// The head of a README.
#[derive(Debug, Default, Deserialize)]
struct Head {
    #[serde(default)]
    configs: Vec<Config>,
}

/// A configuration as the head of a README describes it.
#[derive(Clone, Debug, Default, Deserialize)]
struct Config {
    #[serde(default)]
    config_name: Option<String>,
    #[serde(default)]
    default: bool,
    #[serde(default)]
    data_dir: Option<String>,
    #[serde(default)]
    data_files: Value,
}

/// Each split with the patterns, or the names, of its files.
type Splits = Vec<(String, Vec<String>)>;

/// The names of the files of a split, in the order of their rows.
///
/// # Errors
/// [`DatasetFilesError`].
pub(super) fn find(
    names: &[&str],
    readme: Option<&str>,
    config: Option<&str>,
    split: &str,
) -> Result<Vec<String>, DatasetFilesError> {
    let config = choose(readme.map_or(Ok(Vec::new()), configs)?, config)?;
    let splits = match config.patterns() {
        Some(patterns) => patterns,
        None => splits_by_names(names, config.folder())?,
    };
    let known = || splits.iter().map(|(name, _)| name.clone()).collect();
    let found = splits.iter().find(|(name, _)| name == split);
    let (_, patterns) = found.ok_or_else(|| DatasetFilesError::UnknownSplit { known: known() })?;
    let mut files: Vec<&str> = Vec::new();
    for pattern in patterns {
        let matching = matching(names, &config.folder(), pattern)?;
        files.extend(matching.into_iter().filter(|name| !files.contains(name)).collect::<Vec<_>>());
    }
    of_one_format(&files, names)
}

/// Parses the `configs` at the head of a README, which is between two lines of dashes.
fn configs(readme: &str) -> Result<Vec<Config>, DatasetFilesError> {
    let text = readme.trim_start_matches('\u{feff}').replace("\r\n", "\n");
    let Some(behind) = text.strip_prefix("---\n") else { return Ok(Vec::new()) };
    let Some((head, _)) = behind.split_once("\n---") else { return Ok(Vec::new()) };
    if head.trim().is_empty() {
        return Ok(Vec::new());
    }
    let wrong = |message: String| DatasetFilesError::Readme { message };
    let head: Head = rlt_api::read_yaml(head).map_err(|error| wrong(error.to_string()))?;
    Ok(head.configs)
}

fn choose(configs: Vec<Config>, wanted: Option<&str>) -> Result<Config, DatasetFilesError> {
    let known: Vec<String> = match configs.is_empty() {
        true => vec![DEFAULT_CONFIG.to_owned()],
        false => configs.iter().map(|config| config.name().to_owned()).collect(),
    };
    if let Some(wanted) = wanted {
        let found = configs.into_iter().chain([Config::default()]).zip(&known);
        let found = found.into_iter().find(|(_, name)| *name == wanted).map(|(config, _)| config);
        return found.ok_or_else(|| DatasetFilesError::UnknownConfig { config: wanted.to_owned(), known });
    }
    let is_default = |config: &Config| config.default || config.name() == DEFAULT_CONFIG;
    match configs.iter().find(|config| is_default(config)).or(configs.first()) {
        None => Ok(Config::default()),
        Some(config) if configs.len() == 1 || is_default(config) => Ok(config.clone()),
        Some(_) => Err(DatasetFilesError::WhichConfig { known }),
    }
}

impl Config {
    fn name(&self) -> &str {
        self.config_name.as_deref().unwrap_or(DEFAULT_CONFIG)
    }

    /// Prefix of the names of the configuration's files; empty, or ending in a slash.
    fn folder(&self) -> String {
        let folder = self.data_dir.as_deref().unwrap_or_default().trim_start_matches("./").trim_matches('/');
        if folder.is_empty() || folder == "." { String::new() } else { format!("{folder}/") }
    }

    /// The configuration's splits with their patterns; `None` if splits follow from names.
    fn patterns(&self) -> Option<Splits> {
        match &self.data_files {
            Value::Null => None,
            Value::Object(splits) => {
                Some(splits.iter().map(|(split, paths)| (split.clone(), texts(paths))).collect())
            }
            Value::Array(items) if items.iter().any(Value::is_object) => {
                let split = |item: &Value| item["split"].as_str().unwrap_or(DEFAULT_SPLIT).to_owned();
                Some(items.iter().map(|item| (split(item), texts(&item["path"]))).collect())
            }
            paths => Some(vec![(DEFAULT_SPLIT.to_owned(), texts(paths))]),
        }
    }
}

/// Strings of a value that is one string or a list of strings.
fn texts(value: &Value) -> Vec<String> {
    let one = value.as_str().into_iter();
    let many = value.as_array().into_iter().flatten().filter_map(Value::as_str);
    one.chain(many).map(str::to_owned).collect()
}

/// The splits of a repository without patterns. Names of shards are tried first, then folders, then files;
/// the first rule that finds files is used. If no name contains a split, all files are the split `train`.
fn splits_by_names(names: &[&str], folder: String) -> Result<Splits, DatasetFilesError> {
    let rows: Vec<&str> = names.iter().copied().filter(|name| has_rows(name)).collect();
    let mut shards = Splits::new();
    for name in matching(&rows, &folder, SHARDS)? {
        // The pattern ensures that the file is in `data/`, and that its split is followed by a suffix such as
        // `-00000-of-00001`.
        let file = name.rsplit('/').next().unwrap_or_default();
        let Some((split, _)) = file.split_once("-of-").and_then(|(shard, _)| shard.rsplit_once('-')) else {
            continue;
        };
        let pattern = SHARDS.replacen('*', split, 1);
        if !shards.iter().any(|(known, _)| known == split) {
            shards.push((split.to_owned(), vec![pattern]));
        }
    }
    if !shards.is_empty() {
        return Ok(shards);
    }
    let s = SEPARATORS;
    let of_folders = |word: &str| {
        let begins = [format!("**/{word}/**"), format!("**/{word}{s}*/**")];
        begins.into_iter().chain([format!("**/*{s}{word}/**"), format!("**/*{s}{word}{s}*/**")]).collect()
    };
    let of_files = |word: &str| vec![format!("**/{word}{s}*"), format!("**/*{s}{word}{s}*")];
    for patterns_of in [&of_folders as &dyn Fn(&str) -> Vec<String>, &of_files] {
        let mut splits = Splits::new();
        for (split, words) in SPLIT_WORDS {
            let patterns: Vec<String> = words.iter().flat_map(|word| patterns_of(word)).collect();
            let found: Vec<_> =
                patterns.iter().map(|pattern| matching(&rows, &folder, pattern)).collect::<Result<_, _>>()?;
            if found.iter().any(|files| !files.is_empty()) {
                splits.push((split.to_owned(), patterns));
            }
        }
        if !splits.is_empty() {
            return Ok(splits);
        }
    }
    Ok(vec![(DEFAULT_SPLIT.to_owned(), vec!["**".to_owned()])])
}

/// Names below `folder` that a pattern matches, sorted. Hidden files, and those of folders such as
/// `__pycache__`, match only if the pattern names them.
fn matching<'a>(names: &[&'a str], folder: &str, pattern: &str) -> Result<Vec<&'a str>, DatasetFilesError> {
    let pattern = format!("{folder}{}", pattern.trim_start_matches("./"));
    let bad = || DatasetFilesError::Pattern { pattern: pattern.clone() };
    let glob = Glob::new(&pattern).ok_or_else(bad)?;
    let mut found: Vec<&str> = names.iter().copied().filter(|name| glob.finds(name)).collect();
    found.sort_unstable();
    Ok(found)
}

/// Keeps the files in the format that most of a split's files have.
fn of_one_format(files: &[&str], names: &[&str]) -> Result<Vec<String>, DatasetFilesError> {
    let of = |ending: &str| -> Vec<String> {
        let is_of = |name: &&&str| name.ends_with(ending) && has_rows(name);
        files.iter().filter(is_of).map(|name| (*name).to_owned()).collect()
    };
    // Of equally frequent formats the first of `READABLE` is kept.
    let most = READABLE.iter().rev().map(|ending| of(ending)).max_by_key(Vec::len).unwrap_or_default();
    if most.is_empty() {
        let found = if files.is_empty() { names } else { files };
        let found = found.iter().take(8).map(|name| (*name).to_owned()).collect();
        return Err(DatasetFilesError::Unreadable { found });
    }
    Ok(most)
}

fn has_rows(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or_default();
    READABLE.iter().any(|ending| file.ends_with(ending)) && !NO_ROWS.contains(&file)
}

#[cfg(test)]
mod tests;
