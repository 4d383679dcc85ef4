//! Download of the newest complete copy into the local folder, if it is newer than all local checkpoints.

use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::super::load;
use super::super::order::{order_of, step_of};
use super::super::{Checkpoint, RunIdentity};
use super::CopyError;
use super::error::with_causes;
use super::store::RemoteStore;

/// Prefix of a temporary folder into which a copy is downloaded.
pub(in super::super) const FETCHING: &str = ".fetching-";
/// Maximum number of attempts to fetch a copy.
const NUM_TRIES: u32 = 2;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// Messages about a fetch for the user: one line for the fetched copy, one for every damaged copy.
pub(in super::super) type Notes = Vec<String>;

/// Downloads the newest complete copy at `uri` into `folder`, if its save index is above `newer_than`.
///
/// # Errors
/// When the object store cannot be reached or rejects the credentials. A damaged copy is not an error: it is
/// reported in the notes, and an older copy is tried.
pub(in super::super) fn fetch_newer(
    uri: &str,
    run: &RunIdentity,
    folder: &Path,
    newer_than: Option<u64>,
) -> Result<Notes, CopyError> {
    let (runtime, remote) = (runtime()?, RemoteStore::open(uri)?);
    tried_again(|| runtime.block_on(fetch_from(&remote, run, folder, newer_than)))
}

/// Removes all copies at `uri`, and makes `run` their owner. The copies that are removed may belong to `run`,
/// to `earlier`, or to no run.
///
/// # Errors
/// When the object store cannot be reached or rejects the credentials, or when the copies belong to another
/// run; then no copy is removed.
pub fn clear(uri: &str, run: &RunIdentity, earlier: Option<&RunIdentity>) -> Result<(), CopyError> {
    let (runtime, remote) = (runtime()?, RemoteStore::open(uri)?);
    tried_again(|| runtime.block_on(clear_at(&remote, run, earlier)))
}

pub(super) async fn clear_at(
    remote: &RemoteStore,
    run: &RunIdentity,
    earlier: Option<&RunIdentity>,
) -> Result<(), CopyError> {
    let owner = remote.owner().await?;
    let is_of_earlier = |owner| earlier.is_some_and(|earlier| earlier.difference(owner).is_none());
    if !owner.as_ref().is_some_and(is_of_earlier) {
        remote.check_owner(run).await?;
    }
    for name in remote.folders().await? {
        remote.remove(&name).await?;
    }
    remote.give_to(run).await
}

pub(super) fn runtime() -> Result<Runtime, CopyError> {
    Builder::new_current_thread().enable_all().build().map_err(CopyError::Thread)
}

fn tried_again<T>(mut act: impl FnMut() -> Result<T, CopyError>) -> Result<T, CopyError> {
    let mut tries = 1;
    loop {
        match act() {
            Err(error) if tries < NUM_TRIES && !error.is_permanent() => {
                tracing::warn!("{}; trying again", with_causes(&error));
                std::thread::sleep(PAUSE);
                tries += 1;
            }
            result => return result,
        }
    }
}

pub(super) async fn fetch_from(
    remote: &RemoteStore,
    run: &RunIdentity,
    folder: &Path,
    newer_than: Option<u64>,
) -> Result<Notes, CopyError> {
    remote.check_owner(run).await?;
    let mut notes = Notes::new();
    for (save_index, name) in newest_first(remote, &mut notes).await? {
        if Some(save_index) <= newer_than {
            break;
        }
        match fetch_one(remote, run, folder, &name).await {
            Ok(()) => {
                notes.push(format!("fetched checkpoint {name} from {}", remote.uri()));
                break;
            }
            Err(CopyError::Checkpoint(error)) => notes.push(damaged(remote, &name, &error)),
            Err(error @ CopyError::Unreadable { .. }) => notes.push(damaged(remote, &name, &error)),
            Err(error) => return Err(error),
        }
    }
    Ok(notes)
}

