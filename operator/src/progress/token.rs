//! Unverified claims of a token. They prove nothing, but a token that does not claim to belong to a pod is
//! refused without a TokenReview.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde::Deserialize;

use super::PodIdentity;

/// Largest size of a service account token in bytes; longer texts are refused.
pub(super) const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// Claims of a service account token that is bound to a pod (Kubernetes' `TokenRequest`).
#[derive(Debug, Deserialize)]
struct Claims {
    aud: Audiences,
    exp: i64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Bound,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Deserialize)]
struct Bound {
    namespace: String,
    pod: Pod,
}

#[derive(Debug, Deserialize)]
struct Pod {
    name: String,
    uid: String,
}

/// Returns the pod to which a token claims to be bound; `None` if it is no token, has another audience, is
/// expired, or is not bound to a pod.
pub(super) fn claimed_pod(token: &str, now: Timestamp) -> Option<PodIdentity> {
    if token.len() > MAX_TOKEN_BYTES {
        return None;
    }
    let mut parts = token.split('.');
    let (_header, claims, _signature) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    let is_for_us = match &claims.aud {
        Audiences::One(audience) => audience == rlt_channel::AUDIENCE,
        Audiences::Several(audiences) => audiences.iter().any(|one| one == rlt_channel::AUDIENCE),
    };
    let Bound { namespace, pod } = claims.kubernetes;
    let is_current = claims.exp > now.as_second();
    (is_for_us && is_current).then_some(PodIdentity { namespace, name: pod.name, uid: pod.uid })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn token(claims: &Value) -> String {
        format!("e30.{}.c2lnbmVk", URL_SAFE_NO_PAD.encode(claims.to_string()))
    }

    fn claims() -> Value {
        json!({
            "aud": [rlt_channel::AUDIENCE], "exp": 2_000_000_000,
            "kubernetes.io": {"namespace": "team", "pod": {"name": "a-trainer-0", "uid": "1234"}},
        })
    }

    fn pod_of(change: impl FnOnce(&mut Value)) -> Option<PodIdentity> {
        let mut claims = claims();
        change(&mut claims);
        claimed_pod(&token(&claims), Timestamp::from_second(1_900_000_000).unwrap())
    }

    #[test]
    fn a_token_names_its_pod_where_it_is_meant_for_the_channel_and_still_valid() {
        let pod = PodIdentity { namespace: "team".into(), name: "a-trainer-0".into(), uid: "1234".into() };
        assert_eq!(pod_of(|_| ()), Some(pod.clone()));
        assert_eq!(pod_of(|claims| claims["aud"] = rlt_channel::AUDIENCE.into()), Some(pod));
        assert_eq!(pod_of(|claims| claims["aud"] = json!(["https://kubernetes.default.svc"])), None);
        assert_eq!(pod_of(|claims| claims["exp"] = 1_900_000_000.into()), None);
        assert_eq!(pod_of(|claims| claims["kubernetes.io"]["pod"] = Value::Null), None);
    }

    #[test]
    fn a_malformed_token_names_no_pod() {
        let now = Timestamp::UNIX_EPOCH;
        let long = format!("e30.{}.x", "A".repeat(MAX_TOKEN_BYTES));
        for text in ["", "a", "a.b", "a.b.c", "a.e30.c", "a.b.c.d", long.as_str()] {
            assert_eq!(claimed_pod(text, now), None, "{}", &text[..text.len().min(20)]);
        }
    }
}
