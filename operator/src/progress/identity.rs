//! Authentication: the pod behind a token, by a TokenReview. The token must have the channel's audience and
//! be bound to the pod.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::token::MAX_TOKEN_BYTES;

/// Time for which an accepted token is cached. A token becomes invalid when its pod is gone, and then the pod
/// is no worker either.
const VALID_FOR: Duration = Duration::from_secs(300);
/// Time for which a refused token is cached.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Largest number of cached reviews.
const MAX_TOKENS: usize = 20_000;
/// Largest number of concurrent reviews.
const MAX_REVIEWS: usize = 16;

const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// Identity of the pod to which a token is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
}

/// A token could not be reviewed.
#[derive(Debug, thiserror::Error)]
#[error("failed to review a token")]
pub struct ReviewError(#[from] kube::Error);

/// Reviewer of tokens.
#[tonic::async_trait]
pub trait Reviewer: Send + Sync + 'static {
    /// Returns the pod behind a token; `None` if it is invalid, has another audience, or is not bound to a
    /// pod.
    ///
    /// # Errors
    /// [`ReviewError`] where the call failed.
    async fn review(&self, token: &str) -> Result<Option<PodIdentity>, ReviewError>;
}

/// Reviews tokens by TokenReviews of the API server.
#[derive(Clone)]
pub struct TokenReviewer(pub Client);

#[tonic::async_trait]
impl Reviewer for TokenReviewer {
    async fn review(&self, token: &str) -> Result<Option<PodIdentity>, ReviewError> {
        let audiences = Some(vec![rlt_channel::AUDIENCE.to_owned()]);
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences };
        let review = TokenReview { spec, ..TokenReview::default() };
        let api = Api::<TokenReview>::all(self.0.clone());
        let reviewed = api.create(&PostParams::default(), &review).await?;
        Ok(reviewed.status.as_ref().and_then(pod_identity))
    }
}

/// Returns the pod to which a reviewed token is bound.
fn pod_identity(status: &TokenReviewStatus) -> Option<PodIdentity> {
    let is_ours = |audiences: &Vec<String>| audiences.iter().any(|one| one == rlt_channel::AUDIENCE);
    if status.authenticated != Some(true) || !status.audiences.as_ref().is_some_and(is_ours) {
        return None;
    }
    let user = status.user.as_ref()?;
    let account = user.username.as_deref()?.strip_prefix("system:serviceaccount:")?;
    let (namespace, _) = account.split_once(':')?;
    let identity = PodIdentity {
        namespace: namespace.to_owned(),
        name: extra(user, POD_NAME)?.to_owned(),
        uid: extra(user, POD_UID)?.to_owned(),
    };
    Some(identity)
}

fn extra<'a>(user: &'a UserInfo, key: &str) -> Option<&'a str> {
    match user.extra.as_ref()?.get(key)?.as_slice() {
        [only] => Some(only),
        _ => None,
    }
}

/// Result of a review, and its expiry.
type CachedReview = (Option<PodIdentity>, Instant);

/// Cache of reviews, by the digest of the token.
pub struct Authenticator<R> {
    reviewer: R,
    cache: Mutex<HashMap<[u8; 32], CachedReview>>,
    reviews: Semaphore,
}

impl<R: Reviewer> Authenticator<R> {
    /// Returns an authenticator with an empty cache.
    pub fn new(reviewer: R) -> Self {
        Self { reviewer, cache: Mutex::default(), reviews: Semaphore::new(MAX_REVIEWS) }
    }

    /// Returns the pod behind a token, from the cache or by a review; `None` if the token is not accepted.
    ///
    /// # Errors
    /// [`ReviewError`] where the call failed.
    pub async fn identify(&self, token: &str) -> Result<Option<PodIdentity>, ReviewError> {
        // Signed tokens have three parts; anything else is refused without a call.
        if token.len() > MAX_TOKEN_BYTES || token.split('.').count() != 3 {
            return Ok(None);
        }
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(identity) = self.cached(&digest) {
            return Ok(identity);
        }
        let _turn = self.reviews.acquire().await;
        if let Some(identity) = self.cached(&digest) {
            return Ok(identity);
        }
        let identity = self.reviewer.review(token).await?;
        self.remember(digest, identity.clone());
        Ok(identity)
    }

    /// Whether a token's review is cached.
    pub fn remembers(&self, token: &str) -> bool {
        self.cached(&Sha256::digest(token.as_bytes()).into()).is_some()
    }

    fn cached(&self, digest: &[u8; 32]) -> Option<Option<PodIdentity>> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let (identity, until) = cache.get(digest)?;
        (Instant::now() < *until).then(|| identity.clone())
    }

    fn remember(&self, digest: [u8; 32], identity: Option<PodIdentity>) {
        let now = Instant::now();
        let until = now + if identity.is_some() { VALID_FOR } else { REFUSED_FOR };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= MAX_TOKENS {
            cache.retain(|_, (_, until)| now < *until);
        }
        if cache.len() < MAX_TOKENS {
            cache.insert(digest, (identity, until));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn reviewed(audience: &str, extra: &[(&str, &str)]) -> TokenReviewStatus {
        let extra: BTreeMap<_, _> =
            extra.iter().map(|&(key, value)| (key.to_owned(), vec![value.to_owned()])).collect();
        let user = UserInfo {
            username: Some("system:serviceaccount:team:adding-trainer".into()),
            extra: Some(extra),
            ..UserInfo::default()
        };
        TokenReviewStatus {
            authenticated: Some(true),
            audiences: Some(vec![audience.into()]),
            user: Some(user),
            ..TokenReviewStatus::default()
        }
    }

    #[test]
    fn only_a_token_for_the_channel_that_is_bound_to_a_pod_names_one() {
        let pod = [(POD_NAME, "adding-trainer-0"), (POD_UID, "1234")];
        let identity = pod_identity(&reviewed(rlt_channel::AUDIENCE, &pod)).unwrap();
        assert_eq!(
            (&*identity.namespace, &*identity.name, &*identity.uid),
            ("team", "adding-trainer-0", "1234")
        );
        assert_eq!(pod_identity(&reviewed("https://kubernetes.default.svc", &pod)), None);
        assert_eq!(pod_identity(&reviewed(rlt_channel::AUDIENCE, &pod[..1])), None);
        let refused =
            TokenReviewStatus { authenticated: Some(false), ..reviewed(rlt_channel::AUDIENCE, &pod) };
        assert_eq!(pod_identity(&refused), None);
    }

    #[derive(Default)]
    struct Counting(AtomicUsize);

    #[tonic::async_trait]
    impl Reviewer for Counting {
        async fn review(&self, token: &str) -> Result<Option<PodIdentity>, ReviewError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let identity = PodIdentity { namespace: "n".into(), name: "p".into(), uid: token.into() };
            Ok(token.starts_with("good").then_some(identity))
        }
    }

    #[tokio::test]
    async fn a_token_is_reviewed_once_and_a_text_that_is_none_never() {
        let authenticator = Authenticator::new(Counting::default());
        for _ in 0..10 {
            assert_eq!(authenticator.identify("good.a.b").await.unwrap().unwrap().uid, "good.a.b");
            assert_eq!(authenticator.identify("bad.a.b").await.unwrap(), None);
            assert_eq!(authenticator.identify("no token").await.unwrap(), None);
            assert_eq!(authenticator.identify(&"a.b.c".repeat(10_000)).await.unwrap(), None);
        }
        assert_eq!(authenticator.reviewer.0.load(Ordering::Relaxed), 2);
    }
}
