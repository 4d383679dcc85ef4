//! Proves that a failure or a power loss at any instruction of a save leaves a complete checkpoint selected.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::json;
use tch::{Kind, Tensor};

use super::storage::{FileSystem, Storage, StorageFile};
use super::store::CheckpointStore;
use super::{Checkpoint, CheckpointContent};

/// Number of bytes written by one act. It is small, so that tests can also fail acts in the middle of a file.
const WRITE_BYTES: usize = 256;

/// A file system that works until act number `fail_at`. That act is left half done and fails; afterwards it
/// is either healthy again (a full disk that was cleaned) or dead (a killed process).
struct FailingStorage {
    disk: Arc<Mutex<Disk>>,
}

struct Disk {
    num_acts: usize,
    fail_at: usize,
    dies: bool,
    /// Bytes of each file that survive a power loss.
    synced: BTreeMap<PathBuf, u64>,
}

impl Disk {
    /// Counts an act, and returns an error if it fails. The flag says whether the act may be half done.
    fn act(&mut self) -> Result<(), (bool, io::Error)> {
        let idx = self.num_acts;
        self.num_acts += 1;
        let dead = self.dies && idx > self.fail_at;
        match dead || idx == self.fail_at {
            true => Err((!dead, io::ErrorKind::StorageFull.into())),
            false => Ok(()),
        }
    }
}

impl FailingStorage {
    fn act(&self) -> io::Result<()> {
        self.disk.lock().expect("no test panics while holding it").act().map_err(|(_, error)| error)
    }
}

