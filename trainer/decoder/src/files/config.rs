//! Model configuration of a Hugging Face folder.

use std::path::Path;

use rlt_models::ModelConfig;

use super::super::error::ModelError;
use super::checkpoint::read_json;

/// Reads the model configuration of a folder, with the ending tokens of `generation_config.json` if it names
/// some.
///
/// # Errors
/// [`ModelError`] with the file.
pub fn read_config(dir: &Path) -> Result<ModelConfig, ModelError> {
    let path = dir.join("config.json");
    let config_error = |path: &Path| {
        let path = path.to_owned();
        |source| ModelError::Config { path, source }
    };
    let config = ModelConfig::from_json(&read_json(&path)?).map_err(config_error(&path))?;
    let path = dir.join("generation_config.json");
    if !path.exists() {
        return Ok(config);
    }
    config.with_generation_config(&read_json(&path)?).map_err(config_error(&path))
}
