//! Folders that the hub's own tools use: the cache of downloads, and the home with the file of a login.

use std::path::{Path, PathBuf};

/// Returns the cache of downloads: `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE`, or `hub` in the home.
pub(super) fn folder() -> PathBuf {
    folder_by(variable)
}

/// Returns the home of the hub's tools: `HF_HOME`, or a folder of the user's caches.
pub(super) fn home() -> PathBuf {
    home_by(variable)
}

/// Returns the value of an environment variable; `None` if it is unset or empty.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn folder_by(value_of: fn(&str) -> Option<String>) -> PathBuf {
    let named = value_of("HF_HUB_CACHE").or_else(|| value_of("HUGGINGFACE_HUB_CACHE"));
    named.map_or_else(|| home_by(value_of).join("hub"), PathBuf::from)
}

fn home_by(value_of: fn(&str) -> Option<String>) -> PathBuf {
    if let Some(home) = value_of("HF_HOME") {
        return home.into();
    }
    let of_user = || Path::new(&value_of("HOME").unwrap_or_else(|| "/tmp".to_owned())).join(".cache");
    value_of("XDG_CACHE_HOME").map_or_else(of_user, PathBuf::from).join("huggingface")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_of_the_hubs_own_tools() {
        assert_eq!(home_by(|name| (name == "HF_HOME").then(|| "/hf".to_owned())), Path::new("/hf"));
        let of_caches = |name: &str| (name == "XDG_CACHE_HOME").then(|| "/caches".to_owned());
        assert_eq!(home_by(of_caches), Path::new("/caches/huggingface"));
        let of_user = |name: &str| (name == "HOME").then(|| "/home/a".to_owned());
        assert_eq!(folder_by(of_user), Path::new("/home/a/.cache/huggingface/hub"));
        assert_eq!(folder_by(|_| None), Path::new("/tmp/.cache/huggingface/hub"));
        let older = |name: &str| (name == "HUGGINGFACE_HUB_CACHE").then(|| "/older".to_owned());
        assert_eq!(folder_by(older), Path::new("/older"));
        let newer = |name: &str| (name != "HF_HOME").then(|| format!("/{name}"));
        assert_eq!(folder_by(newer), Path::new("/HF_HUB_CACHE"));
    }
}
