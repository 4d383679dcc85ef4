//! Fields of a model folder's JSON files that transformers 5.17 does not read. They are ignored here, too, so
//! a run reports them.

use std::path::Path;

use rlt_models::ModelFile;
use serde_json::Value;

use super::super::error::ModelError;
use super::checkpoint::read_json;

/// Returns a sentence for each of these `files` of a folder that has unknown fields.
///
/// # Errors
/// [`ModelError`] with a file that is there but cannot be read.
pub fn unknown_fields(dir: &Path, files: &[ModelFile]) -> Result<Vec<String>, ModelError> {
    let mut sentences = Vec::new();
    for file in files {
        let path = dir.join(file.name());
        if !path.exists() {
            continue;
        }
        let Value::Object(content) = read_json(&path)? else { continue };
        let names: Vec<String> =
            file.unknown_fields(&content).iter().map(|name| format!("`{name}`")).collect();
        if !names.is_empty() {
            let (path, names) = (path.display(), names.join(", "));
            sentences
                .push(format!("{path} has fields that neither transformers nor this run reads: {names}"));
        }
    }
    Ok(sentences)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// All files below a folder.
    fn files_below(dir: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn every_field_of_the_fixtures_that_transformers_wrote_is_known() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let fixtures = ["tests/fixtures", "data/tests/fixtures"].map(|name| files_below(&folder.join(name)));
        let mut num_files = 0;
        for path in fixtures.into_iter().flatten() {
            let is_named = |file: &&ModelFile| path.file_name().is_some_and(|name| name == file.name());
            let Some(file) = ModelFile::ALL.iter().find(is_named) else { continue };
            num_files += 1;
            let unknown = unknown_fields(path.parent().unwrap(), &[*file]).unwrap();
            assert_eq!(unknown, Vec::<String>::new());
        }
        assert!(num_files > 80, "{num_files}");
    }

    #[test]
    fn unknown_fields_are_named_with_their_file() {
        let dir = tempfile::tempdir().unwrap();
        let settings = serde_json::json!({"top_k": 5, "new_k": 6, "newer": 7});
        fs::write(dir.path().join("generation_config.json"), settings.to_string()).unwrap();
        let sentences = unknown_fields(dir.path(), &ModelFile::ALL).unwrap();
        assert_eq!(sentences.len(), 1);
        let sentence = &sentences[0];
        assert!(sentence.contains("generation_config.json has fields"), "{sentence}");
        assert!(sentence.ends_with("`new_k`, `newer`"), "{sentence}");
    }
}
