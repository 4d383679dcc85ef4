//! Real servers of MLflow and Trackio, for tests of logging.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{HeldPort, MLFLOW, TRACKIO};

/// Longest that a server takes to start.
const PATIENCE: Duration = Duration::from_secs(120);
/// Serves the runs of the folder in `TRACKIO_DIR`.
const SERVE_TRACKIO: &str = "import sys, trackio; trackio.show(\
    open_browser=False, block_thread=True, share=False, server_port=int(sys.argv[1]))";

/// A server of MLflow with its store in a folder; it ends when it is dropped.
#[derive(Debug)]
pub struct MlflowServer(Server);

impl MlflowServer {
    /// Starts a server at `port`, with the data of an earlier one in `folder`. `None` where MLflow cannot be
    /// installed.
    ///
    /// # Panics
    /// When the server does not start.
    pub fn start(folder: &Path, port: &HeldPort) -> Option<Self> {
        let mut python = MLFLOW.python()?;
        let store = format!("sqlite:///{}/mlflow.db", folder.display());
        python.args(["-m", "mlflow", "server", "--workers", "1", "--backend-store-uri", &store, "--port"]);
        Some(Self(Server::start(&mut python, folder, port, "/health")))
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
    /// Token that allows to log.
    pub const WRITE_TOKEN: &str = "of-the-test";

    /// Starts a server at `port`, with the data of an earlier one in `folder`. `None` where Trackio cannot be
    /// installed.
    ///
    /// # Panics
    /// When the server does not start.
    pub fn start(folder: &Path, port: &HeldPort) -> Option<Self> {
        let mut python = TRACKIO.python()?;
        python.args(["-c", SERVE_TRACKIO]);
        python.env("TRACKIO_DIR", folder.join("trackio")).env("TRACKIO_WRITE_TOKEN", Self::WRITE_TOKEN);
        python.env("HF_HUB_OFFLINE", "1");
        Some(Self(Server::start(&mut python, folder, port, "/version")))
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
}

impl Server {
    /// Starts `command`, whose last argument is missing, the number of `port`, in `folder`, and waits until
    /// `health` is answered.
    #[expect(clippy::expect_used, reason = "a test fails by panicking")]
    fn start(command: &mut Command, folder: &Path, port: &HeldPort, health: &str) -> Self {
        let log = folder.join("server.log");
        let file = File::create(&log).expect("the folder of the server");
        command.arg(port.number().to_string()).current_dir(folder).stdout(Stdio::null()).stderr(file);
        let server = Self { process: command.spawn().expect("python3"), port: port.number() };
        let started = Instant::now();
        while !server.is_ready(health).unwrap_or(false) {
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(started.elapsed() < PATIENCE, "no server in {PATIENCE:?}: {}", said());
            std::thread::sleep(Duration::from_millis(100));
        }
        server
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn is_ready(&self, health: &str) -> io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET {health} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.starts_with("HTTP/1.1 200"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Asked to end, it ends its own processes too.
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}
