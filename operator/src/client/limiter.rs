//! Limits the rate of calls and the number in flight. Waiting calls are ordered by deadline: the time of the
//! request plus a delay that depends on the call's importance. Thus a crowd of important calls delays other
//! calls only for a bounded time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Importance;

/// Rate limit of calls to the API server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallRate {
    /// Sustained calls per second.
    pub per_second: f64,
    /// Calls in a burst after a pause.
    pub burst: f64,
}

impl Default for CallRate {
    /// Allows a burst of 200 jobs with eight pods each; the API server's own limits (429) bound the rest.
    fn default() -> Self {
        Self { per_second: 1000.0, burst: 2000.0 }
    }
}

/// Token bucket, limit of calls in flight, and queue of waiting calls. Clones share it.
#[derive(Clone, Debug)]
pub struct Limiter {
    state: Arc<Mutex<State>>,
    rate: CallRate,
    max_in_flight: usize,
}

#[derive(Debug)]
struct State {
    tokens: f64,
    filled_at: Instant,
    num_in_flight: usize,
    /// Waiting calls by deadline, and in order of arrival.
    waiting: BTreeMap<(Instant, u64), WaitingCall>,
    num_waited: u64,
    is_pumping: bool,
    is_closed: bool,
}

#[derive(Debug)]
struct WaitingCall {
    importance: Importance,
    turn: oneshot::Sender<Turn>,
}

/// The process was asked to stop, or is no longer the leader: the next leader does the remaining work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operator was asked to stop, or is no longer the leader")]
pub struct Closed;

/// Slot of a call among those in flight, released on drop. A caller that waits for its slot before it builds
/// the request passes the slot in an `Arc`, as an extension of the request.
#[derive(Debug)]
#[must_use = "the place is given back at once"]
pub struct Turn {
    limiter: Option<Limiter>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(limiter) = self.limiter.take() {
            let mut state = limiter.lock();
            state.num_in_flight -= 1;
            limiter.admit(&mut state);
        }
    }
}

impl Limiter {
    /// Returns a limiter with a full bucket, and no call in flight.
    pub fn new(rate: CallRate, max_in_flight: usize) -> Self {
        let state = State {
            tokens: rate.burst,
            filled_at: Instant::now(),
            num_in_flight: 0,
            waiting: BTreeMap::new(),
            num_waited: 0,
            is_pumping: false,
            is_closed: false,
        };
        Self { state: Arc::new(Mutex::new(state)), rate, max_in_flight }
    }

    /// Waits for this call's turn.
    ///
    /// # Errors
    /// [`Closed`], unless the call is vital or an Event.
    pub async fn turn(&self, importance: Importance) -> Result<Turn, Closed> {
        if importance == Importance::Vital {
            return Ok(Turn { limiter: None });
        }
        let turn = self.queue(importance);
        turn.await.map_err(|_| Closed)
    }

