//! Lets calls through at a rate; of those that wait, the most important goes first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{CallRate, Importance};

/// A bucket of tokens and a queue. Clones share it.
#[derive(Clone, Debug)]
pub struct Limiter {
    state: Arc<Mutex<State>>,
    rate: CallRate,
}

#[derive(Debug)]
struct State {
    tokens: f64,
    filled_at: Instant,
    waiting: BTreeMap<(Importance, u64), oneshot::Sender<()>>,
    num_waited: u64,
    is_pumping: bool,
}

impl Limiter {
    /// A full bucket.
    pub fn new(rate: CallRate) -> Self {
        let state = State {
            tokens: rate.burst,
            filled_at: Instant::now(),
            waiting: BTreeMap::new(),
            num_waited: 0,
            is_pumping: false,
        };
        Self { state: Arc::new(Mutex::new(state)), rate }
    }

    /// Waits for this call's turn.
    pub async fn turn(&self, importance: Importance) {
        if importance == Importance::Vital {
            return;
        }
        let Some(turn) = self.take_or_queue(importance) else { return };
        // The pump lives as long as anybody waits.
        let _ = turn.await;
    }

    fn take_or_queue(&self, importance: Importance) -> Option<oneshot::Receiver<()>> {
        let mut state = self.lock();
        state.fill(self.rate);
        if state.waiting.is_empty() && state.tokens >= 1.0 {
            state.tokens -= 1.0;
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        state.num_waited += 1;
        let place = (importance, state.num_waited);
        state.waiting.insert(place, sender);
        if !state.is_pumping {
            state.is_pumping = true;
            tokio::spawn(self.clone().pump());
        }
        Some(receiver)
    }

    /// Wakes those who wait, one for each token, until nobody waits.
    async fn pump(self) {
        loop {
            tokio::time::sleep(Duration::from_secs_f64(1.0 / self.rate.per_second)).await;
            let mut state = self.lock();
            state.fill(self.rate);
            while state.tokens >= 1.0 {
                let Some((_, sender)) = state.waiting.pop_first() else { break };
                // Somebody who has given up needs no token.
                if sender.send(()).is_ok() {
                    state.tokens -= 1.0;
                }
            }
            if state.waiting.is_empty() {
                state.is_pumping = false;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn fill(&mut self, rate: CallRate) {
        let now = Instant::now();
        let seconds = now.duration_since(self.filled_at).as_secs_f64();
        self.tokens = (self.tokens + seconds * rate.per_second).min(rate.burst);
        self.filled_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(per_second: f64, burst: f64) -> Limiter {
        Limiter::new(CallRate { per_second, burst })
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let limiter = limiter(10.0, 5.0);
        let started = Instant::now();
        for _ in 0..5 {
            limiter.turn(Importance::Change).await;
        }
        assert_eq!(started.elapsed(), Duration::ZERO);
        for _ in 0..10 {
            limiter.turn(Importance::Change).await;
        }
        let elapsed = started.elapsed().as_secs_f64();
        assert!((0.9..1.3).contains(&elapsed), "ten calls at ten a second took {elapsed} s");
    }

    #[tokio::test(start_paused = true)]
    async fn of_those_who_wait_the_most_important_goes_first_and_a_lease_never_waits() {
        let limiter = limiter(10.0, 1.0);
        limiter.turn(Importance::Change).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let waits = [Importance::Notice, Importance::Change, Importance::Status].map(|importance| {
            let (limiter, order) = (limiter.clone(), Arc::clone(&order));
            tokio::spawn(async move {
                limiter.turn(importance).await;
                order.lock().unwrap().push(importance);
            })
        });
        tokio::task::yield_now().await;
        let started = Instant::now();
        limiter.turn(Importance::Vital).await;
        assert_eq!(started.elapsed(), Duration::ZERO);
        for wait in waits {
            wait.await.unwrap();
        }
        let order = order.lock().unwrap();
        assert_eq!(*order, [Importance::Status, Importance::Change, Importance::Notice]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_waiting_takes_nobodys_turn() {
        let limiter = limiter(1.0, 1.0);
        limiter.turn(Importance::Change).await;
        let impatient = tokio::time::timeout(Duration::from_millis(100), limiter.turn(Importance::Status));
        assert!(impatient.await.is_err());
        let started = Instant::now();
        limiter.turn(Importance::Change).await;
        assert!(started.elapsed() < Duration::from_millis(1100), "{:?}", started.elapsed());
    }
}
