//! Queues of records that wait for a tracker, bounded in number and in bytes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::{CompletionRecord, StepMetrics, TrainedCompletion};

/// Maximum size of the records that wait for one tracker, in bytes: thousands of steps, or the completions of
/// many.
pub(crate) const MAX_BYTES: usize = 64 << 20;

/// A record whose size in memory, in bytes, is estimated from its lengths.
pub(crate) trait Footprint {
    fn num_bytes(&self) -> usize;
}

impl Footprint for StepMetrics {
    fn num_bytes(&self) -> usize {
        let of_value = |name: &String| size_of::<(String, f64)>() + name.len();
        size_of::<Self>() + self.values.keys().map(of_value).sum::<usize>()
    }
}

impl Footprint for CompletionRecord {
    fn num_bytes(&self) -> usize {
        let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let texts = self.data_source.len() + self.prompt.len() + self.completion.len();
        let parts: usize = self.reward_parts.keys().map(|name| size_of::<(String, f64)>() + name.len()).sum();
        let token_ids = size_of_val(&self.prompt_token_ids[..]) + size_of_val(&self.token_ids[..]);
        size_of::<Self>()
            + texts
            + optional(&self.answer)
            + optional(&self.reward_message)
            + json_bytes(&self.ground_truth)
            + parts
            + token_ids
            + size_of_val(&self.rollout_logprobs[..])
            + self.training.as_ref().map_or(0, trained_bytes)
    }
}

impl Footprint for [CompletionRecord] {
    fn num_bytes(&self) -> usize {
        self.iter().map(Footprint::num_bytes).sum()
    }
}

/// Size of the vectors of a completion's training values, in bytes.
fn trained_bytes(training: &TrainedCompletion) -> usize {
    let TrainedCompletion { advantages, actor_logprobs, old_logprobs, ref_logprobs, .. } = training;
    let TrainedCompletion { importance_weights, values, returns, loss_mask, .. } = training;
    let vectors =
        [advantages, actor_logprobs, old_logprobs, ref_logprobs, importance_weights, values, returns];
    vectors.iter().map(|vector| size_of_val(&vector[..])).sum::<usize>() + loss_mask.len()
}

/// Size of a JSON value's heap memory, in bytes.
fn json_bytes(value: &Value) -> usize {
    let of_item = |value: &Value| size_of::<Value>() + json_bytes(value);
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(of_item).sum(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| size_of::<String>() + name.len() + of_item(value)).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Limit of the total size of the records in a channel.
pub(crate) struct ByteBudget {
    used: Arc<AtomicUsize>,
    limit: usize,
}

/// Bytes reserved for one record in a channel, which are released on drop.
pub(crate) struct ReservedBytes {
    used: Arc<AtomicUsize>,
    num_bytes: usize,
}

impl ByteBudget {
    pub(crate) fn new(limit: usize) -> Self {
        Self { used: Arc::default(), limit }
    }

    /// Reserves the bytes of a record; `None` if the limit would be exceeded. A record above the limit is
    /// admitted if no other one waits, since it could never be sent otherwise.
    pub(crate) fn reserve(&self, num_bytes: usize) -> Option<ReservedBytes> {
        let used = self.used.fetch_add(num_bytes, Ordering::Relaxed);
        let reserved = ReservedBytes { used: Arc::clone(&self.used), num_bytes };
        let fits = used == 0 || num_bytes == 0 || used.saturating_add(num_bytes) <= self.limit;
        // Bytes that do not fit are free again at once.
        fits.then_some(reserved)
    }
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        self.used.fetch_sub(self.num_bytes, Ordering::Relaxed);
    }
}

/// A queue of records whose number and bytes are limited.
pub(crate) struct BoundedQueue<T> {
    records: VecDeque<T>,
    num_bytes: usize,
    max_len: usize,
    max_bytes: usize,
}

impl<T: Footprint> BoundedQueue<T> {
    pub(crate) fn new(max_len: usize, max_bytes: usize) -> Self {
        Self { records: VecDeque::new(), num_bytes: 0, max_len, max_bytes }
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether the next record would exceed the limits. A single record may exceed the limit of bytes.
    pub(crate) fn is_full(&self) -> bool {
        self.records.len() >= self.max_len || self.num_bytes >= self.max_bytes
    }

    /// Appends a record, even to a full queue.
    pub(crate) fn push_back(&mut self, record: T) {
        self.num_bytes += record.num_bytes();
        self.records.push_back(record);
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let record = self.records.pop_front()?;
        self.num_bytes -= record.num_bytes();
        Some(record)
    }

    /// Removes the first `num_records` records.
    pub(crate) fn drop_front(&mut self, num_records: usize) {
        for _ in 0..num_records {
            self.pop_front();
        }
    }

    /// Returns all records, in order.
    pub(crate) fn as_slice(&mut self) -> &[T] {
        self.records.make_contiguous()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stage;

    #[test]
    fn a_record_larger_than_the_budget_is_admitted_alone_and_a_dropped_one_frees_its_bytes() {
        let budget = ByteBudget::new(10);
        let large = budget.reserve(11);
        assert!(large.is_some() && budget.reserve(1).is_none());
        assert!(budget.reserve(0).is_some(), "questions have no bytes");
        drop(large);
        let first = budget.reserve(6);
        assert!(first.is_some() && budget.reserve(5).is_none());
        let second = budget.reserve(4);
        assert!(second.is_some() && budget.reserve(1).is_none());
        drop(first);
        assert!(budget.reserve(6).is_some());
    }

    #[test]
    fn a_queue_is_full_by_number_or_by_bytes_until_records_leave_it() {
        let step =
            |idx| StepMetrics::new(Stage::Training, idx, [("a".repeat(100), 0.5)].into_iter().collect());
        let num_bytes = step(1).num_bytes();
        let mut by_number = BoundedQueue::new(2, usize::MAX);
        let mut by_bytes = BoundedQueue::new(usize::MAX, 2 * num_bytes);
        for queue in [&mut by_number, &mut by_bytes] {
            queue.push_back(step(1));
            assert!(!queue.is_full());
            queue.push_back(step(2));
            assert!(queue.is_full());
            queue.drop_front(1);
            assert!(!queue.is_full());
            assert_eq!(queue.pop_front().map(|metrics| metrics.step), Some(2));
            assert!(queue.is_empty() && queue.num_bytes == 0);
        }
    }

    #[test]
    fn every_text_and_vector_of_a_record_counts() {
        let record = CompletionRecord {
            completion: "c".repeat(1000),
            ground_truth: serde_json::json!({ "a": ["t".repeat(1000)] }),
            rollout_logprobs: vec![0.0; 250],
            training: Some(TrainedCompletion {
                advantages: vec![0.0; 250],
                loss_mask: vec![1; 1000],
                ..TrainedCompletion::default()
            }),
            ..CompletionRecord::default()
        };
        let num_bytes = record.num_bytes();
        assert!((5000..6000).contains(&num_bytes), "{num_bytes}");
    }
}
