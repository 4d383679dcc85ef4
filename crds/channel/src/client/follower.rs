//! Client of a launcher: a thread polls the operator for the attempt to which the pod belongs.
//!
//! The launcher reports which processes it runs and reads the newest answer; neither call waits. While the
//! operator is unreachable, only the age of the last answer changes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Settings;
use super::backoff::Backoff;
use super::connection::Connection;
use crate::{Ending, FollowRequest, FollowResponse};

/// Longest polling interval that the operator may request.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// Longest backoff after failures. It is short because a pod may do nothing until it has an answer.
const LONGEST_BACKOFF: Duration = Duration::from_secs(2);

/// Handle with the state of this pod's processes, and the operator's newest answer.
#[derive(Clone, Debug)]
pub struct Follower {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    question: FollowRequest,
    answer: FollowResponse,
    answered_at: Instant,
}

impl Follower {
    /// Starts the polling thread. The attempt of `settings` is the one with which the pod starts, 0 for a
    /// spare.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn start(settings: Settings) -> std::io::Result<Self> {
        Self::start_with(settings, FollowRequest::default())
    }

    fn start_with(settings: Settings, question: FollowRequest) -> std::io::Result<Self> {
        let question = FollowRequest { source: Some(settings.source.clone()), ..question };
        let state = State { question, answer: FollowResponse::default(), answered_at: Instant::now() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Notify::new() });
        let asking = Arc::clone(&shared);
        // Never joined: an operator that hangs must not delay the end of the pod.
        std::thread::Builder::new().name("follow attempts".into()).spawn(move || run(&asking, &settings))?;
        Ok(Self { shared })
    }

    /// Starts a thread that asks until the operator has answered for the attempt of `settings`, and reports
    /// nothing: the pod is given no other attempt.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn for_key(settings: Settings) -> std::io::Result<Self> {
        let question = FollowRequest { only_key: true, ..FollowRequest::default() };
        Self::start_with(settings, question)
    }

    /// Reports that a spare has finished preloading.
    pub fn is_loaded(&self) {
        self.change(|question| question.is_loaded = true);
    }

    /// Reports that the processes of an attempt have started, and the rank of the first.
    pub fn started(&self, attempt: u32, first_rank: u32) {
        self.change(|question| {
            let source = question.source.get_or_insert_default();
            (source.attempt, source.rank) = (attempt, first_rank);
            question.ending = None;
        });
    }

    /// Reports that all processes of the attempt have ended.
    pub fn ended(&self, ending: Ending) {
        self.change(|question| question.ending = Some(ending));
    }

    /// Returns the operator's newest answer; empty before the first.
    pub fn answer(&self) -> FollowResponse {
        self.shared.lock().answer.clone()
    }

    /// Time since the operator last answered, or since the start.
    pub fn silence(&self) -> Duration {
        self.shared.lock().answered_at.elapsed()
    }

    fn change(&self, change: impl FnOnce(&mut FollowRequest)) {
        change(&mut self.shared.lock().question);
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run(shared: &Shared, settings: &Settings) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(ask_on(shared, settings)),
        Err(error) => tracing::warn!(%error, "the operator cannot give this pod another attempt"),
    }
}

async fn ask_on(shared: &Shared, settings: &Settings) {
    let mut connection = Connection::default();
    let mut backoff = Backoff::new(settings.pace.first_backoff, LONGEST_BACKOFF);
    loop {
        let question = shared.lock().question.clone();
        let only_key = question.only_key;
        let wait = match connection.ask(settings, question).await {
            Ok(answer) => {
                backoff.reset();
                let wait = Duration::from_secs(answer.ask_again_seconds.max(1).into());
                let is_known = only_key && answer.attempt >= settings.source.attempt;
                let mut state = shared.lock();
                (state.answer, state.answered_at) = (answer, Instant::now());
                if is_known {
                    return;
                }
                wait.min(MAX_INTERVAL)
            }
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "the operator does not answer");
                backoff.after_failure()
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = shared.changed.notified() => {}
        }
    }
}
