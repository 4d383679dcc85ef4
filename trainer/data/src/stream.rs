//! Streamed rows: rows are read during the training, at most one block per lane at a time.
//!
//! A lane is a sequence of files that is read repeatedly. Its rows are read in blocks of `blockRows` items.
//! The items of a block are shuffled, and so are the files of each pass. The position of a lane is the place
//! in its files at which the current block begins, and the number of items taken from it; to resume, the
//! block is read again. Without weights all data sets form one lane. With weights each has its own, and the
//! next item is taken from the lane that is furthest behind its share.

use std::path::Path;
use std::sync::Arc;

use rlt_api::spec::DataSpec;
use rlt_core::permutation::{Permutation, splitmix64};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::loader::draws::Drawn;
use super::rows::{self, Place, RowsFrom};
use super::{CheckItem, DataError, DatasetCounts, Fitted, ReadRow, Split, sets};

/// Number of low bits of a row's index that hold its number within a file.
const ROW_BITS: u32 = 40;

/// Position of a lane; stored in checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LanePosition {
    /// Number of completed passes over the lane's files.
    pub pass: u64,
    /// Index of the file at which the block begins, in the order of this pass.
    pub file: usize,
    /// Place in that file at which the block begins.
    pub place: Place,
    /// Number of the block in this pass.
    pub block: u64,
    /// Number of items of the block that were returned.
    pub position: usize,
    /// Number of items that were returned in all passes.
    pub drawn: u64,
    /// Numbers of rows that were read in all passes, those of the block included.
    #[serde(default)]
    pub counts: DatasetCounts,
}

/// A file of a lane, with the specification of its data set.
#[derive(Debug)]
struct LaneFile {
    path: Arc<Path>,
    spec: Arc<DataSpec>,
    /// Number of the file in the manifest, which is the high part of the indices of its rows.
    idx: u64,
}

/// Files that are read repeatedly.
struct ShardReader<T> {
    files: Vec<LaneFile>,
    share: f64,
    /// Seed of the order of files and of the items of a block; `None` without shuffling.
    seed: Option<u64>,
    position: LanePosition,
    /// Current block, if it was read since the position was set.
    block: Option<Block<T>>,
    /// Whether the counts of the position include its block, as those of a saved position do.
    is_counted: bool,
}

/// A block of items in memory, and the place of the next block.
struct Block<T> {
    items: Vec<Drawn<T>>,
    order: Option<Permutation>,
    counts: DatasetCounts,
    next: Next,
}

struct Next {
    pass: u64,
    file: usize,
    place: Place,
    block: u64,
    /// Open file, positioned at `place`; `None` if the file is still to be opened.
    rows: Option<RowsFrom>,
}

/// Training items that are read on demand.
pub(super) struct Stream<T> {
    lanes: Vec<ShardReader<T>>,
    block_rows: usize,
    read: ReadRow<T>,
    check: CheckItem<T>,
    digest: String,
}

impl<T> Stream<T> {
    /// Opens the training rows of `spec` and reads the first block of each lane, so that a file that cannot
    /// be read is found at once.
    pub(super) fn open(
        spec: &DataSpec,
        block_rows: usize,
        seed: Option<u64>,
        read: ReadRow<T>,
        check: CheckItem<T>,
    ) -> Result<Self, DataError> {
        let sets = sets::specs(spec, Split::Train);
        let (mut lanes, mut digest, mut num_files) = (Vec::<ShardReader<T>>::new(), Sha256::new(), 0);
        for (set_idx, set) in sets.into_iter().enumerate() {
            let (set, weight) = (Arc::new(set.clone()), sets::weight(&set));
            if weight.is_some() || lanes.is_empty() {
                let seed = seed.map(|seed| splitmix64(seed, set_idx as u64));
                let share = weight.unwrap_or(1.0);
                lanes.push(ShardReader {
                    files: Vec::new(),
                    share,
                    seed,
                    position: LanePosition::default(),
                    block: None,
                    is_counted: false,
                });
            }
            digest.update(weight.unwrap_or_default().to_le_bytes());
            for path in sets::files(&set) {
                let path: Arc<Path> = Arc::from(Path::new(path));
                let metadata = std::fs::metadata(&path);
                let failed = |source| DataError::Open { path: path.to_path_buf(), source };
                digest.update(metadata.map_err(failed)?.len().to_le_bytes());
                let idx = num_files;
                num_files += 1;
                lanes.last_mut().into_iter().for_each(|lane| {
                    lane.files.push(LaneFile { path: Arc::clone(&path), spec: Arc::clone(&set), idx });
                });
            }
        }
        let total: f64 = lanes.iter().map(|lane| lane.share).sum();
        lanes.iter_mut().for_each(|lane| lane.share /= total);
        digest.update((block_rows as u64).to_le_bytes());
        let digest = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut stream = Self { lanes, block_rows, read, check, digest };
        for lane_idx in 0..stream.lanes.len() {
            stream.block(lane_idx)?;
        }
        Ok(stream)
    }

    /// Digest of the lengths of the files, the weights and the block size; it does not depend on the rows.
    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    pub(super) fn position(&self) -> Vec<LanePosition> {
        self.lanes.iter().map(|lane| lane.position.clone()).collect()
    }

    /// Numbers of rows that were read so far; a row counts once in each pass.
    pub(super) fn counts(&self) -> DatasetCounts {
        self.lanes.iter().fold(DatasetCounts::default(), |sum, lane| sum.plus(lane.position.counts))
    }