impl Storage for FailingStorage {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.act().and_then(|()| FileSystem.create_dir(path))
    }

    fn create_file(&self, path: &Path) -> io::Result<Box<dyn StorageFile>> {
        self.act()?;
        let file = fs::File::create_new(path)?;
        self.disk.lock().expect("no test panics while holding it").synced.insert(path.to_path_buf(), 0);
        Ok(Box::new(FailingFile { path: path.to_path_buf(), file, disk: self.disk.clone() }))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.act().and_then(|()| FileSystem.sync_dir(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.act().and_then(|()| FileSystem.rename(from, to))?;
        let mut disk = self.disk.lock().expect("no test panics while holding it");
        let moved =
            |path: &PathBuf| path.strip_prefix(from).map(|rest| to.join(rest)).unwrap_or(path.clone());
        disk.synced = disk.synced.iter().map(|(path, &num_bytes)| (moved(path), num_bytes)).collect();
        Ok(())
    }

    fn exchange(&self, left: &Path, right: &Path) -> io::Result<()> {
        self.act().and_then(|()| FileSystem.exchange(left, right))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let acted = self.disk.lock().expect("no test panics while holding it").act();
        if let Err((half, error)) = acted {
            // A removal that stops half way has removed some of the files.
            if half && let Some(file) = fs::read_dir(path)?.next() {
                fs::remove_file(file?.path())?;
            }
            return Err(error);
        }
        FileSystem.remove_dir_all(path)
    }
}

struct FailingFile {
    path: PathBuf,
    file: fs::File,
    disk: Arc<Mutex<Disk>>,
}

impl Write for FailingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(WRITE_BYTES)];
        let acted = self.disk.lock().expect("no test panics while holding it").act();
        if let Err((half, error)) = acted {
            if half {
                self.file.write_all(&bytes[..bytes.len() / 2])?;
            }
            return Err(error);
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl StorageFile for FailingFile {
    fn sync_all(&mut self) -> io::Result<()> {
        let mut disk = self.disk.lock().expect("no test panics while holding it");
        disk.act().map_err(|(_, error)| error)?;
        disk.synced.insert(self.path.clone(), self.file.metadata()?.len());
        Ok(())
    }
}

fn content(step: u64) -> CheckpointContent {
    let weight = Tensor::arange(60, (Kind::Float, tch::Device::Cpu)).view([4, 15]) + step as f64;
    CheckpointContent {
        tensors: vec![("weight".into(), weight), ("steps".into(), Tensor::from(step as i64))],
        state: json!({ "step": step, "note": "x".repeat(100) }),
    }
}

fn assert_is_of(checkpoint: &Checkpoint, step: u64) {
    assert_eq!(checkpoint.step(), step);
    assert_eq!(checkpoint.state(), &content(step).state);
    assert_eq!(checkpoint.tensor("weight").expect("present"), content(step).tensors[0].1);
}

fn selected_step(dir: &Path) -> u64 {
    let mut store = CheckpointStore::open(dir, 2).expect("opens");
    let latest = store.latest_complete().expect("lists");
    assert!(latest.skipped.is_empty(), "torn checkpoints: {:?}", latest.skipped);
    let checkpoint = latest.checkpoint.expect("one is complete");
    assert_is_of(&checkpoint, checkpoint.step());
    checkpoint.step()
}

/// An attempt to save step `third` after steps 1 and 2 were saved, on a disk that fails at one act.
struct Attempt {
    store: CheckpointStore,
    saved: bool,
    /// Whether an act has failed; false if the save needs fewer acts than the one that would fail.
    failed: bool,
    disk: Arc<Mutex<Disk>>,
}

impl Attempt {
    fn new(dir: &Path, third: u64, fail_at: usize, dies: bool) -> Self {
        let mut store = CheckpointStore::open(dir, 2).expect("opens");
        for step in [1, 2] {
            store.save(step, &content(step)).expect("a healthy disk");
        }
        let disk = Arc::new(Mutex::new(Disk { num_acts: 0, fail_at, dies, synced: BTreeMap::new() }));
        let storage = FailingStorage { disk: disk.clone() };
        let mut store = CheckpointStore::with_storage(dir, 2, Box::new(storage)).expect("opens");
        let saved = store.save(third, &content(third)).is_ok();
        let failed = disk.lock().expect("unlocked").num_acts > fail_at;
        Self { store, saved, failed, disk }
    }
}

#[test]
fn a_kill_at_every_act_selects_the_previous_or_the_new_checkpoint() {
    for third in [3, 2] {
        for fail_at in 0.. {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let Attempt { saved, failed, .. } = Attempt::new(dir.path(), third, fail_at, true);
            let selected = selected_step(dir.path());
            assert!(selected == third || (selected == 2 && !saved), "act {fail_at}: selected {selected}");
            let entries = fs::read_dir(dir.path()).expect("lists");
            let hidden = entries.filter(|entry| {
                entry.as_ref().expect("listed").file_name().to_string_lossy().starts_with('.')
            });
            assert_eq!(hidden.count(), 0, "leftovers of act {fail_at}");
            if !failed {
                assert!(saved && fail_at > 10, "the save has {fail_at} acts");
                break;
            }
        }
    }
}

#[test]
fn a_power_loss_at_every_act_loses_no_committed_checkpoint() {
    for fail_at in 0.. {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let Attempt { failed, disk, .. } = Attempt::new(dir.path(), 3, fail_at, true);
        for (path, &num_bytes) in &disk.lock().expect("unlocked").synced {
            if let Ok(file) = fs::File::options().write(true).open(path) {
                file.set_len(num_bytes).expect("shortens");
            }
        }
        assert!([2, 3].contains(&selected_step(dir.path())), "act {fail_at}");
        if !failed {
            break;
        }
    }
}

#[test]
fn after_a_full_disk_the_same_store_saves_again() {
    for fail_at in 0.. {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let Attempt { mut store, saved, failed, .. } = Attempt::new(dir.path(), 3, fail_at, false);
        if !failed {
            assert!(saved);
            break;
        }
        assert!([2, 3].contains(&selected_step(dir.path())), "act {fail_at}");
        store.save(4, &content(4)).expect("the disk has room again");
        assert_eq!(selected_step(dir.path()), 4, "act {fail_at}");
    }
}
