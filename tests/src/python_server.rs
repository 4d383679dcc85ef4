//! Real servers of MLflow and Trackio, for tests of logging.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{HeldPort, MLFLOW, TRACKIO};

/// Maximum time that a server takes to start.
const PATIENCE: Duration = Duration::from_secs(120);
/// Python program that serves the runs of the folder in `TRACKIO_DIR`.
const SERVE_TRACKIO: &str = "import sys, trackio; trackio.show(\
    open_browser=False, block_thread=True, share=False, server_port=int(sys.argv[1]))";

/// A server of MLflow with its store in a folder; it ends when it is dropped.
#[derive(Debug)]
pub struct MlflowServer(Server);

impl MlflowServer {
    /// Starts a server at `port`, with the data of an earlier one in `folder`, and waits until it answers
    /// requests of the API. `None` where MLflow cannot be installed.
    ///
    /// # Panics
    /// When the server does not start.
    pub fn start(folder: &Path, port: &HeldPort) -> Option<Self> {
        let mut python = MLFLOW.python()?;
        let store = format!("sqlite:///{}/mlflow.db", folder.display());
        python.args(["-m", "mlflow", "server", "--workers", "1", "--backend-store-uri", &store, "--port"]);
        let server = Self(Server::start(&mut python, folder, port));
        // The first requests load modules and create tables, which takes longer than a client waits.
        server.0.wait_for(&Server::get("/api/2.0/mlflow/experiments/get-by-name?experiment_name=Default"));
        let experiments = json!({ "experiment_ids": ["0"] });
        server.0.wait_for(&Server::post("/api/2.0/mlflow/runs/search", "", &experiments));
        Some(server)
    }

    /// URL of the server.
    pub fn url(&self) -> String {
        self.0.url()
    }
}

/// A server of Trackio with its store in a folder; it ends when it is dropped.
#[derive(Debug)]
pub struct TrackioServer(Server);

impl TrackioServer {
    /// Token that authorises clients to log.
    pub const WRITE_TOKEN: &str = "of-the-test";

    /// Starts a server at `port`, with the data of an earlier one in `folder`, and waits until it answers
    /// requests of the API. `None` where Trackio cannot be installed.
    ///
    /// # Panics
    /// When the server does not start.
    pub fn start(folder: &Path, port: &HeldPort) -> Option<Self> {
        let mut python = TRACKIO.python()?;
        python.args(["-c", SERVE_TRACKIO]);
        python.env("TRACKIO_DIR", folder.join("trackio")).env("TRACKIO_WRITE_TOKEN", Self::WRITE_TOKEN);
        python.env("HF_HUB_OFFLINE", "1");
        let server = Self(Server::start(&mut python, folder, port));
        // The first logs load modules and create tables, which takes longer than a client waits.
        let token = format!("x-trackio-write-token: {}\r\n", Self::WRITE_TOKEN);
        let log = json!({
            "project": "made-at-the-start", "run": "first", "run_id": "first", "step": 0, "metrics": { "a": 0 },
            "log_id": "first/0"
        });
        let logs = json!({ "logs": [log], "hf_token": null });
        server.0.wait_for(&Server::post("/api/bulk_log", &token, &logs));
        Some(server)
    }

    /// URL of the server.
    pub fn url(&self) -> String {
        self.0.url()
    }
}

/// A process that serves on a port of this machine.
#[derive(Debug)]
struct Server {
    process: Child,
    port: u16,
    log: PathBuf,
}

impl Server {
    /// Starts `command` in `folder`, with the number of `port` as its last argument.
    #[expect(clippy::expect_used, reason = "a test fails by panicking")]
    fn start(command: &mut Command, folder: &Path, port: &HeldPort) -> Self {
        let log = folder.join("server.log");
        let file = File::create(&log).expect("the folder of the server");
        command.arg(port.number().to_string()).current_dir(folder).stdout(Stdio::null()).stderr(file);
        Self { process: command.spawn().expect("python3"), port: port.number(), log }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn get(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    }

    /// Returns a request with a JSON body. Each of `headers` ends with a line break.
    fn post(path: &str, headers: &str, body: &Value) -> String {
        let body = body.to_string();
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    }

    /// Repeats a request until it succeeds.
    ///
    /// # Panics
    /// When it does not succeed in time.
    fn wait_for(&self, request: &str) {
        let started = Instant::now();
        loop {
            let answer = self.ask(request).unwrap_or_else(|error| error.to_string());
            if answer.starts_with("HTTP/1.1 200") {
                return;
            }
            let said = || std::fs::read_to_string(&self.log).unwrap_or_default();
            assert!(started.elapsed() < PATIENCE, "{request}: {answer} for {PATIENCE:?}: {}", said());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn ask(&self, request: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that is asked to end also ends its child processes.
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}
