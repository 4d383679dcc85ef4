//! Heartbeats of ranks: twice a second, a thread writes to the store that this process runs and how many
//! operations each of its groups has started. So a failed operation can name the ranks that it waited for.
//!
//! A heartbeat is a counter; a rank is alive while the counter changes, so no clocks are compared.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use super::Diagnosis;
use super::store::{Store, StoreError};

/// Interval between two heartbeats.
const PERIOD: Duration = Duration::from_millis(500);
/// Length of an observation, in heartbeats of this rank. A rank that is alive shows a new heartbeat after
/// one, or later if its thread has to wait for a core. If the machine stalls, this rank's count stalls, too.
const OBSERVED_BEATS: u64 = 10;
/// Longest observation, if this rank's own heartbeat thread has ended or waits for the store.
const OBSERVATION: Duration = PERIOD.saturating_mul(60);
/// Interval between two reads of a heartbeat that has not changed yet.
const POLL: Duration = Duration::from_millis(100);

/// Sequence number of the last operation that each group has started, by the group's name.
type Started = BTreeMap<String, u64>;

/// The heartbeat thread of this rank, stopped on drop.
#[derive(Debug)]
pub(super) struct Heartbeat {
    started: Arc<Mutex<Started>>,
    /// Number of heartbeats that this rank has sent.
    num_beats: Arc<AtomicU64>,
    observer: Mutex<Store>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Starts the heartbeat of `rank`.
    pub(super) fn start(store: &Store, rank: usize) -> Result<Self, StoreError> {
        let (publisher, observer) = (store.try_clone()?, store.try_clone()?);
        let (started, num_beats) = (Arc::new(Mutex::new(Started::new())), Arc::new(AtomicU64::new(0)));
        let (stop, stopped) = channel();
        let (shared, count) = (Arc::clone(&started), Arc::clone(&num_beats));
        let thread = std::thread::spawn(move || {
            loop {
                let beat = count.fetch_add(1, Ordering::Relaxed) + 1;
                let text = encode(beat, &shared.lock().unwrap_or_else(PoisonError::into_inner));
                if publisher.set(&name(rank), &text).is_err() {
                    return;
                }
                if stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        let observer = Mutex::new(observer);
        Ok(Self { started, num_beats, observer, stop: Some(stop), thread: Some(thread) })
    }

    /// Records that `group` has started its operation `sequence`.
    pub(super) fn started(&self, group: &str, sequence: u64) {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        match started.get_mut(group) {
            Some(last) => *last = sequence,
            None => drop(started.insert(group.to_owned(), sequence)),
        }
    }

    /// Determines for which ranks operation `sequence` of `group` waits; takes [`OBSERVED_BEATS`] if one of
    /// them is not alive.
    pub(super) fn diagnose(&self, group: &str, sequence: u64, members: &[usize]) -> Diagnosis {
        let store = self.observer.lock().unwrap_or_else(PoisonError::into_inner);
        let (started, first) = (Instant::now(), self.num_beats.load(Ordering::Relaxed));
        let waits = || {
            let num_beats = self.num_beats.load(Ordering::Relaxed) - first;
            let is_early = num_beats < OBSERVED_BEATS && started.elapsed() < OBSERVATION;
            if is_early {
                sleep(POLL);
            }
            is_early
        };
        match observe(members, |rank| store.get(&name(rank)), waits) {
            Ok(changed) => judge(group, sequence, members, &changed),
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

/// Reads the heartbeats of `members` until each has changed, or until `waits`, which pauses between two
/// reads, returns false. Returns the changed heartbeats, `None` for one that has not changed.
fn observe(
    members: &[usize],
    get: impl Fn(usize) -> Result<Option<String>, StoreError>,
    mut waits: impl FnMut() -> bool,
) -> Result<Vec<Option<String>>, StoreError> {
    let before = members.iter().map(|rank| get(*rank)).collect::<Result<Vec<_>, _>>()?;
    let mut changed = vec![None; members.len()];
    while changed.contains(&None) && waits() {
        for (idx, rank) in members.iter().enumerate() {
            if changed[idx].is_none() {
                changed[idx] = get(*rank)?.filter(|heartbeat| before[idx].as_ref() != Some(heartbeat));
            }
        }
    }
    Ok(changed)
}

/// Names the members without a changed heartbeat, and those that have not started the operation.
fn judge(group: &str, sequence: u64, members: &[usize], changed: &[Option<String>]) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    for (rank, heartbeat) in members.iter().zip(changed) {
        let Some(heartbeat) = heartbeat else {
            diagnosis.silent.push(*rank);
            continue;
        };
        let last = last_started(heartbeat, group);
        if last < sequence {
            diagnosis.behind.push((*rank, last));
        }
    }
    diagnosis
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_rank_without_heartbeat_is_silent_and_a_slow_one_is_behind() {
        let heartbeat = |sequence| Some(encode(7, &Started::from([("data".to_owned(), sequence)])));
        let changed = [heartbeat(7), None, heartbeat(6), None];
        let diagnosis = judge("data", 7, &[0, 2, 4, 6], &changed);
        assert_eq!(diagnosis.silent, [2, 6]);
        assert_eq!(diagnosis.behind, [(4, 6)]);
        assert_eq!(
            diagnosis.to_string(),
            "no sign of life from ranks 2, 6; rank 4 has not come to it (its last was number 6)"
        );
    }

    /// Rank 0 beats before every read, rank 1 before the fifth, rank 2 has stopped, and rank 3 never began.
    #[test]
    fn an_observation_ends_once_every_heartbeat_has_changed_and_in_any_case_at_its_limit() {
        let num_pauses = Cell::new(0_u32);
        let get = |rank: usize| -> Result<Option<String>, StoreError> {
            Ok(match rank {
                0 => Some(num_pauses.get().to_string()),
                1 => Some((num_pauses.get() / 5).to_string()),
                2 => Some("1".to_owned()),
                _ => None,
            })
        };
        let waits = || {
            num_pauses.set(num_pauses.get() + 1);
            num_pauses.get() <= 10
        };
        let changed = Some("1".to_owned());
        assert_eq!(observe(&[0, 1], get, waits).unwrap(), [changed.clone(), changed.clone()]);
        assert_eq!(num_pauses.get(), 5);
        num_pauses.set(0);
        assert_eq!(observe(&[0, 1, 2, 3], get, waits).unwrap(), [changed.clone(), changed, None, None]);
        assert_eq!(num_pauses.get(), 11);
    }
}
