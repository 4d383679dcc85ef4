//! A real MLflow server, for tests of logging.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::python_with;

/// The package of the server and its client.
pub const MLFLOW: &str = "mlflow==3.17.2";
/// Longest that a server takes to start.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server with its store in a folder; it ends when it is dropped.
#[derive(Debug)]
pub struct MlflowServer {
    process: Child,
    port: u16,
}

impl MlflowServer {
    /// Starts a server on `port`, with the data of an earlier one in `folder`. `None` where MLflow cannot be
    /// installed.
    ///
    /// # Panics
    /// When the server does not start.
    #[expect(clippy::expect_used, reason = "a test fails by panicking")]
    pub fn start(folder: &Path, port: u16) -> Option<Self> {
        let mut python = python_with(&[MLFLOW])?;
        let store = format!("sqlite:///{}/mlflow.db", folder.display());
        python.args(["-m", "mlflow", "server", "--workers", "1", "--backend-store-uri", &store, "--port"]);
        let log = folder.join("server.log");
        let file = File::create(&log).expect("the folder of the server");
        python.arg(port.to_string()).current_dir(folder).stdout(Stdio::null()).stderr(file);
        let server = Self { process: python.spawn().expect("python3"), port };
        let started = Instant::now();
        while !server.is_ready().unwrap_or(false) {
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(started.elapsed() < PATIENCE, "no server in {PATIENCE:?}: {}", said());
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(server)
    }

    /// A port that no process listens on now.
    ///
    /// # Errors
    /// When there is none.
    pub fn free_port() -> io::Result<u16> {
        Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn is_ready(&self) -> io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.starts_with("HTTP/1.1 200"))
    }
}

impl Drop for MlflowServer {
    fn drop(&mut self) {
        // Asked to end, it ends its own processes too.
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}