    /// Stops admitting calls, except vital ones and Events, so that calls in flight end soon.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.waiting.retain(|_, call| call.importance.passes_when_closed());
    }

    fn queue(&self, importance: Importance) -> oneshot::Receiver<Turn> {
        let (turn, receiver) = oneshot::channel();
        let mut state = self.lock();
        if state.is_closed && !importance.passes_when_closed() {
            return receiver;
        }
        state.num_waited += 1;
        let place = (Instant::now() + importance.patience(), state.num_waited);
        state.waiting.insert(place, WaitingCall { importance, turn });
        self.admit(&mut state);
        receiver
    }

    /// Wakes waiting calls, one for each token and free slot.
    fn admit(&self, state: &mut State) {
        state.fill(self.rate);
        while state.tokens >= 1.0 && state.num_in_flight < self.max_in_flight {
            let Some((_, call)) = state.waiting.pop_first() else { return };
            match call.turn.send(Turn { limiter: Some(self.clone()) }) {
                Ok(()) => {
                    state.tokens -= 1.0;
                    state.num_in_flight += 1;
                }
                // A cancelled call needs no token.
                Err(mut unused) => unused.limiter = None,
            }
        }
        let lacks_tokens = state.tokens < 1.0 && !state.waiting.is_empty();
        if lacks_tokens && !state.is_pumping {
            state.is_pumping = true;
            tokio::spawn(self.clone().pump());
        }
    }

    /// Admits waiting calls at every new token, until tokens are no longer scarce.
    async fn pump(self) {
        loop {
            tokio::time::sleep(Duration::from_secs_f64(1.0 / self.rate.per_second)).await;
            let mut state = self.lock();
            self.admit(&mut state);
            if state.tokens >= 1.0 || state.waiting.is_empty() {
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
        Limiter::new(CallRate { per_second, burst }, usize::MAX)
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let limiter = limiter(10.0, 5.0);
        let started = Instant::now();
        for _ in 0..5 {
            drop(limiter.turn(Importance::Change).await.unwrap());
        }
        assert_eq!(started.elapsed(), Duration::ZERO);
        for _ in 0..10 {
            drop(limiter.turn(Importance::Change).await.unwrap());
        }
        let elapsed = started.elapsed().as_secs_f64();
        assert!((0.9..1.3).contains(&elapsed), "ten calls at ten a second took {elapsed} s");
    }

    #[tokio::test(start_paused = true)]
    async fn the_most_important_waiting_call_is_next_and_lease_calls_never_wait() {
        let limiter = limiter(10.0, 1.0);
        drop(limiter.turn(Importance::Change).await.unwrap());
        let order = Arc::new(Mutex::new(Vec::new()));
        let waits = [Importance::Notice, Importance::Change, Importance::Status].map(|importance| {
            let (limiter, order) = (limiter.clone(), Arc::clone(&order));
            tokio::spawn(async move {
                drop(limiter.turn(importance).await.unwrap());
                order.lock().unwrap().push(importance);
            })
        });
        tokio::task::yield_now().await;
        let started = Instant::now();
        drop(limiter.turn(Importance::Vital).await.unwrap());
        assert_eq!(started.elapsed(), Duration::ZERO);
        for wait in waits {
            wait.await.unwrap();
        }
        let order = order.lock().unwrap();
        assert_eq!(*order, [Importance::Status, Importance::Change, Importance::Notice]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_of_pods_holds_up_a_service_for_as_long_as_it_can_wait() {
        let limiter = limiter(10.0, 1.0);
        drop(limiter.turn(Importance::Change).await.unwrap());
        let started = Instant::now();
        let crowd = tokio::spawn({
            let limiter = limiter.clone();
            async move {
                // Calls arrive at twice the rate, so that some always wait.
                for _ in 0..200 {
                    let limiter = limiter.clone();
                    tokio::spawn(async move { drop(limiter.turn(Importance::Change).await.unwrap()) });
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        });
        tokio::task::yield_now().await;
        drop(limiter.turn(Importance::Network).await.unwrap());
        let waited = started.elapsed();
        crowd.abort();
        let patience = Importance::Network.patience();
        assert!(waited >= patience, "{waited:?}");
        assert!(
            waited < patience * 3,
            "{waited:?}: all pods that came before it could go first, and no later ones"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_call_takes_no_other_calls_turn() {
        let limiter = limiter(1.0, 1.0);
        drop(limiter.turn(Importance::Change).await.unwrap());
        let impatient = tokio::time::timeout(Duration::from_millis(100), limiter.turn(Importance::Status));
        assert!(impatient.await.is_err());
        let started = Instant::now();
        drop(limiter.turn(Importance::Change).await.unwrap());
        assert!(started.elapsed() < Duration::from_millis(1100), "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_in_flight_are_bounded_and_the_most_important_one_follows() {
        let limiter = Limiter::new(CallRate { per_second: 1000.0, burst: 1000.0 }, 2);
        let first = limiter.turn(Importance::Change).await.unwrap();
        let second = limiter.turn(Importance::Change).await.unwrap();
        let mut notice = std::pin::pin!(limiter.turn(Importance::Notice));
        let mut status = std::pin::pin!(limiter.turn(Importance::Status));
        let soon = Duration::from_secs(1);
        assert!(tokio::time::timeout(soon, &mut notice).await.is_err());
        assert!(tokio::time::timeout(soon, &mut status).await.is_err());
        drop(first);
        let _third = status.await.unwrap();
        assert!(tokio::time::timeout(soon, &mut notice).await.is_err());
        drop(second);
        let _fourth = notice.await.unwrap();
        // A call that is cancelled while it waits leaves its slot to the next one.
        assert!(tokio::time::timeout(soon, limiter.turn(Importance::Status)).await.is_err());
        assert_eq!(limiter.lock().num_in_flight, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn once_closed_events_that_wait_or_arrive_are_admitted_at_the_rate_and_other_calls_fail() {
        let limiter = Limiter::new(CallRate { per_second: 10.0, burst: 1.0 }, 1);
        let turn = |importance| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.turn(importance).await.map(drop) })
        };
        let in_flight = limiter.turn(Importance::Change).await.unwrap();
        let (progress, waiting) = (turn(Importance::Notice), turn(Importance::Event));
        tokio::task::yield_now().await;
        limiter.close();
        assert_eq!(progress.await.unwrap(), Err(Closed));
        let arriving = turn(Importance::Event);
        let started = Instant::now();
        drop(in_flight);
        assert_eq!((waiting.await.unwrap(), arriving.await.unwrap()), (Ok(()), Ok(())));
        let elapsed = started.elapsed().as_secs_f64();
        assert!((0.1..0.4).contains(&elapsed), "two calls at ten a second took {elapsed} s");
    }

    #[tokio::test(start_paused = true)]
    async fn once_closed_waiting_calls_fail_and_lease_calls_pass() {
        let limiter = Limiter::new(CallRate { per_second: 1000.0, burst: 1000.0 }, 1);
        let under_way = limiter.turn(Importance::Change).await.unwrap();
        let waiting = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.turn(Importance::Status).await.map(drop) }
        });
        tokio::task::yield_now().await;
        limiter.close();
        assert_eq!(waiting.await.unwrap(), Err(Closed));
        drop(under_way);
        assert_eq!(limiter.turn(Importance::Change).await.map(drop), Err(Closed));
        assert_eq!(limiter.turn(Importance::Vital).await.map(drop), Ok(()));
    }
}
