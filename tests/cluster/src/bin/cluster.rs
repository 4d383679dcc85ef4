//! `cluster up`, `down` and `sweep`: a cluster for manual use, by the same code as in tests.
//!
//! `up` leaves a process behind that owns the cluster, and `down` asks it to end over a socket; killing the
//! process ends the cluster, too.

#![expect(clippy::print_stdout, reason = "it talks to people")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rlt_cluster::{Cluster, Options};

/// Name of the socket in a cluster's folder by which its end is requested.
const SOCKET: &str = "up.sock";
const USAGE: &str =
    "usage: cluster up [--chart FOLDER] [IMAGE.tar ...]   start a cluster with a real node, these images loaded and this chart
                                                    installed
       cluster down                                 end it
       cluster sweep                                end what processes left that were killed";
/// The release, and its namespace.
const RELEASE: &str = "rl-operator";

/// An error of a command.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{USAGE}")]
    Usage,
    #[error("no cluster can run here: {0}")]
    Unavailable(String),
    #[error("a cluster is up already; `cluster down` ends it")]
    IsUp,
    #[error("the cluster did not start: {0}")]
    NotStarted(String),
    #[error("helm could not install {chart}: {answer}")]
    Chart { chart: String, answer: String },
    #[error(transparent)]
    Cluster(#[from] rlt_cluster::ClusterError),
    #[error(transparent)]
    Slot(#[from] rlt_cluster::SlotError),
    #[error("{act} failed")]
    System { act: &'static str, source: io::Error },
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["up", images @ ..] => up(images),
        ["down"] => down(),
        ["sweep"] => sweep(),
        ["own", images @ ..] => run_owner(images),
        ["own-control-plane"] => own_control_plane(),
        _ => Err(Failure::Usage),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let mut text = failure.to_string();
            let mut cause = std::error::Error::source(&failure);
            while let Some(source) = cause {
                text.push_str(&format!(": {source}"));
                cause = source.source();
            }
            let _ = writeln!(io::stderr(), "{text}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the owner in the background and waits until its cluster is ready.
fn up(images: &[&str]) -> Result<(), Failure> {
    if let Some(reason) = Options::control_plane().with_real_node().unavailable() {
        return Err(Failure::Unavailable(reason));
    }
    rlt_cluster::sweep()?;
    if sockets().next().is_some() {
        return Err(Failure::IsUp);
    }
    let failed = |source| Failure::System { act: "starting the cluster's owner", source };
    let program = std::env::current_exe().map_err(failed)?;
    let mut owner = Command::new(program)
        .arg("own")
        .args(images)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let mut first = String::new();
    if let Some(stdout) = owner.stdout.take() {
        BufReader::new(stdout).read_line(&mut first).map_err(failed)?;
    }
    let kubeconfig = first.trim();
    if kubeconfig.is_empty() {
        let mut answer = String::new();
        if let Some(mut stderr) = owner.stderr.take() {
            stderr.read_to_string(&mut answer).map_err(failed)?;
        }
        return Err(Failure::NotStarted(answer.trim().to_owned()));
    }
    println!("{kubeconfig}");
    Ok(())
}

/// Owns a cluster until `down` asks it to end. Says on its first line how to call `kubectl`.
fn run_owner(arguments: &[&str]) -> Result<(), Failure> {
    let (chart, images) = match arguments {
        ["--chart", chart, images @ ..] => (Some(chart), images),
        images => (None, images),
    };
    let cluster = Cluster::start(&Options::control_plane().with_real_node())?;
    for image in images {
        cluster.load_image(Path::new(image))?;
    }
    if let Some(chart) = chart {
        install(&cluster, chart)?;
    }
    let failed = |source| Failure::System { act: "listening for the cluster's end", source };
    let listener = UnixListener::bind(cluster.kubeconfig().with_file_name(SOCKET)).map_err(failed)?;
    greet(&cluster);
    let (mut asked, _) = listener.accept().map_err(failed)?;
    drop(cluster);
    asked.write_all(b"ended\n").map_err(failed)
}

/// Installs a chart and waits until what it brings is ready.
fn install(cluster: &Cluster, chart: &str) -> Result<(), Failure> {
    let mut helm = cluster.helm()?;
    helm.args(["upgrade", "--install", RELEASE, chart, "--namespace", RELEASE, "--create-namespace"]);
    let output = helm.args(["--wait", "--timeout", "120s"]).output();
    let output = output.map_err(|source| Failure::System { act: "calling helm", source })?;
    if output.status.success() {
        return Ok(());
    }
    let answer = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::Chart { chart: chart.to_owned(), answer })
}

/// Owns a control plane until standard input ends.
fn own_control_plane() -> Result<(), Failure> {
    let cluster = Cluster::start(&Options::control_plane())?;
    greet(&cluster);
    let failed = |source| Failure::System { act: "waiting for the end of input", source };
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop).map_err(failed)
}

/// Says how to call `kubectl`, in one line.
fn greet(cluster: &Cluster) {
    let kubectl = PathBuf::from(cluster.kubectl().get_program());
    println!("KUBECONFIG={} {}", cluster.kubeconfig().display(), kubectl.display());
}

/// Asks the owner to end its cluster and waits until it has.
fn down() -> Result<(), Failure> {
    let failed = |source| Failure::System { act: "asking for the cluster's end", source };
    for socket in sockets() {
        let mut owner = UnixStream::connect(socket).map_err(failed)?;
        owner.read_to_string(&mut String::new()).map_err(failed)?;
    }
    Ok(())
}

/// Sockets of clusters that wait to be requested their end.
fn sockets() -> impl Iterator<Item = PathBuf> {
    let folders = std::fs::read_dir(rlt_cluster::ROOT).into_iter().flatten().flatten();
    folders.map(|folder| folder.path().join(SOCKET)).filter(|socket| socket.exists())
}

fn sweep() -> Result<(), Failure> {
    println!("{} clusters swept", rlt_cluster::sweep()?);
    Ok(())
}