/// Returns the copies that have a manifest, by save index and step, newest first.
async fn newest_first(remote: &RemoteStore, notes: &mut Notes) -> Result<Vec<(u64, String)>, CopyError> {
    let mut found = Vec::new();
    for name in remote.folders().await? {
        let json = match remote.manifest(&name).await {
            Err(error @ CopyError::Unreadable { .. }) => {
                notes.push(damaged(remote, &name, &error));
                continue;
            }
            read => read?,
        };
        let (Some(step), Some(json)) = (step_of(&name), json) else { continue };
        let manifest = load::parse_manifest(Path::new(&name), &json);
        match manifest.and_then(|manifest| order_of(&manifest, step, Path::new(&name))) {
            Ok(order) => found.push((order, name)),
            Err(error) => notes.push(damaged(remote, &name, &error)),
        }
    }
    found.sort_unstable_by(|one, other| other.cmp(one));
    Ok(found.into_iter().map(|((save_index, _), name)| (save_index, name)).collect())
}

fn damaged(remote: &RemoteStore, name: &str, error: &dyn Error) -> String {
    format!("passed over a damaged copy of checkpoint {name} at {}: {}", remote.uri(), with_causes(error))
}

/// Downloads one copy into a temporary folder, verifies every byte, and renames the folder.
async fn fetch_one(
    remote: &RemoteStore,
    run: &RunIdentity,
    folder: &Path,
    name: &str,
) -> Result<(), CopyError> {
    // The name contains the process id, because several processes of a machine may fetch into one folder.
    let temporary = folder.join(format!("{FETCHING}{name}-{}", std::process::id()));
    if temporary.exists() {
        fs::remove_dir_all(&temporary).map_err(CopyError::local("remove folder", &temporary))?;
    }
    fs::create_dir_all(&temporary).map_err(CopyError::local("create folder", &temporary))?;
    let fetched = fetch_files(remote, &temporary, name).await;
    let fetched = fetched.and_then(|checkpoint| check_run(remote, run, &checkpoint));
    let fetched = fetched.and_then(|()| commit(&temporary, &folder.join(name)));
    if fetched.is_err() {
        // An error of the removal would hide the one above; leftovers are removed at the next open.
        let _ = fs::remove_dir_all(&temporary);
    }
    fetched
}

/// Refuses a copy whose state names another run, whatever the owner of the prefix.
fn check_run(remote: &RemoteStore, run: &RunIdentity, checkpoint: &Checkpoint) -> Result<(), CopyError> {
    let saved = checkpoint.identity()?;
    let difference = saved.and_then(|saved| run.difference(&saved));
    difference
        .map_or(Ok(()), |difference| Err(CopyError::OtherRun { uri: remote.uri().to_owned(), difference }))
}

async fn fetch_files(remote: &RemoteStore, temporary: &Path, name: &str) -> Result<Checkpoint, CopyError> {
    let path = temporary.join(super::super::manifest::FILE_NAME);
    let json = remote.manifest(name).await?.unwrap_or_default();
    let manifest = load::parse_manifest(&path, &json)?;
    for (file, entry) in &manifest.files {
        remote.get_file(name, &temporary.join(file), entry.num_bytes).await?;
    }
    let mut file = fs::File::create(&path).map_err(CopyError::local("create", &path))?;
    file.write_all(&json).and_then(|()| file.sync_all()).map_err(CopyError::local("write", &path))?;
    rlt_files::sync_folder(temporary).map_err(CopyError::local("sync", temporary))?;
    Ok(Checkpoint::open(temporary)?)
}

/// Renames the verified folder to its final name. A damaged local checkpoint of that name is removed first.
fn commit(temporary: &Path, path: &Path) -> Result<(), CopyError> {
    if path.exists() {
        fs::remove_dir_all(path).map_err(CopyError::local("remove folder", path))?;
    }
    fs::rename(temporary, path).map_err(CopyError::local("rename folder", temporary))?;
    let parent = path.parent().unwrap_or(path);
    rlt_files::sync_folder(parent).map_err(CopyError::local("sync", parent))
}
