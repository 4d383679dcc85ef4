//! Copies in stores that work: folders and memory. Stores that fail are tested in complete runs.

use std::fs;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::super::{CheckpointContent, CheckpointStore, RunIdentity};
use super::fetch::{clear_at, fetch_from, runtime};
use super::store::RemoteStore;
use super::upload::Uploads;
use super::{CopyError, clear};

/// Maximum time that a test waits for a copy, which takes milliseconds on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(100);

fn content(step: u64) -> CheckpointContent {
    let weight = Tensor::arange(5000, (Kind::Float, Device::Cpu)) + step as f64;
    CheckpointContent { tensors: vec![("weight".into(), weight)], state: json!({ "step": step }) }
}

fn run_named(name: &str, learning_rate: &str) -> RunIdentity {
    RunIdentity { run: name.into(), spec: json!({ "training": { "learningRate": learning_rate } }) }
}

fn this_run() -> RunIdentity {
    run_named("one", "1e-6")
}

fn remote(store: &Arc<InMemory>) -> RemoteStore {
    RemoteStore::on(store.clone(), Path::from("runs/one"), "memory").with_part_bytes(4096)
}

/// The names of all objects below the prefix.
fn objects(store: &InMemory, folder: &str) -> Vec<String> {
    let listed = runtime().unwrap().block_on(store.list_with_delimiter(Some(&Path::from(folder)))).unwrap();
    listed.objects.iter().map(|object| object.location.filename().unwrap().to_owned()).collect()
}

fn folders(store: &Arc<InMemory>) -> Vec<String> {
    runtime().unwrap().block_on(remote(store).folders()).unwrap().into_iter().collect()
}

fn save_and_copy(store: &Arc<InMemory>, dir: &FilePath, keep: usize, steps: &[u64]) {
    let uploads = Uploads::with_remote(remote(store), keep, &this_run()).unwrap();
    let mut checkpoints = CheckpointStore::open(dir, 100).unwrap();
    for &step in steps {
        let saved = checkpoints.save(step, &content(step)).unwrap();
        uploads.request(step, &saved.path);
        uploads.finish(PATIENCE).unwrap();
        assert_eq!(uploads.copied_step(), Some(step));
        assert!(!uploads.needs(&saved.path));
    }
}

fn fetch(store: &Arc<InMemory>, dir: &FilePath, newer_than: Option<u64>) -> Vec<String> {
    runtime().unwrap().block_on(fetch_from(&remote(store), &this_run(), dir, newer_than)).unwrap()
}

fn newest(dir: &FilePath) -> Option<u64> {
    let latest = CheckpointStore::open(dir, 100).unwrap().latest_complete().unwrap();
    let checkpoint = latest.checkpoint?;
    assert!(checkpoint.tensor("weight").unwrap().equal(&content(checkpoint.step()).tensors[0].1));
    Some(checkpoint.step())
}

