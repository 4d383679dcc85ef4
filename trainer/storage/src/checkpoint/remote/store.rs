//! One run's prefix in an object store: reads and writes files of checkpoints. Completeness of checkpoints is
//! checked elsewhere.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ObjectStore, ObjectStoreExt, PutMode, RetryConfig, WriteMultipart};
use rlt_files::Refusal;
use rlt_tracking::http;
use sha2::{Digest, Sha256};

use super::super::identity::RunIdentity;
use super::super::load::MAX_JSON_BYTES;
use super::super::manifest::{self, FileEntry};
use super::super::order::step_of;
use super::CopyError;

/// Size of one part of an upload in bytes: small enough to be repeated, and large enough for the stores'
/// limits (at least 5 MiB, at most 10,000 parts).
const PART_BYTES: u64 = 8 << 20;
/// Maximum number of parts of a file; longer files have longer parts.
const MAX_PARTS: u64 = 9000;
/// Maximum number of concurrent uploads of parts.
const NUM_CONCURRENT: usize = 4;
/// Name of the file of a prefix that names the run to which its copies belong.
const OWNER: &str = "run.json";

/// Prefix of an object store with the copies of one run. All calls must come from the thread of one runtime.
pub(super) struct RemoteStore {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    /// The folder of a `file://` address, whose files may be devices or pipes.
    folder: Option<PathBuf>,
    uri: String,
    sent: Arc<AtomicU64>,
    part_bytes: u64,
}

impl RemoteStore {
    /// Creates a client for `uri`, with credentials, region and endpoint from the environment. Sends no
    /// request.
    pub(super) fn open(uri: &str) -> Result<Self, CopyError> {
        let (store, prefix) = store_of(uri)?;
        let folder = uri.strip_prefix("file://").map(PathBuf::from);
        Ok(Self { folder, ..Self::on(store, prefix, uri) })
    }

    pub(super) fn on(store: Arc<dyn ObjectStore>, prefix: Path, uri: &str) -> Self {
        let (uri, sent) = (http::without_password(uri), Arc::default());
        Self { store, prefix, folder: None, uri, sent, part_bytes: PART_BYTES }
    }

    /// Sets the size of parts, so that a test can upload several.
    #[cfg(test)]
    pub(super) fn with_part_bytes(self, part_bytes: u64) -> Self {
        Self { part_bytes, ..self }
    }

    /// Address of the prefix.
    pub(super) fn uri(&self) -> &str {
        &self.uri
    }

