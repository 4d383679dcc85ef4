//! Asynchronous saving on all ranks: which ranks write, which save is in flight, and agreement on its result.
//!
//! ```text
//! begin     the leader makes room -> each rank writes its shard into the page cache      training waits
//!           each rank syncs and digests its file on a thread                                training
//!           continues
//! settle    the files of all are complete -> the leader commits -> all know the result
//! ```
//! Every rank writes its shard if all ranks have access to the leader's folder; otherwise the other ranks
//! send their shards to the leader. At most one save is in flight. This module does not interpret the content
//! of a checkpoint.

use std::io;
use std::thread::{Builder, JoinHandle};

use rlt_parallel::{RankError, Ranks};
use rlt_storage::checkpoint::{
    CheckpointError, CheckpointShard, CheckpointStore, UnsyncedShard, WrittenShard,
};
use rlt_storage::error_chain;
use serde_json::Value;

use crate::run::error::TrainError;

/// Asynchronous saving by all ranks, with the save in flight.
#[derive(Debug)]
pub(crate) struct CheckpointWriter {
    is_folder_shared: bool,
    in_flight: Option<SaveInFlight>,
}

/// A save that is not committed yet.
#[derive(Debug)]
struct SaveInFlight {
    step: u64,
    /// Small state of the checkpoint, which the leader saves.
    state: Value,
    /// Thread that completes this rank's file; `None` if the leader writes for this rank.
    shard: Option<JoinHandle<Result<WrittenShard, CheckpointError>>>,
}

/// Whether [`CheckpointWriter::settle`] waits for a save that is still in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Returns [`Settled::Later`] if a rank is still writing.
    None,
    /// Blocks until every rank has completed its file.
    UntilWritten,
}

impl CheckpointWriter {
    /// Creates the writer of a run: tests whether every rank can access and write the folder of the leader's
    /// `store`. Collective.
    pub(crate) fn prepare(ranks: &Ranks, store: &CheckpointStore) -> Result<Self, TrainError> {
        if ranks.size() == 1 {
            return Ok(Self { is_folder_shared: true, in_flight: None });
        }
        let sign = if ranks.is_leader() { Some(store.leave_sign()?) } else { None };
        let sign = ranks.broadcast(sign)?;
        let sees = ranks.all_gather(store.sees_sign(&sign, ranks.rank()))?;
        let apart: Vec<usize> = (0..sees.len()).filter(|rank| !sees[*rank]).collect();
        if ranks.is_leader() {
            store.remove_sign(&sign);
            if !apart.is_empty() {
                tracing::warn!(ranks = ?apart, "ranks without the run folder: the first rank saves for all");
            }
        }
        Ok(Self { is_folder_shared: apart.is_empty(), in_flight: None })
    }

    /// Whether every rank writes its own shard; otherwise the leader writes all shards.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_folder_shared
    }

    /// Returns the step of the save in flight, if any.
    pub(crate) fn step(&self) -> Option<u64> {
        self.in_flight.as_ref().map(|in_flight| in_flight.step)
    }

    /// Writes `parts`, this rank's shard of the checkpoint of `step`, and completes the file asynchronously;
    /// `None` if the leader writes for this rank. The leader's `state` is saved with it. Collective.
    ///
    /// # Errors
    /// Fails on all ranks if one of them cannot write, and leaves nothing of the checkpoint. Fails when a
    /// rank is lost.
    pub(crate) fn begin(
        &mut self,
        ranks: &Ranks,
        store: &CheckpointStore,
        step: u64,
        state: Value,
        parts: Option<Vec<CheckpointShard>>,
    ) -> Result<(), TrainError> {
        agree(ranks, if ranks.is_leader() { store.begin(step) } else { Ok(()) })?;
        let write = |parts: Vec<CheckpointShard>| store.write(step, ranks.rank(), parts);
        let written = agree(ranks, parts.map(write).transpose());
        let started = written.and_then(|shard| agree(ranks, shard.map(complete_on_thread).transpose()));
        if started.is_err() && ranks.is_leader() {
            store.abandon(step);
        }
        self.in_flight = Some(SaveInFlight { step, state, shard: started? });
        Ok(())
    }

    /// Commits the save in flight, once all ranks have completed their files; returns the result. Collective.
    ///
    /// # Errors
    /// Fails on all ranks if one of them could not save its shard or the leader could not commit, and leaves
    /// nothing of the checkpoint. Fails when a rank is lost.
    pub(crate) fn settle(
        &mut self,
        ranks: &Ranks,
        store: &mut CheckpointStore,
        wait: Wait,
    ) -> Result<Settled, TrainError> {
        let Some(in_flight) = self.in_flight.take() else { return Ok(Settled::Nothing) };
        let is_busy = in_flight.shard.as_ref().is_some_and(|thread| !thread.is_finished());
        if wait == Wait::None && ranks.all_reduce_max(is_busy.into())? > 0 {
            self.in_flight = Some(in_flight);
            return Ok(Settled::Later);
        }
        let SaveInFlight { step, state, shard } = in_flight;
        let own = agree(ranks, shard.map(completed).transpose());
        let saved = own.and_then(|own| {
            let shards: Vec<WrittenShard> = ranks.all_gather(own)?.into_iter().flatten().collect();
            agree(ranks, ranks.is_leader().then(|| store.commit(step, shards, &state)).transpose())
        });
        if saved.is_err() && ranks.is_leader() {
            store.abandon(step);
        }
        saved.map(|_| Settled::Committed)
    }
}

/// Result of [`CheckpointWriter::settle`].
#[derive(Debug)]
pub(crate) enum Settled {
    /// No save was in flight.
    Nothing,
    /// A rank has not completed its file yet.
    Later,
    /// The checkpoint is committed.
    Committed,
}

/// Returns this rank's value if all ranks have succeeded; otherwise its own error, or that of the first rank
/// that failed. Collective.
fn agree<T>(ranks: &Ranks, own: Result<T, CheckpointError>) -> Result<T, TrainError> {
    let causes: Result<Vec<Option<String>>, RankError> =
        ranks.all_gather(own.as_ref().err().map(|error| error_chain(error)));
    let own = own?;
    let failed = causes?.into_iter().enumerate().find_map(|(rank, cause)| Some((rank, cause?)));
    failed.map_or(Ok(own), |(rank, cause)| Err(CheckpointError::Elsewhere { rank, cause }.into()))
}

fn complete_on_thread(
    shard: UnsyncedShard,
) -> Result<JoinHandle<Result<WrittenShard, CheckpointError>>, CheckpointError> {
    let thread = Builder::new().name("complete checkpoint".into());
    thread.spawn(move || shard.complete()).map_err(|source| CheckpointError::Thread { source })
}

fn completed(
    thread: JoinHandle<Result<WrittenShard, CheckpointError>>,
) -> Result<WrittenShard, CheckpointError> {
    let ended_early = || io::Error::other("the thread has ended early");
    thread.join().unwrap_or_else(|_| Err(CheckpointError::Thread { source: ended_early() }))
}

#[cfg(test)]
mod tests;
