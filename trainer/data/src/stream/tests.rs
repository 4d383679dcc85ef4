//! Streams against the rows of their files: order, memory, and continuing from any place.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use rlt_api::spec::DatasetSpec;
use serde_json::json;
use tempfile::TempDir;

use super::*;

/// Items that are in memory, and the most that ever were.
#[derive(Clone, Default)]
struct Alive(Rc<Cell<(usize, usize)>>);

/// A row by its text, counted while it is in memory.
struct Item {
    text: String,
    row_idx: u64,
    alive: Alive,
}

impl Drop for Item {
    fn drop(&mut self) {
        let (now, most) = self.alive.0.get();
        self.alive.0.set((now - 1, most));
    }
}

fn reader(alive: &Alive) -> (ReadRow<Item>, CheckItem<Item>) {
    let alive = alive.clone();
    let read: ReadRow<Item> = Box::new(move |spec, row_idx, row| {
        let text = row.column(&spec.prompt_key)?.as_str().unwrap_or_default().to_owned();
        if text.starts_with("long") {
            return Ok(Fitted::TooLong);
        }
        let (now, most) = alive.0.get();
        alive.0.set((now + 1, most.max(now + 1)));
        Ok(Fitted::Whole(Item { text, row_idx, alive: alive.clone() }))
    });
    (read, Box::new(|_, _| Ok(())))
}

fn write(dir: &Path, name: &str, texts: impl Iterator<Item = String>) -> String {
    let path = dir.join(name);
    fs::write(&path, texts.map(|text| format!("{}\n\n", json!({ "prompt": text }))).collect::<String>())
        .unwrap();
    path.display().to_string()
}

/// Three files of 10, 1 and 25 rows.
fn files(dir: &Path) -> DataSpec {
    let file = |name: &str, rows: usize| {
        write(dir, &format!("{name}.jsonl"), (0..rows).map(|row| format!("{name}{row}")))
    };
    DataSpec { train: vec![file("a", 10), file("b", 1), file("c", 25)], ..DataSpec::default() }
}

fn open(spec: &DataSpec, block_rows: usize, seed: Option<u64>, alive: &Alive) -> Stream<Item> {
    try_open(spec, block_rows, seed, alive).unwrap()
}

fn try_open(
    spec: &DataSpec,
    block_rows: usize,
    seed: Option<u64>,
    alive: &Alive,
) -> Result<Stream<Item>, DataError> {
    let (read, check) = reader(alive);
    Stream::open(spec, block_rows, seed, read, check)
}

fn texts(stream: &mut Stream<Item>, num_items: usize) -> Vec<String> {
    (0..num_items).map(|_| stream.next().unwrap().item.text.clone()).collect()
}

#[test]
fn a_pass_has_every_row_once_and_without_a_seed_in_the_order_of_the_files() {
    let dir = TempDir::new().unwrap();
    let spec = files(dir.path());
    let all: Vec<String> = [("a", 10), ("b", 1), ("c", 25)]
        .iter()
        .flat_map(|(f, n)| (0..*n).map(move |row| format!("{f}{row}")))
        .collect();
    for block_rows in [1, 4, 7, 36, 100] {
        let mut plain = open(&spec, block_rows, None, &Alive::default());
        assert_eq!(texts(&mut plain, 36), all);
        assert_eq!(texts(&mut plain, 36), all);
        let mut shuffled = open(&spec, block_rows, Some(7), &Alive::default());
        let passes: Vec<Vec<String>> = (0..4).map(|_| texts(&mut shuffled, 36)).collect();
        for pass in &passes {
            let mut sorted = pass.clone();
            sorted.sort();
            let mut expected = all.clone();
            expected.sort();
            assert_eq!(sorted, expected);
        }
        let files_of = |pass: &Vec<String>| pass.iter().map(|text| text.as_bytes()[0]).collect::<Vec<_>>();
        assert!(passes.iter().any(|pass| files_of(pass) != files_of(&passes[0])), "files are shuffled, too");
        assert!(block_rows < 7 || passes[0] != passes[1]);
    }
}

#[test]
fn no_more_items_are_in_memory_than_a_block() {
    let dir = TempDir::new().unwrap();
    let spec = files(dir.path());
    for (block_rows, most) in [(1, 1), (5, 5), (100, 36)] {
        let alive = Alive::default();
        let mut stream = open(&spec, block_rows, Some(1), &alive);
        (0..100).for_each(|_| drop(stream.next().unwrap()));
        assert_eq!(alive.0.get().1, most);
    }
}