    /// Number of bytes that the object store has received so far, as a counter that grows during an upload.
    pub(super) fn sent(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.sent)
    }

    /// Returns the run to which the prefix belongs; `None` for an empty prefix, and for one of a release that
    /// wrote no owner.
    pub(super) async fn owner(&self) -> Result<Option<RunIdentity>, CopyError> {
        let Some(json) = self.read(&self.prefix.clone().join(OWNER)).await? else { return Ok(None) };
        let owner = serde_json::from_slice(&json);
        owner.map(Some).map_err(|source| CopyError::Owner { uri: self.uri.clone(), source })
    }

    /// Fails if the prefix belongs to another run than `run`; returns whether it belongs to any run.
    pub(super) async fn check_owner(&self, run: &RunIdentity) -> Result<bool, CopyError> {
        let Some(owner) = self.owner().await? else { return Ok(false) };
        match run.difference(&owner) {
            Some(difference) => Err(CopyError::OtherRun { uri: self.uri.clone(), difference }),
            None => Ok(true),
        }
    }

    /// Makes `run` the owner of the prefix unless another run is. If two runs begin at the same time, only
    /// one becomes the owner.
    pub(super) async fn claim(&self, run: &RunIdentity) -> Result<(), CopyError> {
        if self.check_owner(run).await? {
            return Ok(());
        }
        let path = self.prefix.clone().join(OWNER);
        let created = self.store.put_opts(&path, identity_json(run).into(), PutMode::Create.into()).await;
        if created.is_ok() || self.check_owner(run).await? {
            return Ok(());
        }
        // The store does not support creating an object only if it does not exist.
        self.give_to(run).await
    }

    /// Makes `run` the owner of the prefix, whoever was the owner before.
    pub(super) async fn give_to(&self, run: &RunIdentity) -> Result<(), CopyError> {
        let path = self.prefix.clone().join(OWNER);
        let written = self.store.put(&path, identity_json(run).into()).await;
        written.map(drop).map_err(CopyError::request(&self.uri, "write", &path))
    }

    /// Returns the names of all checkpoint folders, complete or not. Other objects are neither fetched nor
    /// removed.
    pub(super) async fn folders(&self) -> Result<BTreeSet<String>, CopyError> {
        let listed = self.store.list_with_delimiter(Some(&self.prefix)).await;
        let listed = listed.map_err(CopyError::request(&self.uri, "list", &self.prefix))?;
        let names = listed.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned));
        Ok(names.filter(|name| step_of(name).is_some()).collect())
    }

    /// Reads the manifest of a folder; `None` if the folder is not a checkpoint.
    pub(super) async fn manifest(&self, folder: &str) -> Result<Option<Vec<u8>>, CopyError> {
        self.read(&self.path(folder, manifest::FILE_NAME)).await
    }

    async fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, CopyError> {
        self.check_is_regular(path)?;
        let found = match self.store.get(path).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(CopyError::request(&self.uri, "read", path)(error)),
        };
        if found.meta.size > MAX_JSON_BYTES {
            return Err(self.unreadable(path, Refusal::TooLong { max_bytes: MAX_JSON_BYTES }.into()));
        }
        let bytes = found.bytes().await.map_err(CopyError::request(&self.uri, "read", path))?;
        Ok(Some(bytes.to_vec()))
    }

    /// Fails for a device, pipe or socket in the folder of a `file://` address. The store would open it, and
    /// wait for the writer of a pipe.
    fn check_is_regular(&self, path: &Path) -> Result<(), CopyError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        match rlt_files::open(&folder.join(path.to_string())) {
            Err(source) if rlt_files::is_refusal(&source) => Err(self.unreadable(path, source)),
            // The store reports all other errors.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn unreadable(&self, path: &Path, source: io::Error) -> CopyError {
        CopyError::Unreadable { place: format!("{} {path}", self.uri), source }
    }

    /// Writes a small file.
    pub(super) async fn put(&self, folder: &str, file: &str, bytes: Vec<u8>) -> Result<(), CopyError> {
        let path = self.path(folder, file);
        self.store.put(&path, bytes.into()).await.map_err(CopyError::request(&self.uri, "write", &path))?;
        Ok(())
    }

    /// Uploads a local file, and fails if it does not match `entry`. Bytes uploaded before a failure never
    /// become part of a checkpoint, because the manifest is uploaded last.
    pub(super) async fn put_file(
        &self,
        folder: &str,
        local: &FilePath,
        entry: &FileEntry,
    ) -> Result<(), CopyError> {
        let mut file = File::open(local).map_err(CopyError::local("open", local))?;
        let path = self.path(folder, &local.file_name().unwrap_or_default().to_string_lossy());
        let part_bytes = self.part_bytes.max(entry.num_bytes.div_ceil(MAX_PARTS));
        let mut reading = Reading { local, digest: Sha256::new(), num_bytes: 0, part_bytes };
        if entry.num_bytes <= part_bytes {
            let bytes = reading.next(&mut file)?;
            reading.check(entry)?;
            let written = self.store.put(&path, bytes.into()).await;
            written.map_err(CopyError::request(&self.uri, "write", &path))?;
            self.sent.fetch_add(entry.num_bytes, Ordering::Relaxed);
            return Ok(());
        }
        let upload = self.store.put_multipart(&path).await;
        let upload = upload.map_err(CopyError::request(&self.uri, "begin to write", &path))?;
        let mut writer = WriteMultipart::new_with_chunk_size(upload, part_bytes as usize);
        let sent = self.send_parts(&mut writer, &mut file, &mut reading).await;
        if let Err(error) = sent.and_then(|()| reading.check(entry)) {
            // Stores charge for leftover parts. An error of the removal would hide the one above.
            let _ = writer.abort().await;
            return Err(error);
        }
        writer.finish().await.map_err(CopyError::request(&self.uri, "finish writing", &path))?;
        Ok(())
    }

    async fn send_parts(
        &self,
        writer: &mut WriteMultipart,
        file: &mut File,
        reading: &mut Reading<'_>,
    ) -> Result<(), CopyError> {
        loop {
            let bytes = reading.next(file)?;
            if bytes.is_empty() {
                return Ok(());
            }
            let num_bytes = bytes.len() as u64;
            let capacity = writer.wait_for_capacity(NUM_CONCURRENT).await;
            capacity.map_err(CopyError::request(&self.uri, "write a part of", &self.prefix))?;
            writer.put(bytes.into());
            self.sent.fetch_add(num_bytes, Ordering::Relaxed);
        }
    }

    /// Downloads a file of `num_bytes` bytes.
    pub(super) async fn get_file(
        &self,
        folder: &str,
        local: &FilePath,
        num_bytes: u64,
    ) -> Result<(), CopyError> {
        let path = self.path(folder, &local.file_name().unwrap_or_default().to_string_lossy());
        self.check_is_regular(&path)?;
        let mut file = File::create(local).map_err(CopyError::local("create", local))?;
        let mut at = 0;
        while at < num_bytes {
            let end = num_bytes.min(at + self.part_bytes);
            let bytes = self.store.get_range(&path, at..end).await;
            let bytes = bytes.map_err(CopyError::request(&self.uri, "read", &path))?;
            file.write_all(&bytes).map_err(CopyError::local("write", local))?;
            at = end;
        }
        file.sync_all().map_err(CopyError::local("sync", local))
    }

    /// Removes a folder, its manifest first, so that a partly removed folder is not a checkpoint.
    pub(super) async fn remove(&self, folder: &str) -> Result<(), CopyError> {
        let path = self.prefix.clone().join(folder);
        self.delete(&path.clone().join(manifest::FILE_NAME)).await?;
        let listed = self.store.list_with_delimiter(Some(&path)).await;
        let listed = listed.map_err(CopyError::request(&self.uri, "list", &path))?;
        for object in listed.objects {
            self.delete(&object.location).await?;
        }
        Ok(())
    }

    /// Removes the manifest of a folder, after which the folder is not a checkpoint.
    pub(super) async fn remove_manifest(&self, folder: &str) -> Result<(), CopyError> {
        self.delete(&self.path(folder, manifest::FILE_NAME)).await
    }

    async fn delete(&self, path: &Path) -> Result<(), CopyError> {
        match self.store.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(CopyError::request(&self.uri, "delete", path)(error)),
        }
    }

    fn path(&self, folder: &str, file: &str) -> Path {
        self.prefix.clone().join(folder).join(file)
    }
}

