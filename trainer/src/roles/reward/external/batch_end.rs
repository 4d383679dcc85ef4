//! The end of a batch of samples, after which no task sends a request for it.

use tokio_util::sync::{CancellationToken, DropGuard};

/// Guard that ends a batch when it is dropped.
pub(super) struct BatchGuard(DropGuard);

/// Signal of the end of a batch, as held by one of its tasks.
pub(super) struct BatchEnd(CancellationToken);

impl BatchGuard {
    /// Begins a batch.
    pub(super) fn new() -> Self {
        Self(CancellationToken::new().drop_guard())
    }

    /// Returns the signal of the batch's end for another task.
    pub(super) fn end(&self) -> BatchEnd {
        BatchEnd(self.0.token().clone())
    }
}

impl BatchEnd {
    /// Returns the result of `work`; `None` if the batch ends first.
    ///
    /// The token is read at every poll. A task that gets the permit of an ended one sees the end before it
    /// uses the permit, whichever of them is woken first.
    pub(super) async fn or_end<T>(self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.0.cancelled() => None,
            done = work => Some(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Wake, Waker};

    use tokio::sync::Semaphore;

    use super::*;

    const MAX_CONCURRENT: usize = 16;

    type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Polls all tasks as soon as one is woken, within the call that wakes it. An event loop on another
    /// thread may do so between two wake-ups by one signal.
    struct PolledAtOnce(Mutex<Vec<Task>>);

    impl PolledAtOnce {
        fn poll_all(self: &Arc<Self>) {
            // A task that another one wakes is polled later in the same pass.
            let Ok(mut tasks) = self.0.try_lock() else { return };
            let waker = Waker::from(Arc::clone(self));
            let mut context = Context::from_waker(&waker);
            tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
        }
    }

    impl Wake for PolledAtOnce {
        fn wake(self: Arc<Self>) {
            self.poll_all();
        }
    }

    /// A signal that wakes its receivers in parts, such as the end of a watch channel, fails: a task of a
    /// later part takes the permit of a task of an earlier one, and sends its request.
    #[test]
    fn no_task_takes_the_permit_that_another_one_returns_at_the_end_of_the_batch() {
        let (permits, num_sent) = (Arc::new(Semaphore::new(MAX_CONCURRENT)), Arc::new(AtomicUsize::new(0)));
        let batch = BatchGuard::new();
        let task = |_: usize| -> Task {
            let (end, permits, num_sent) = (batch.end(), Arc::clone(&permits), Arc::clone(&num_sent));
            Box::pin(async move {
                let request = async {
                    let _permit = permits.acquire().await;
                    num_sent.fetch_add(1, Ordering::Relaxed);
                    std::future::pending::<()>().await;
                };
                end.or_end(request).await;
            })
        };
        let tasks = Arc::new(PolledAtOnce(Mutex::new((0..4 * MAX_CONCURRENT).map(task).collect())));
        tasks.poll_all();
        assert_eq!(num_sent.load(Ordering::Relaxed), MAX_CONCURRENT);
        drop(batch);
        assert_eq!(num_sent.load(Ordering::Relaxed), MAX_CONCURRENT, "nothing is sent after the end");
        assert!(tasks.0.lock().unwrap().is_empty(), "every task has ended");
    }
}
