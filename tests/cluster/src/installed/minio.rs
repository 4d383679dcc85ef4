//! MinIO, a real S3 object store, as a process of this machine.
//!
//! It serves one bucket from a folder of its own and ends with the thread that started it, however that ends.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rlt_skipped::{HeldPort, skip};
use tempfile::TempDir;

use crate::program::{MINIO, ProgramError};
use crate::requirements::go_is_missing;

/// How long the store may take to serve.
const PATIENCE: Duration = Duration::from_secs(120);
const USER: &str = "minio-user";
const PASSWORD: &str = "knows-the-word";

/// An error of starting MinIO.
#[derive(Debug, thiserror::Error)]
pub enum MinioError {
    /// The program could not be built.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A file, port or process could not be had.
    #[error("{act} failed")]
    Start {
        /// The operation that failed.
        act: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// MinIO did not answer in time.
    #[error("minio does not answer within {PATIENCE:?}; its log:\n{log}")]
    Silent {
        /// Log of the server.
        log: String,
    },
}

/// A store with one bucket.
#[derive(Debug)]
pub struct Minio {
    folder: TempDir,
    program: PathBuf,
    port: HeldPort,
    server: Option<Child>,
}

impl Minio {
    /// The one bucket that exists.
    pub const BUCKET: &str = "checkpoints";

    /// Starts a store on a free port. `None` where there is no Go to build it by: then the test says so and
    /// returns.
    ///
    /// # Errors
    /// When it does not build or does not serve.
    ///
    /// # Panics
    /// Under continuous integration, where a test must not be skipped.
    pub fn start() -> Result<Option<Self>, MinioError> {
        if let Some(reason) = go_is_missing(&MINIO.source_folder()) {
            skip(&reason);
            return Ok(None);
        }
        let program = MINIO.built()?.join("minio");
        let folder = tempfile::tempdir().map_err(failed("making a folder"))?;
        // A bucket is a folder.
        fs::create_dir_all(folder.path().join("data").join(Self::BUCKET))
            .map_err(failed("making a bucket"))?;
        let port = HeldPort::on([127, 0, 0, 1]).map_err(failed("looking for a free port"))?;
        let mut store = Self { folder, program, port, server: None };
        store.restart()?;
        Ok(Some(store))
    }

    /// Starts the store again on what it had stored, by the same port.
    ///
    /// # Errors
    /// When it does not serve.
    pub fn restart(&mut self) -> Result<(), MinioError> {
        self.kill();
        let log = fs::File::create(self.log()).map_err(failed("making a log"))?;
        let error_log = log.try_clone().map_err(failed("making a log"))?;
        let server = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(&self.program)
            .args(["server", "--quiet", "--address", &self.address(), "--certs-dir"])
            .arg(self.folder.path().join("certificates"))
            .arg(self.folder.path().join("data"))
            .envs([("MINIO_ROOT_USER", USER), ("MINIO_ROOT_PASSWORD", PASSWORD)])
            .envs([("MINIO_BROWSER", "off"), ("MINIO_UPDATE", "off"), ("MINIO_CI_CD", "on")])
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(error_log)
            .spawn()
            .map_err(failed("starting minio"))?;
        self.server = Some(server);
        let begun = Instant::now();
        while !self.serves() {
            if begun.elapsed() > PATIENCE {
                return Err(MinioError::Silent { log: fs::read_to_string(self.log()).unwrap_or_default() });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Ends the store by SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// Host and port.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    /// The environment of a client of this store, by way of `address`.
    pub fn environment(&self, address: &str) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT", format!("http://{address}")),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_ACCESS_KEY_ID", USER.into()),
            ("AWS_SECRET_ACCESS_KEY", PASSWORD.into()),
            ("AWS_REGION", "us-east-1".into()),
            ("NO_PROXY", "127.0.0.1".into()),
        ]
    }

    /// The keys of all objects that are whole, sorted.
    pub fn keys(&self) -> Vec<String> {
        let bucket = self.folder.path().join("data").join(Self::BUCKET);
        let mut keys = Vec::new();
        collect_keys(&bucket, &bucket, &mut keys);
        keys.sort();
        keys
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("minio.log")
    }

    fn serves(&self) -> bool {
        let ask = || -> io::Result<bool> {
            let mut stream = TcpStream::connect(self.address())?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.write_all(
                b"GET /minio/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            )?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer.starts_with("HTTP/1.1 200"))
        };
        ask().unwrap_or(false)
    }
}

impl Drop for Minio {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An object is a folder that holds `xl.meta`.
fn collect_keys(bucket: &Path, folder: &Path, keys: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.join("xl.meta").exists() {
            keys.push(path.strip_prefix(bucket).unwrap_or(&path).to_string_lossy().into_owned());
        } else if path.is_dir() {
            collect_keys(bucket, &path, keys);
        }
    }
}

fn failed(act: &'static str) -> impl FnOnce(io::Error) -> MinioError {
    move |source| MinioError::Start { act, source }
}
