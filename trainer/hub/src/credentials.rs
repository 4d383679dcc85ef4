//! Servers that may receive the user's token of the hub. A manifest can name any mirror, so it must not
//! decide where the token goes.

use std::path::Path;

use reqwest::Url;

use super::cache::{self, variable};

/// URL of the public hub.
const PUBLIC_HUB: &str = "https://huggingface.co";

/// Maximum size of a file with a token, in bytes.
const MAX_TOKEN_BYTES: u64 = 64 << 10;

/// Returns the address of the hub for a manifest that names none: `HF_ENDPOINT`, or the public hub.
pub(super) fn own_endpoint() -> String {
    variable("HF_ENDPOINT").unwrap_or_else(|| PUBLIC_HUB.to_owned())
}

/// Returns the user's token for `endpoint`: that of `HF_TOKEN`, or of the file of a login; `None` if there is
/// none, and for a mirror that is not the user's own.
pub(super) fn token_for(endpoint: &str) -> Option<String> {
    if !is_trusted(endpoint) {
        tracing::debug!("the hub's token is not sent to the manifest's mirror");
        return None;
    }
    if variable("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some() {
        return None;
    }
    let of_file = |path: &Path| {
        let bytes = rlt_files::read(path, MAX_TOKEN_BYTES).ok()?;
        let token = String::from_utf8(bytes).ok()?.trim().to_owned();
        (!token.is_empty()).then_some(token)
    };
    variable("HF_TOKEN")
        .or_else(|| of_file(variable("HF_TOKEN_PATH")?.as_ref()))
        .or_else(|| of_file(&cache::home().join("token")))
}

/// Whether the user's token may be sent to `endpoint`: the public hub, or the mirror of `HF_ENDPOINT`.
fn is_trusted(endpoint: &str) -> bool {
    is_one_of(endpoint, std::env::var("HF_ENDPOINT").ok().as_deref())
}

/// Whether `endpoint` has the origin of the public hub or of the user's own mirror.
fn is_one_of(endpoint: &str, own_mirror: Option<&str>) -> bool {
    let origin = |url: &str| Url::parse(url).ok().map(|url| url.origin());
    let Some(destination) = origin(endpoint).filter(|origin| origin.is_tuple()) else { return false };
    [Some(PUBLIC_HUB), own_mirror].into_iter().flatten().any(|url| origin(url).as_ref() == Some(&destination))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_sent_only_to_the_public_hub_and_the_users_own_mirror() {
        let mirror = Some("https://mirror.example:8443/hub");
        for trusted in
            ["https://huggingface.co", "https://huggingface.co:443/", "https://mirror.example:8443"]
        {
            assert!(is_one_of(trusted, mirror), "{trusted}");
        }
        for other in [
            "http://huggingface.co",
            "https://huggingface.co.example",
            "https://huggingface.co@example.com",
            "https://huggingface.co:8443",
            "https://example.com/huggingface.co",
            "https://mirror.example",
            "http://mirror.example:8443",
            "data:,",
            "huggingface.co",
            "",
        ] {
            assert!(!is_one_of(other, mirror), "{other}");
        }
        assert!(!is_one_of("https://mirror.example:8443", None));
        assert!(!is_one_of("data:,", Some("data:,")), "an opaque origin equals no other");
    }
}