#[test]
fn a_stream_resumes_from_any_position_with_the_same_items() {
    let dir = TempDir::new().unwrap();
    let mut spec = files(dir.path());
    let parquet = format!("{}/tests/fixtures/data/verl.parquet", env!("CARGO_MANIFEST_DIR"));
    let weighted = |file: &str, weight| DatasetSpec {
        files: vec![file.to_owned()],
        weight: Some(weight),
        prompt_key: file.ends_with("parquet").then(|| "data_source".to_owned()),
        ..DatasetSpec::default()
    };
    let sets = vec![weighted(&spec.train[0], 0.7), weighted(&parquet, 1.3), weighted(&spec.train[2], 2.0)];
    let plain = spec.clone();
    (spec.train, spec.datasets) = (Vec::new(), sets);
    for (spec, seed) in [(&plain, None), (&plain, Some(3)), (&spec, None), (&spec, Some(3))] {
        let mut whole = open(spec, 4, seed, &Alive::default());
        let (mut positions, mut items) = (vec![whole.position()], Vec::new());
        for _ in 0..100 {
            let item = whole.next().unwrap().item;
            items.push((item.text.clone(), item.row_idx));
            positions.push(whole.position());
        }
        for stopped in 0..90 {
            // As it is written into a checkpoint.
            let saved = serde_json::to_value(&positions[stopped]).unwrap();
            let saved: Vec<LanePosition> = serde_json::from_value(saved).unwrap();
            let mut resumed = open(spec, 4, seed, &Alive::default());
            resumed.resume(&saved);
            for expected in &items[stopped..stopped + 10] {
                let item = resumed.next().unwrap().item;
                assert_eq!((&item.text, item.row_idx), (&expected.0, expected.1), "from {stopped}");
            }
            assert_eq!(resumed.position(), positions[stopped + 10]);
        }
    }
}

#[test]
fn rows_are_counted_once_a_pass_wherever_a_stream_continues() {
    let dir = TempDir::new().unwrap();
    let rows = ["long", "x", "long", "y", "z", "long"].map(str::to_owned);
    let spec =
        DataSpec { train: vec![write(dir.path(), "a.jsonl", rows.into_iter())], ..DataSpec::default() };
    let counts = |num_rows, num_filtered| DatasetCounts { num_rows, num_filtered, num_truncated: 0 };
    let mut whole = open(&spec, 2, None, &Alive::default());
    assert_eq!(whole.counts(), counts(4, 2), "the first block ends with its second item");
    let mut positions = vec![whole.position()];
    for expected in [counts(4, 2), counts(4, 2), counts(6, 3), counts(10, 5), counts(10, 5), counts(12, 6)] {
        whole.next().unwrap();
        assert_eq!(whole.counts(), expected);
        positions.push(whole.position());
    }
    for (stopped, position) in positions.iter().enumerate() {
        let mut resumed = open(&spec, 2, None, &Alive::default());
        resumed.resume(position);
        for expected in &positions[stopped + 1..] {
            resumed.next().unwrap();
            assert_eq!(resumed.position(), *expected, "from {stopped}");
        }
    }
}

#[test]
fn with_weights_every_beginning_of_a_stream_has_their_shares() {
    let dir = TempDir::new().unwrap();
    let file = |name: &str| vec![write(dir.path(), name, (0..3).map(|_| name.to_owned()))];
    let set = |name: &str, weight| DatasetSpec {
        files: file(name),
        weight: Some(weight),
        ..DatasetSpec::default()
    };
    let datasets = vec![set("a.jsonl", 5.0), set("b.jsonl", 1.0), set("c.jsonl", 2.5)];
    let spec = DataSpec { datasets, ..DataSpec::default() };
    let mut stream = open(&spec, 2, Some(1), &Alive::default());
    let drawn = texts(&mut stream, 850);
    for end in [17, 85, 100, 850] {
        for (name, share) in [("a.jsonl", 5.0 / 8.5), ("b.jsonl", 1.0 / 8.5), ("c.jsonl", 2.5 / 8.5)] {
            let count = drawn[..end].iter().filter(|text| *text == name).count() as f64;
            assert!((count - share * end as f64).abs() <= 1.0, "{name} {end}: {count}");
        }
    }
    assert_eq!(stream.epoch(), 100 / 3, "the rarest data set counts the passes of all");
}

#[test]
fn rows_that_are_left_out_do_not_end_a_pass_and_a_stream_without_rows_is_an_error() {
    let dir = TempDir::new().unwrap();
    let rows = ["long", "x", "long", "long", "y", "long"].map(str::to_owned);
    let spec =
        DataSpec { train: vec![write(dir.path(), "a.jsonl", rows.into_iter())], ..DataSpec::default() };
    for block_rows in [1, 2, 3] {
        assert_eq!(
            texts(&mut open(&spec, block_rows, None, &Alive::default()), 5),
            ["x", "y", "x", "y", "x"]
        );
    }
    let none = ["long", "long"].map(str::to_owned);
    let spec =
        DataSpec { train: vec![write(dir.path(), "b.jsonl", none.into_iter())], ..DataSpec::default() };
    for block_rows in [1, 2, 3] {
        let error = try_open(&spec, block_rows, None, &Alive::default()).err().unwrap();
        assert!(matches!(error, DataError::Empty { num_filtered: 2, .. }), "{error}");
    }
}

#[test]
fn data_that_cannot_be_streamed_is_named() {
    let dir = TempDir::new().unwrap();
    let error = |name: &str, content: &str| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        let spec = DataSpec { train: vec![path.display().to_string()], ..DataSpec::default() };
        try_open(&spec, 2, None, &Alive::default()).err().unwrap().to_string()
    };
    assert!(error("a.json", "[{}]").contains("a.json: expected one JSON object a line"));
    assert!(error("a.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": ").contains("a.jsonl row 2"));
    let spec = DataSpec { train: vec!["/nowhere/a.jsonl".into()], ..DataSpec::default() };
    assert!(matches!(try_open(&spec, 2, None, &Alive::default()), Err(DataError::Open { .. })));
}
