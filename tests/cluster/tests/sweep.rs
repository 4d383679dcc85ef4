//! A cluster whose owner is killed: the janitor ends it, and the next start removes leftovers. These tests
//! are an executable of their own, because a cluster that another test starts meanwhile removes the same
//! leftovers, and may take the folder that they leave.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rlt_cluster::{Options, can_run};

/// Longest that a test waits for the sweep or for started programs, each of which takes a tenth of a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster that starts sweeps what the other test has just killed.
static ALONE: Mutex<()> = Mutex::new(());

/// Number of programs of a control plane: etcd, API server, controller manager, scheduler.
const NUM_PROGRAMS: usize = 4;

/// A process that owns a control plane, all of whose programs run, and the folder of that cluster.
fn owner() -> (Child, PathBuf) {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_cluster"))
        .arg("own-control-plane")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(owner.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let kubeconfig = line.trim().strip_prefix("KUBECONFIG=").unwrap().split(' ').next().unwrap();
    let folder = Path::new(kubeconfig).parent().unwrap().to_owned();
    wait_until("all programs run", &folder, || num_programs(&folder) == NUM_PROGRAMS);
    (owner, folder)
}

/// Number of programs of the cluster in `folder`. A program that has just been started is not counted yet:
/// first its process is `nsenter`, and while a process begins another program it has no command line.
fn num_programs(folder: &Path) -> usize {
    processes_of(folder).iter().filter(|line| !line.starts_with("nsenter\0")).count()
}

fn wait_until(what: &str, folder: &Path, is_met: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_met() {
        assert!(started.elapsed() < PATIENCE, "not in time: {what}; processes: {:?}", processes_of(folder));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Processes of the machine, zombies left out, whose command line names a file in `folder`.
fn processes_of(folder: &Path) -> Vec<String> {
    let needle = format!("{}/", folder.display());
    let entries = std::fs::read_dir("/proc").unwrap();
    let lines =
        entries.filter_map(|entry| std::fs::read_to_string(entry.unwrap().path().join("cmdline")).ok());
    lines.filter(|line| line.contains(&needle)).collect()
}

fn is_gone(folder: &Path) -> bool {
    let name = format!("rlt-{}", folder.file_name().unwrap().to_string_lossy());
    let netns = Path::new("/run/netns").join(&name);
    let link = Path::new("/sys/class/net").join(&name);
    !folder.exists() && !netns.exists() && !link.exists() && processes_of(folder).is_empty()
}

#[test]
fn nothing_is_left_when_the_owner_is_killed() {
    let _alone = ALONE.lock().unwrap();
    if !can_run(&Options::control_plane()) {
        return;
    }
    let (mut owner, folder) = owner();
    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_until("nothing is left", &folder, || is_gone(&folder));
}

#[test]
fn leftovers_of_a_killed_janitor_are_removed_by_the_next_start() {
    let _alone = ALONE.lock().unwrap();
    if !can_run(&Options::control_plane()) {
        return;
    }
    let (mut owner, folder) = owner();
    let janitor =
        children(owner.id()).into_iter().find(|pid| command_line(*pid).starts_with("sh\0")).unwrap();
    for pid in [janitor, owner.id()] {
        assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
    }
    owner.wait().unwrap();
    wait_until("nothing is left", &folder, || {
        rlt_cluster::sweep().unwrap();
        is_gone(&folder)
    });
}

fn command_line(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

fn children(pid: u32) -> Vec<u32> {
    let output = Command::new("ps").args(["-o", "pid=", "--ppid", &pid.to_string()]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}
