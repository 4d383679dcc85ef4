//! Heartbeats of ranks: once a second, a thread writes to the store that this process runs and how many
//! operations each of its groups has started. So a failed operation can name the ranks that it waited for.
//!
//! A heartbeat is a counter; a rank is alive while the counter changes, so no clocks are compared.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use super::Diagnosis;
use super::store::{Store, StoreError};

/// Interval between two heartbeats.
const PERIOD: Duration = Duration::from_secs(1);
/// Observation period, long enough to see a living rank's heartbeat change.
const OBSERVATION: Duration = Duration::from_millis(2500);

/// Sequence number of the last operation that each group has started, by the group's name.
type Started = BTreeMap<String, u64>;

/// The heartbeat thread of this rank, stopped on drop.
#[derive(Debug)]
pub(super) struct Heartbeat {
    started: std::sync::Arc<Mutex<Started>>,
    observer: Mutex<Store>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Starts the heartbeat of `rank`.
    pub(super) fn start(store: &Store, rank: usize) -> Result<Self, StoreError> {
        let (publisher, observer) = (store.try_clone()?, store.try_clone()?);
        let started = std::sync::Arc::new(Mutex::new(Started::new()));
        let (stop, stopped) = channel();
        let shared = std::sync::Arc::clone(&started);
        let thread = std::thread::spawn(move || {
            let mut beat = 0u64;
            loop {
                beat += 1;
                let text = encode(beat, &shared.lock().unwrap_or_else(PoisonError::into_inner));
                if publisher.set(&name(rank), &text).is_err() {
                    return;
                }
                if stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        Ok(Self { started, observer: Mutex::new(observer), stop: Some(stop), thread: Some(thread) })
    }

    /// Records that `group` has started its operation `sequence`.
    pub(super) fn started(&self, group: &str, sequence: u64) {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        match started.get_mut(group) {
            Some(last) => *last = sequence,
            None => drop(started.insert(group.to_owned(), sequence)),
        }
    }

    /// Determines for which ranks operation `sequence` of `group` waits; takes a few seconds.
    pub(super) fn diagnose(&self, group: &str, sequence: u64, members: &[usize]) -> Diagnosis {
        let store = self.observer.lock().unwrap_or_else(PoisonError::into_inner);
        let observe = || members.iter().map(|rank| store.get(&name(*rank))).collect::<Result<Vec<_>, _>>();
        let Ok(before) = observe() else {
            return Diagnosis { store_lost: true, ..Diagnosis::default() };
        };
        sleep(OBSERVATION);
        match observe() {
            Ok(after) => judge(group, sequence, members, &before, &after),
            Err(_) => Diagnosis { store_lost: true, ..Diagnosis::default() },
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn name(rank: usize) -> String {
    format!("pulse/{rank}")
}

fn encode(beat: u64, started: &Started) -> String {
    let groups = started.iter().map(|(group, sequence)| format!("\n{sequence} {group}"));
    std::iter::once(beat.to_string()).chain(groups).collect()
}

fn last_started(heartbeat: &str, group: &str) -> u64 {
    let of_group = |line: &str| {
        let (sequence, name) = line.split_once(' ')?;
        if name == group { sequence.parse().ok() } else { None }
    };
    heartbeat.lines().skip(1).find_map(of_group).unwrap_or(0)
}

/// Compares two observations of each member's heartbeat in the store.
fn judge(
    group: &str,
    sequence: u64,
    members: &[usize],
    before: &[Option<String>],
    after: &[Option<String>],
) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    for ((rank, before), after) in members.iter().zip(before).zip(after) {
        match after {
            Some(heartbeat) if before.as_ref() != Some(heartbeat) => {
                let last = last_started(heartbeat, group);
                if last < sequence {
                    diagnosis.behind.push((*rank, last));
                }
            }
            _ => diagnosis.silent.push(*rank),
        }
    }
    diagnosis
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_without_heartbeat_is_silent_and_a_slow_one_is_behind() {
        let heartbeat = |beat, sequence| Some(encode(beat, &Started::from([("data".to_owned(), sequence)])));
        let before = [heartbeat(5, 7), heartbeat(9, 7), heartbeat(2, 6), None];
        let after = [heartbeat(7, 7), heartbeat(9, 7), heartbeat(4, 6), None];
        let diagnosis = judge("data", 7, &[0, 2, 4, 6], &before, &after);
        assert_eq!(diagnosis.silent, [2, 6]);
        assert_eq!(diagnosis.behind, [(4, 6)]);
        assert_eq!(
            diagnosis.to_string(),
            "no sign of life from ranks 2, 6; rank 4 has not come to it (its last was number 6)"
        );
    }
}
