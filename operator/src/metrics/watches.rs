//! Last start of each watch, which reveals a dead one. Watches of one resource in several namespaces are
//! counted separately, so that a live watch does not hide a dead one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::client::Call;

/// Last starts of all watches. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Watches {
    states: Arc<Mutex<BTreeMap<Key, State>>>,
}

/// Watched resource, and its namespace.
type Key = (String, Option<String>);

#[derive(Clone, Copy, Debug)]
struct State {
    /// Time of the first request.
    asked_at: Instant,
    /// Time at which the API server last began to answer.
    begun_at: Option<(Instant, SystemTime)>,
}

impl Watches {
    /// Records that a watch is about to be requested.
    pub(super) fn asked(&self, call: &Call) {
        let state = State { asked_at: Instant::now(), begun_at: None };
        self.lock().entry(key(call)).or_insert(state);
    }

    /// Records that the API server has answered with `code`, or that the call failed.
    pub(super) fn answered(&self, call: &Call, code: Option<u16>) {
        let mut states = self.lock();
        let now = Instant::now();
        match code {
            Some(200) => {
                let state = states.entry(key(call)).or_insert(State { asked_at: now, begun_at: None });
                state.begun_at = Some((now, SystemTime::now()));
            }
            // A watch that never started, such as one of a resource that does not exist, is not dead.
            Some(_) if states.get(&key(call)).is_some_and(|state| state.begun_at.is_none()) => {
                states.remove(&key(call));
            }
            _ => {}
        }
    }

    /// Returns the age of each watch since its last start, or since its first request if it never started.
    pub(super) fn ages(&self) -> Vec<(String, Duration)> {
        let age = |(key, state): (&Key, &State)| {
            let (resource, namespace) = key;
            let place = namespace.as_ref().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
            let since = state.begun_at.map_or(state.asked_at, |(at, _)| at);
            (format!("{resource}{place}"), since.elapsed())
        };
        self.lock().iter().map(age).collect()
    }

    /// Returns the start of the oldest watch of each resource.
    pub(super) fn oldest(&self) -> BTreeMap<String, SystemTime> {
        let mut oldest = BTreeMap::new();
        for ((resource, _), state) in self.lock().iter() {
            let Some((_, begun_at)) = state.begun_at else { continue };
            let oldest = oldest.entry(resource.clone()).or_insert(begun_at);
            *oldest = begun_at.min(*oldest);
        }
        oldest
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(call: &Call) -> Key {
    (call.resource.clone(), call.namespace.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Verb;

    fn watch(namespace: &str) -> Call {
        Call { verb: Verb::Watch, resource: "pods".into(), namespace: Some(namespace.to_owned()) }
    }

    #[test]
    fn a_watch_that_does_not_begin_ages_and_others_of_its_resource_do_not_hide_it() {
        let watches = Watches::default();
        for namespace in ["hangs", "refused", "works"] {
            watches.asked(&watch(namespace));
        }
        watches.answered(&watch("hangs"), None);
        watches.answered(&watch("refused"), Some(403));
        std::thread::sleep(Duration::from_millis(50));
        for _ in 0..2 {
            watches.asked(&watch("works"));
            watches.answered(&watch("works"), Some(200));
        }
        let ages = watches.ages();
        let names: Vec<_> = ages.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["pods in hangs", "pods in works"]);
        assert!(ages[0].1 >= Duration::from_millis(50) && ages[1].1 < ages[0].1, "{ages:?}");
    }

    #[test]
    fn the_oldest_watch_of_several_namespaces_counts() {
        let watches = Watches::default();
        watches.answered(&watch("old"), Some(200));
        let before = SystemTime::now();
        std::thread::sleep(Duration::from_millis(5));
        watches.answered(&watch("new"), Some(200));
        assert!(watches.oldest()["pods"] <= before);
    }
}