fn identity_json(run: &RunIdentity) -> Vec<u8> {
    // Strings always serialise.
    serde_json::to_vec_pretty(run).unwrap_or_default()
}

/// A local file that is digested while it is uploaded.
struct Reading<'a> {
    local: &'a FilePath,
    digest: Sha256,
    num_bytes: u64,
    part_bytes: u64,
}

impl Reading<'_> {
    /// Reads the next part; empty at the end.
    fn next(&mut self, file: &mut File) -> Result<Vec<u8>, CopyError> {
        let mut bytes = Vec::new();
        file.take(self.part_bytes).read_to_end(&mut bytes).map_err(CopyError::local("read", self.local))?;
        self.digest.update(&bytes);
        self.num_bytes += bytes.len() as u64;
        Ok(bytes)
    }

    fn check(&self, entry: &FileEntry) -> Result<(), CopyError> {
        let digest = manifest::hex(&self.digest.clone().finalize());
        if self.num_bytes == entry.num_bytes && digest == entry.sha256 {
            return Ok(());
        }
        Err(CopyError::Changed { path: self.local.to_path_buf() })
    }
}

/// Returns the client for the address, and the folder within the store.
fn store_of(uri: &str) -> Result<(Arc<dyn ObjectStore>, Path), CopyError> {
    let address = || CopyError::Address { uri: http::without_password(uri) };
    let prepare = |source| CopyError::Prepare { uri: uri.to_owned(), source };
    let (scheme, rest) = uri.split_once("://").ok_or_else(address)?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    // Clients of object stores quote the bucket in errors, so an address with a password never reaches them.
    if bucket.is_empty() != (scheme == "file") || bucket.contains('@') {
        return Err(address());
    }
    let path = Path::parse(prefix).map_err(|_| address())?;
    let retry = retries();
    let store: Arc<dyn ObjectStore> = match scheme {
        "s3" => {
            let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
            Arc::new(builder.build().map_err(prepare)?)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retry);
            Arc::new(builder.build().map_err(prepare)?)
        }
        "az" => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket).with_retry(retry);
            Arc::new(builder.build().map_err(prepare)?)
        }
        "file" => {
            let folder = FilePath::new("/").join(prefix);
            fs::create_dir_all(&folder).map_err(CopyError::local("create folder", &folder))?;
            let store = LocalFileSystem::new_with_prefix(&folder).map_err(prepare)?;
            return Ok((Arc::new(store), Path::default()));
        }
        _ => return Err(address()),
    };
    Ok((store, path))
}

/// Returns the retry settings of one request, which is repeated for some seconds. The upload of a full copy
/// is repeated for as long as the run continues.
fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries: 4,
        retry_timeout: Duration::from_secs(30),
    }
}