    /// Number of passes that all lanes have completed.
    pub(super) fn epoch(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.position.pass).min().unwrap_or(0)
    }

    /// Continues from `position`. The block is read again when an item of it is needed, unless it is in
    /// memory.
    pub(super) fn resume(&mut self, position: &[LanePosition]) {
        for (lane, saved) in self.lanes.iter_mut().zip(position) {
            let begin = |position: &LanePosition| (position.pass, position.block);
            if begin(&lane.position) != begin(saved) {
                lane.block = None;
            }
            lane.position = saved.clone();
            lane.is_counted = true;
        }
    }

    /// Returns the next item.
    pub(super) fn next(&mut self) -> Result<Drawn<T>, DataError> {
        let num_drawn: u64 = self.lanes.iter().map(|lane| lane.position.drawn).sum();
        let behind = |lane: &ShardReader<T>| lane.share * (num_drawn + 1) as f64 - lane.position.drawn as f64;
        let lanes = self.lanes.iter().enumerate().rev();
        // `max_by` returns the last maximum: reversed, the first lane wins a tie.
        let furthest =
            lanes.max_by(|(_, a), (_, b)| behind(a).total_cmp(&behind(b))).map_or(0, |(idx, _)| idx);
        self.block(furthest)?;
        let lane = &mut self.lanes[furthest];
        let position = lane.position.position;
        let block = lane.block.as_ref();
        let order = block.and_then(|block| block.order.as_ref());
        let idx = order.and_then(|order| order.get(position as u64)).map_or(position, |idx| idx as usize);
        lane.position.position += 1;
        lane.position.drawn += 1;
        let drawn = block.and_then(|block| block.items.get(idx));
        let drawn = drawn.map(|Drawn { row_idx, item }| Drawn { row_idx: *row_idx, item: Arc::clone(item) });
        drawn.ok_or(DataError::Empty { split: Split::Train, num_filtered: 0 })
    }

    /// Ensures that a lane has a block in memory with an item that was not returned yet.
    fn block(&mut self, lane_idx: usize) -> Result<(), DataError> {
        let Self { lanes, read, check, block_rows, .. } = self;
        let lane = &mut lanes[lane_idx];
        if lane.block.is_none() {
            let LanePosition { pass, file, place, block, .. } = lane.position;
            let next = Next { pass, file, place, block, rows: None };
            let block = lane.read_block(next, *block_rows, read, check)?;
            if !std::mem::replace(&mut lane.is_counted, true) {
                lane.position.counts = lane.position.counts.plus(block.counts);
            }
            lane.block = Some(block);
        }
        let passes_before = lane.position.pass;
        loop {
            let Some(block) = &lane.block else { return Ok(()) };
            if lane.position.position < block.items.len() {
                return Ok(());
            }
            if block.items.is_empty() && lane.position.pass > passes_before + 1 {
                // A full pass had no items, and so had each before it.
                let num_filtered = lane.position.counts.num_filtered / (lane.position.pass + 1);
                return Err(DataError::Empty { split: Split::Train, num_filtered });
            }
            // The old block is freed before the new one is read.
            let Some(Block { next, .. }) = lane.block.take() else { return Ok(()) };
            let LanePosition { drawn, counts, .. } = lane.position;
            let (pass, file, place, block) = (next.pass, next.file, next.place, next.block);
            lane.position = LanePosition { pass, file, place, block, position: 0, drawn, counts };
            let block = lane.read_block(next, *block_rows, read, check)?;
            lane.position.counts = counts.plus(block.counts);
            lane.block = Some(block);
        }
    }
}

impl<T> ShardReader<T> {
    /// File at a position of a pass.
    fn file(&self, pass: u64, position: usize) -> Option<&LaneFile> {
        let order = self.seed.map(|seed| Permutation::new(self.files.len() as u64, seed, pass));
        let idx = order.map_or(Some(position), |order| order.get(position as u64).map(|idx| idx as usize));
        self.files.get(idx?)
    }

    /// Reads a block of items, starting at `next`. The last block of a pass may be shorter.
    fn read_block(
        &self,
        mut next: Next,
        block_rows: usize,
        read: &ReadRow<T>,
        check: &CheckItem<T>,
    ) -> Result<Block<T>, DataError> {
        let (pass, number) = (next.pass, next.block);
        let (mut items, mut counts) = (Vec::new(), DatasetCounts::default());
        while items.len() < block_rows {
            let Some(file) = self.file(pass, next.file) else {
                next = Next { pass: pass + 1, file: 0, place: Place::default(), block: 0, rows: None };
                break;
            };
            let mut rows = match next.rows.take() {
                Some(rows) => rows,
                None => rows::open_at(&file.path, next.place)?,
            };
            let Some(row) = rows.next() else {
                (next.file, next.place) = (next.file + 1, Place::default());
                continue;
            };
            let row = row?;
            let row_idx = (file.idx << ROW_BITS) | row.location.number;
            let fitted = read(&file.spec, row_idx, &row)?;
            counts.num_rows += 1;
            counts.num_filtered += u64::from(matches!(fitted, Fitted::TooLong));
            counts.num_truncated += u64::from(matches!(fitted, Fitted::Truncated(_)));
            if let Fitted::Whole(item) | Fitted::Truncated(item) = fitted {
                check(&item, &row.location)?;
                items.push(Drawn { row_idx, item: Arc::new(item) });
            }
            next.place = rows.place();
            next.rows = Some(rows);
        }
        if next.pass == pass {
            next.block = number + 1;
        }
        let order = self
            .seed
            .map(|seed| Permutation::new(items.len() as u64, splitmix64(seed, pass.wrapping_add(1)), number));
        Ok(Block { items, order, counts, next })
    }
}

#[cfg(test)]
mod tests;
