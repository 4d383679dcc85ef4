//! Servers that may receive the user's token of the hub. A manifest can name any mirror, so it must not
//! decide where the token goes.

use reqwest::Url;

/// URL of the public hub.
const PUBLIC_HUB: &str = "https://huggingface.co";

/// Token that is sent to no server. The client would read the user's token if it had none; this one cannot
/// stand in a header, so that the client sends no header for it.
pub(super) const WITHHELD: &str = "\n";

/// Whether the user's token may be sent to `endpoint`: the public hub, or the mirror of `HF_ENDPOINT`.
pub(super) fn is_trusted(endpoint: &str) -> bool {
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
