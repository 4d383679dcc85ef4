//! The watched namespaces, and whether every watch of each has listed its objects once. A namespace that was
//! deleted, or that lacks the operator's roles, delays no other one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{Stream, stream};
use kube::runtime::watcher;
use tokio::sync::watch;

/// The watched namespaces; a single entry without a name if all namespaces are watched together.
#[derive(Clone, Debug, Default)]
pub struct Namespaces {
    states: Arc<Mutex<BTreeMap<Option<String>, State>>>,
    changed: watch::Sender<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Number of watches that have not listed their objects yet.
    num_unlisted: usize,
    /// Whether the API server has refused one of the namespace's watches.
    is_refused: bool,
}

impl Namespaces {
    /// Registers one more watch of `namespace`, or of all namespaces, and returns the handle that reports its
    /// first list.
    pub fn expect(&self, namespace: Option<&str>) -> FirstList {
        let namespace = namespace.map(str::to_owned);
        self.lock().entry(namespace.clone()).or_default().num_unlisted += 1;
        FirstList(Some((self.clone(), namespace)))
    }

    /// Whether every watch of a namespace has listed its objects. Before that, a job would look as if it had
    /// no pods.
    pub fn can_see(&self, namespace: &str) -> bool {
        let states = self.lock();
        let state = states.get(&Some(namespace.to_owned())).or_else(|| states.get(&None));
        state.is_none_or(|state| state.num_unlisted == 0)
    }

    /// Waits until every watch of every namespace has listed its objects, or the namespace is refused.
    pub async fn wait_until_known(&self) {
        let mut changed = self.changed.subscribe();
        while !self.lock().values().all(State::is_known) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns whether the API server refuses lists, for each namespace that is watched by name.
    pub fn refused(&self) -> BTreeMap<String, bool> {
        let states = self.lock();
        let named = states.iter().filter_map(|(name, state)| Some((name.clone()?, state.is_refused)));
        named.collect()
    }

    /// Returns a stream with an item for each change of a namespace's state.
    pub fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        changes(self.changed.subscribe())
    }

    fn listed(&self, namespace: &Option<String>) {
        let was_refused = {
            let mut states = self.lock();
            let state = states.entry(namespace.clone()).or_default();
            state.num_unlisted = state.num_unlisted.saturating_sub(1);
            if state.num_unlisted > 0 {
                return;
            }
            std::mem::take(&mut state.is_refused)
        };
        if let Some(name) = namespace.as_ref().filter(|_| was_refused) {
            tracing::info!(namespace = name, "the namespace can be seen now: its jobs are worked on");
        }
        self.changed.send_replace(());
    }

    /// Marks a namespace as refused, if it is watched by name. An operator that watches all namespaces
    /// together waits instead, because it would have nothing else to do.
    fn refuse(&self, namespace: &Option<String>, what: &str, error: &watcher::Error) {
        let Some(name) = namespace else { return };
        let was_refused = {
            let mut states = self.lock();
            let state = states.entry(namespace.clone()).or_default();
            std::mem::replace(&mut state.is_refused, true)
        };
        if !was_refused {
            tracing::error!(
                namespace = name, what, %error,
                "the API server refuses to list objects of the namespace: its jobs are not worked on until it \
                 exists and the operator's roles are in it"
            );
            self.changed.send_replace(());
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Option<String>, State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a stream with an item for every change from now on.
pub(crate) fn changes(changed: watch::Receiver<()>) -> impl Stream<Item = ()> + Send + use<> {
    stream::unfold(changed, |mut changed| async move {
        changed.changed().await.ok()?;
        Some(((), changed))
    })
}

impl State {
    fn is_known(&self) -> bool {
        self.num_unlisted == 0 || self.is_refused
    }
}

/// Handle by which a watch reports its first complete list. The default handle reports to nothing.
#[derive(Debug, Default)]
pub struct FirstList(Option<(Namespaces, Option<String>)>);

impl FirstList {
    /// Reports that the watch has a complete list.
    pub fn listed(&mut self) {
        if let Some((namespaces, namespace)) = self.0.take() {
            namespaces.listed(&namespace);
        }
    }

    /// Reports that the watch of objects of the kind `what` has failed.
    pub fn failed(&self, what: &str, error: &watcher::Error) {
        if let Some((namespaces, namespace)) = self.0.as_ref().filter(|_| is_forbidden(error)) {
            namespaces.refuse(namespace, what, error);
        }
    }
}

/// Whether the API server refuses a list. It does so for a deleted namespace, because the operator's roles
/// there were deleted too.
pub fn is_forbidden(error: &watcher::Error) -> bool {
    matches!(
        error,
        watcher::Error::InitialListFailed(kube::Error::Api(status)) if matches!(status.code, 403 | 404)
    )
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn error(code: u16) -> watcher::Error {
        let status = kube::core::Status { code, ..Default::default() };
        watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn a_refused_namespace_delays_no_other_and_is_taken_up_when_it_is_listed() {
        let namespaces = Namespaces::default();
        let mut lists = ["a", "a", "gone", "gone"].map(|name| namespaces.expect(Some(name)));
        let is_known = || namespaces.wait_until_known().now_or_never().is_some();
        lists[0].listed();
        assert!(!namespaces.can_see("a") && !is_known(), "one of two watches has listed");
        lists[1].listed();
        assert!(namespaces.can_see("a") && !is_known(), "the other namespace may only be slow");
        lists[2].failed("pods", &error(500));
        assert!(!is_known(), "a server that is broken refuses nothing");
        lists[2].failed("pods", &error(403));
        assert!(is_known() && !namespaces.can_see("gone"));
        assert_eq!(namespaces.refused(), [("a".into(), false), ("gone".into(), true)].into());
        lists[2].listed();
        assert!(!namespaces.can_see("gone"), "its pods are known, and its Services are not");
        lists[3].listed();
        assert!(namespaces.can_see("gone") && !namespaces.refused()["gone"]);
    }

    #[test]
    fn an_operator_of_all_namespaces_waits_for_every_list() {
        let namespaces = Namespaces::default();
        let mut pods = namespaces.expect(None);
        pods.failed("pods", &error(403));
        assert!(namespaces.wait_until_known().now_or_never().is_none() && !namespaces.can_see("a"));
        pods.listed();
        pods.listed();
        assert!(namespaces.wait_until_known().now_or_never().is_some() && namespaces.can_see("a"));
    }
}