#[test]
fn a_multipart_copy_is_fetched_byte_for_byte_and_only_the_newest_are_kept() {
    let (store, here, there) =
        (Arc::new(InMemory::new()), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    save_and_copy(&store, here.path(), 2, &[1, 2, 3]);
    assert_eq!(folders(&store), ["step-000002", "step-000003"]);
    assert_eq!(fetch(&store, there.path(), None).len(), 1);
    for file in ["manifest.json", "state.json", "shard-00000.safetensors"] {
        let read = |dir: &FilePath| fs::read(dir.join("step-000003").join(file)).unwrap();
        assert!(read(here.path()) == read(there.path()), "{file}");
    }
    assert_eq!(newest(there.path()), Some(3));
    assert!(fetch(&store, there.path(), Some(3)).is_empty(), "nothing newer is there");
}

#[test]
fn the_last_saved_checkpoint_is_the_newest_also_after_a_run_went_back() {
    let (store, here, there) =
        (Arc::new(InMemory::new()), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    save_and_copy(&store, here.path(), 2, &[7, 8, 5]);
    assert_eq!(folders(&store), ["step-000005", "step-000008"]);
    fetch(&store, there.path(), None);
    assert_eq!(newest(there.path()), Some(5));
}

#[test]
fn a_copy_that_was_cut_off_does_not_count_and_is_swept() {
    let (store, here, there) =
        (Arc::new(InMemory::new()), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    save_and_copy(&store, here.path(), 3, &[1, 2]);
    runtime().unwrap().block_on(remote(&store).remove_manifest("step-000002")).unwrap();
    assert_eq!(objects(&store, "runs/one/step-000002").len(), 2);
    fetch(&store, there.path(), None);
    assert_eq!(newest(there.path()), Some(1));
    save_and_copy(&store, there.path(), 3, &[3]);
    assert_eq!(folders(&store), ["step-000001", "step-000003"]);
}

#[test]
fn a_damaged_copy_is_skipped_with_a_warning_and_copied_again() {
    let (store, here, there) =
        (Arc::new(InMemory::new()), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    save_and_copy(&store, here.path(), 3, &[1, 2]);
    let shard = Path::from("runs/one/step-000002/shard-00000.safetensors");
    let runtime = runtime().unwrap();
    let mut bytes = runtime.block_on(async { store.get(&shard).await?.bytes().await }).unwrap().to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    runtime.block_on(store.put(&shard, bytes.into())).unwrap();
    let notes = fetch(&store, there.path(), None);
    assert!(notes[0].contains("step-000002") && notes[0].contains("SHA-256"), "{notes:?}");
    assert_eq!(newest(there.path()), Some(1));
    save_and_copy(&store, there.path(), 3, &[2]);
    assert_eq!(fetch(&store, here.path(), Some(1)).len(), 1);
    assert_eq!(newest(here.path()), Some(2));
}

/// Names in the store are untrusted. The one below would leave the run's folder on a system with `\\` as its
/// separator, and elsewhere would be preferred to the newest checkpoint without being one.
#[test]
fn a_folder_whose_name_is_not_its_step_is_skipped_and_foreign_files_are_kept() {
    let (store, here, there) =
        (Arc::new(InMemory::new()), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    save_and_copy(&store, here.path(), 3, &[1, 2]);
    let runtime = runtime().unwrap();
    let named = |name: &str, file: &str| Path::from("runs/one").join(name).join(file);
    for name in ["step-9", "step-..\\..\\evil", "step-000009"] {
        for file in objects(&store, "runs/one/step-000002") {
            runtime.block_on(store.copy(&named("step-000002", &file), &named(name, &file))).unwrap();
        }
    }
    runtime.block_on(remote(&store).remove_manifest("step-000002")).unwrap();
    assert_eq!(folders(&store), ["step-000001", "step-000002", "step-000009"]);
    let notes = fetch(&store, there.path(), None);
    assert!(notes[0].contains("it is of step 2, its folder's name says 9"), "{notes:?}");
    assert_eq!(newest(there.path()), Some(1));
    save_and_copy(&store, there.path(), 1, &[3]);
    assert_eq!(folders(&store), ["step-000003", "step-000009"], "it is neither counted nor removed");
    assert_eq!(objects(&store, "runs/one/step-9").len(), 3, "another's folder was removed");
}

/// Waits for the error of a copy, whose first try may not have failed yet.
fn failure_of(uploads: &Uploads) -> String {
    let started = Instant::now();
    loop {
        let result = uploads.finish(Duration::ZERO);
        match &result {
            Err(error) if !error.to_string().contains("nothing moved") => return error.to_string(),
            _ => assert!(started.elapsed() < PATIENCE, "no copy fails: {result:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_local_checkpoint_that_does_not_fit_its_manifest_is_never_copied_as_whole() {
    let (store, here) = (Arc::new(InMemory::new()), tempfile::tempdir().unwrap());
    let saved = CheckpointStore::open(here.path(), 3).unwrap().save(1, &content(1)).unwrap();
    let shard = saved.path.join("shard-00000.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    bytes[9000] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let uploads = Uploads::with_remote(remote(&store), 3, &this_run()).unwrap();
    uploads.request(1, &saved.path);
    let error = failure_of(&uploads);
    assert!(error.contains("is not what its manifest says"), "{error}");
    assert!(uploads.needs(&saved.path) && uploads.copied_step().is_none());
    assert!(!objects(&store, "runs/one/step-000001").contains(&"manifest.json".to_owned()));
}

#[test]
fn a_folder_is_a_store_and_can_be_cleared() {
    let (here, there, store) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let uri = format!("file://{}/copies", store.path().display());
    let mut checkpoints =
        CheckpointStore::open(here.path(), 1).unwrap().copied_to(&uri, &this_run()).unwrap();
    for step in 1..=4 {
        checkpoints.save(step, &content(step)).unwrap();
    }
    checkpoints.finish_copies(PATIENCE).unwrap();
    assert_eq!(checkpoints.copied_step(), Some(4));
    let elsewhere = CheckpointStore::open(there.path(), 1).unwrap().copied_to(&uri, &this_run()).unwrap();
    assert_eq!(elsewhere.fetch_newer().unwrap().len(), 1);
    assert_eq!(newest(there.path()), Some(4));
    clear(&uri, &this_run(), None).unwrap();
    let empty = tempfile::tempdir().unwrap();
    let third = CheckpointStore::open(empty.path(), 1).unwrap().copied_to(&uri, &this_run()).unwrap();
    assert!(third.fetch_newer().unwrap().is_empty());
}

fn replace_by_pipe(path: &FilePath) {
    fs::remove_file(path).unwrap();
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).unwrap();
}

/// Opened to be read, each of these pipes would wait for a writer.
#[test]
fn a_pipe_in_a_folder_of_copies_is_skipped_as_a_damaged_copy_and_never_opened() {
    let (here, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let uri = format!("file://{}", store.path().display());
    let fetched = |dir: &FilePath| {
        let remote = RemoteStore::open(&uri).unwrap();
        runtime().unwrap().block_on(fetch_from(&remote, &this_run(), dir, None))
    };
    let mut checkpoints =
        CheckpointStore::open(here.path(), 9).unwrap().copied_to(&uri, &this_run()).unwrap();
    for step in [1, 2] {
        checkpoints.save(step, &content(step)).unwrap();
        checkpoints.finish_copies(PATIENCE).unwrap();
    }
    for file in ["manifest.json", "state.json", "shard-00000.safetensors"] {
        let (path, there) = (store.path().join("step-000002").join(file), tempfile::tempdir().unwrap());
        let content = fs::read(&path).unwrap();
        replace_by_pipe(&path);
        let notes = fetched(there.path()).unwrap();
        assert!(notes[0].contains("step-000002") && notes[0].contains("found a pipe"), "{notes:?}");
        assert_eq!(newest(there.path()), Some(1), "{file}");
        fs::remove_file(&path).unwrap();
        fs::write(path, content).unwrap();
    }

    // The next copy of a checkpoint replaces the pipe in its own folder. Retention does not remove the folder
    // of another checkpoint whose manifest is a pipe.
    let [old, new] = ["step-000001", "step-000002"].map(|name| store.path().join(name).join("manifest.json"));
    for manifest in [&old, &new] {
        replace_by_pipe(manifest);
    }
    let uploads = Uploads::with_remote(RemoteStore::open(&uri).unwrap(), 1, &this_run()).unwrap();
    uploads.request(2, &here.path().join("step-000002"));
    uploads.finish(PATIENCE).unwrap();
    let there = tempfile::tempdir().unwrap();
    fetched(there.path()).unwrap();
    assert_eq!(newest(there.path()), Some(2));
    assert!(old.exists());

    let owner = store.path().join("run.json");
    for expected in ["found a pipe", "expected at most"] {
        match expected {
            "found a pipe" => replace_by_pipe(&owner),
            // The file is sparse. Its length is known without reading it.
            _ => fs::File::create(&owner).unwrap().set_len((1 << 30) + 1).unwrap(),
        }
        let error = fetched(there.path()).unwrap_err();
        assert!(matches!(error, CopyError::Unreadable { .. }) && error.is_permanent(), "{error}");
        let causes = crate::error_chain(&error);
        assert!(causes.contains(expected), "{causes}");
        fs::remove_file(&owner).unwrap();
        fs::write(&owner, "{").unwrap();
    }
}

#[test]
fn an_invalid_address_is_refused_with_the_valid_forms() {
    let with_password = "s3://user:pass-word@bucket/prefix";
    for uri in ["bucket/prefix", "ftp://bucket", "s3://", "file://relative", "gs:///prefix", with_password] {
        let error = RemoteStore::open(uri).err().unwrap();
        assert!(matches!(error, CopyError::Address { .. }) && error.is_permanent(), "{uri}: {error}");
        assert!(error.to_string().contains("s3://BUCKET/PREFIX"), "{error}");
        assert!(!error.to_string().contains("pass-word"), "{error}");
    }
}

/// All bytes of the prefix, by name.
fn content_of(store: &Arc<InMemory>) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for folder in [vec![String::new()], folders(store)].concat() {
        for file in objects(store, &format!("runs/one/{folder}")) {
            let path = Path::from(format!("runs/one/{folder}/{file}"));
            let bytes = runtime().unwrap().block_on(async { store.get(&path).await?.bytes().await });
            found.push((path.to_string(), bytes.unwrap().to_vec()));
        }
    }
    found
}

fn assert_refused(result: Result<(), CopyError>, said: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, CopyError::OtherRun { .. }) && error.is_permanent(), "{error}");
    assert!(error.to_string().contains(said), "{error}");
}

#[test]
fn copies_of_another_run_are_neither_fetched_nor_removed_nor_overwritten() {
    let (store, here, there) =
        (Arc::new(InMemory::new()), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    save_and_copy(&store, here.path(), 2, &[1, 2]);
    let before = content_of(&store);
    for (other, said) in [
        (run_named("two", "1e-6"), "it belongs to the job `one`, this job is `two`"),
        (run_named("one", "1e-5"), "spec.training.learningRate: \"1e-6\" there, \"1e-5\" here"),
    ] {
        let runtime = runtime().unwrap();
        let fetched = runtime.block_on(fetch_from(&remote(&store), &other, there.path(), None));
        assert_refused(fetched.map(drop), said);
        assert_refused(runtime.block_on(clear_at(&remote(&store), &other, None)), said);
        let earlier = run_named("three", "1e-4");
        assert_refused(runtime.block_on(clear_at(&remote(&store), &other, Some(&earlier))), said);
        let uploads = Uploads::with_remote(remote(&store), 1, &other).unwrap();
        let saved = CheckpointStore::open(there.path(), 9).unwrap().save(9, &content(9)).unwrap();
        uploads.request(9, &saved.path);
        assert_refused(uploads.finish(PATIENCE), said);
        assert!(content_of(&store) == before, "{said}");
        fs::remove_dir_all(saved.path).unwrap();
    }
    // A run may start afresh under another manifest if its folder contains the earlier run that owns the
    // prefix.
    let faster = run_named("one", "1e-5");
    runtime().unwrap().block_on(clear_at(&remote(&store), &faster, Some(&this_run()))).unwrap();
    assert!(folders(&store).is_empty());
    let owner = runtime().unwrap().block_on(remote(&store).owner()).unwrap();
    assert_eq!(owner, Some(faster));
}

#[test]
fn one_of_two_runs_that_begin_at_once_gets_the_prefix() {
    let store = Arc::new(InMemory::new());
    let claim = |run: &RunIdentity| runtime().unwrap().block_on(remote(&store).claim(run));
    claim(&this_run()).unwrap();
    claim(&this_run()).unwrap();
    assert_refused(claim(&run_named("two", "1e-6")), "it belongs to the job `one`");
}

#[test]
fn a_copy_without_an_identity_is_fetched_and_one_of_another_run_is_not_whatever_the_prefix_says() {
    let (store, here, there) =
        (Arc::new(InMemory::new()), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    save_and_copy(&store, here.path(), 2, &[1]);
    // The prefix of an older release, which wrote no identity.
    let owner = Path::from("runs/one/run.json");
    runtime().unwrap().block_on(store.delete(&owner)).unwrap();
    assert_eq!(fetch(&store, there.path(), None).len(), 1);
    assert_eq!(newest(there.path()), Some(1));

    let other = json!({ "step": 2, "run": run_named("two", "1e-6") });
    let tensors = content(2).tensors;
    let mut checkpoints = CheckpointStore::open(here.path(), 9).unwrap();
    let saved = checkpoints.save(2, &CheckpointContent { tensors, state: other }).unwrap();
    let uploads = Uploads::with_remote(remote(&store), 2, &this_run()).unwrap();
    uploads.request(2, &saved.path);
    uploads.finish(PATIENCE).unwrap();
    let fetched = runtime().unwrap().block_on(fetch_from(&remote(&store), &this_run(), there.path(), None));
    assert_refused(fetched.map(drop), "it belongs to the job `two`");
    assert_eq!(newest(there.path()), Some(1));
}

#[test]
fn a_prefix_whose_owner_cannot_be_read_is_left_alone() {
    let (store, there) = (Arc::new(InMemory::new()), tempfile::tempdir().unwrap());
    let owner = Path::from("runs/one/run.json");
    runtime().unwrap().block_on(store.put(&owner, b"{".to_vec().into())).unwrap();
    let fetched = runtime().unwrap().block_on(fetch_from(&remote(&store), &this_run(), there.path(), None));
    let error = fetched.unwrap_err();
    assert!(matches!(error, CopyError::Owner { .. }) && error.is_permanent(), "{error}");
}

#[test]
fn the_copy_of_the_best_checkpoint_stays_until_a_better_one_has_its_own() {
    let (store, here) = (Arc::new(InMemory::new()), tempfile::tempdir().unwrap());
    let mut checkpoints = CheckpointStore::open(here.path(), 100).unwrap();
    let mut save = |step: u64| checkpoints.save(step, &content(step)).unwrap().path;
    let uploads = Uploads::with_remote(remote(&store), 1, &this_run()).unwrap();
    let best = save(1);
    uploads.request(1, &best);
    uploads.protect(1, &best);
    uploads.finish(PATIENCE).unwrap();
    uploads.request(2, &save(2));
    uploads.finish(PATIENCE).unwrap();
    assert_eq!(folders(&store), ["step-000001", "step-000002"]);

    // The better checkpoint is damaged locally, so it cannot be copied.
    let better = save(3);
    let shard = better.join("shard-00000.safetensors");
    let whole = fs::read(&shard).unwrap();
    fs::write(&shard, b"damaged").unwrap();
    uploads.request(3, &better);
    uploads.protect(3, &better);
    uploads.request(4, &save(4));
    let started = Instant::now();
    while uploads.copied_step() != Some(4) {
        assert!(started.elapsed() < PATIENCE, "the newest one is not copied");
        std::thread::sleep(Duration::from_millis(5));
    }
    // A failure after the copy of step 4 shows that older copies have been removed by now.
    let error = failure_of(&uploads);
    assert!(folders(&store).contains(&"step-000001".to_owned()), "{error}: {:?}", folders(&store));
    assert!(uploads.needs(&better));

    fs::write(&shard, whole).unwrap();
    uploads.finish(PATIENCE).unwrap();
    assert_eq!(uploads.copied_step(), Some(4), "a copy that is made late is not the newest");
    let manifests = folders(&store);
    let whole =
        |name: &String| objects(&store, &format!("runs/one/{name}")).contains(&"manifest.json".to_owned());
    let manifests: Vec<_> = manifests.iter().filter(|name| whole(name)).collect();
    assert_eq!(manifests, ["step-000003", "step-000004"]);
}
