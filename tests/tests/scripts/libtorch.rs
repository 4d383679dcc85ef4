//! The script that fetches libtorch, with a fake pip: which downloads it keeps, and which it refuses.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rlt_tests::workspace_root;

/// The files of the wheels that builds and runs need.
const NEEDED: [&str; 5] = [
    "torch/lib/libtorch_cpu.so",
    "torch/lib/libc10.so",
    "torch/include/torch/csrc/api/include/torch/torch.h",
    "nvidia/cu13/lib/libcudart.so.13",
    "nvidia/cu13/lib/libcupti.so.13",
];

/// A checkout with the script, an empty cache, and a `python3` whose pip runs the shell code `download`.
struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new(download: &str) -> Self {
        let machine = Self { root: tempfile::tempdir().unwrap() };
        for folder in ["checkout/trainer/torch", "bin", "wheel"] {
            fs::create_dir_all(machine.path(folder)).unwrap();
        }
        let script = "trainer/torch/fetch-libtorch.sh";
        fs::copy(workspace_root().join(script), machine.path("checkout").join(script)).unwrap();
        let python = format!(
            "#!/bin/bash\nif [ \"$1 $2\" != '-m pip' ]; then exec {} \"$@\"; fi\n[ \"$3\" = --version ] && exit 0\n\
             while [ $# -gt 0 ]; do case $1 in --dest) dest=$2;; --requirement) wanted=$2;; esac; shift; done\n\
             mkdir -p \"$dest\"\n{download}\n",
            which("python3").display()
        );
        let path = machine.path("bin/python3");
        fs::write(&path, python).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        machine
    }

    /// Makes a machine whose pip downloads one wheel with `files`.
    fn with_wheel(files: &[&str]) -> Self {
        let machine = Self::new("cp \"$WHEEL\" \"$dest/all.whl\" || exit 1; cp \"$wanted\" \"$SEEN\"");
        for file in files {
            let path = machine.path("wheel").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        let mut zip = Command::new("python3");
        zip.args(["-m", "zipfile", "-c", "../all.whl"]).args(["torch", "nvidia"]);
        assert!(zip.current_dir(machine.path("wheel")).status().unwrap().success());
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn fetch(&self, libtorch: Option<&str>) -> Output {
        self.script(libtorch).output().unwrap()
    }

    fn fetch_with_cuda(&self, libtorch: Option<&str>) -> Output {
        self.script(libtorch).env("CUDA", "1").output().unwrap()
    }

    fn script(&self, libtorch: Option<&str>) -> Command {
        let mut script = Command::new("bash");
        script.arg(self.path("checkout/trainer/torch/fetch-libtorch.sh"));
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        script
            .env("PATH", path)
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env_remove("LIBTORCH")
            .env_remove("CUDA");
        script.env("WHEEL", self.path("all.whl")).env("SEEN", self.path("seen"));
        script.envs(libtorch.map(|folder| ("LIBTORCH", folder)));
        script
    }

    /// Folders in the cache, hidden ones included.
    fn cached_folders(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("cache/rlt")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn which(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.exists()).unwrap()
}

#[track_caller]
fn refuses(output: &Output, words: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(words), "{said}");
}

#[test]
fn a_fetched_libtorch_serves_every_later_call() {
    let machine = Machine::with_wheel(&NEEDED);
    let first = machine.fetch(None);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let link = machine.path("checkout/.libtorch");
    assert!(NEEDED.iter().all(|file| link.join(file).exists()));
    assert_eq!(machine.cached_folders().len(), 1, "{:?}", machine.cached_folders());
    let wanted = fs::read_to_string(machine.path("seen")).unwrap();
    assert!(
        wanted.lines().count() == 3
            && wanted.lines().all(|line| line.contains("==") && line.contains("sha256:"))
    );

    fs::remove_file(machine.path("all.whl")).unwrap();
    fs::remove_file(&link).unwrap();
    assert!(machine.fetch(None).status.success(), "nothing is downloaded again");
    assert!(link.join(NEEDED[0]).exists());
}

#[test]
fn a_download_that_fails_or_lacks_a_library_leaves_nothing() {
    let failing = Machine::new("echo half >\"$dest/half.whl\"; exit 1");
    refuses(&failing.fetch(None), "nothing was kept");
    let lacking = Machine::with_wheel(&[&NEEDED[..1], &NEEDED[2..]].concat());
    refuses(&lacking.fetch(None), "lack a library");
    for machine in [failing, lacking] {
        assert_eq!(machine.cached_folders(), Vec::<String>::new());
        assert!(!Path::new(&machine.path("checkout/.libtorch")).exists());
    }
}

#[test]
fn a_half_kept_version_is_fetched_anew() {
    let machine = Machine::with_wheel(&NEEDED);
    assert!(machine.fetch(None).status.success());
    let link = machine.path("checkout/.libtorch");
    fs::remove_file(link.join(NEEDED[3])).unwrap();
    assert!(machine.fetch(None).status.success());
    assert!(link.join(NEEDED[3]).exists());
    assert_eq!(machine.cached_folders().len(), 1, "{:?}", machine.cached_folders());
}

#[test]
fn cuda_s_libraries_are_fetched_beside_the_others_only_where_asked_and_once() {
    let machine = Machine::with_wheel(&NEEDED);
    assert!(machine.fetch(None).status.success());
    let listed = || fs::read_to_string(machine.path("seen")).unwrap();
    assert!(!listed().contains("cudnn"), "a CPU needs none of it");

    let of_cuda = "nvidia/cudnn/lib/libcudnn.so.9";
    let brought = Machine::with_wheel(&[&NEEDED[..], &[of_cuda]].concat());
    fs::copy(brought.path("all.whl"), machine.path("all.whl")).unwrap();
    let second = machine.fetch_with_cuda(None);
    assert!(second.status.success(), "{}", String::from_utf8_lossy(&second.stderr));
    let link = machine.path("checkout/.libtorch");
    assert!(NEEDED.iter().chain([&of_cuda]).all(|file| link.join(file).exists()));
    assert_eq!(machine.cached_folders().len(), 1, "{:?}", machine.cached_folders());
    for name in ["nvidia-cublas==", "nvidia-cudnn-cu13==", "nvidia-nccl-cu13=="] {
        assert!(listed().lines().any(|line| line.starts_with(name) && line.contains("sha256:")), "{name}");
    }

    fs::remove_file(machine.path("all.whl")).unwrap();
    assert!(machine.fetch_with_cuda(None).status.success(), "nothing is downloaded again");
    assert!(machine.fetch(None).status.success(), "and a CPU's build takes what is there");
}

#[test]
fn a_download_of_cuda_that_fails_leaves_what_a_cpu_needs_and_is_begun_anew() {
    let machine = Machine::with_wheel(&NEEDED);
    assert!(machine.fetch(None).status.success());
    fs::rename(machine.path("all.whl"), machine.path("later.whl")).unwrap();
    refuses(&machine.fetch_with_cuda(None), "nothing was kept");
    assert!(machine.fetch(None).status.success());
    fs::rename(machine.path("later.whl"), machine.path("all.whl")).unwrap();
    assert!(machine.fetch_with_cuda(None).status.success());
    assert_eq!(machine.cached_folders().len(), 1, "{:?}", machine.cached_folders());
}

#[test]
fn a_libtorch_of_one_s_own_is_respected_or_refused_by_name() {
    let machine = Machine::new("exit 1");
    refuses(&machine.fetch(Some("/nowhere/torch")), "LIBTORCH=/nowhere/torch holds no lib/libtorch_cpu.so");
    let own = machine.path("own");
    fs::create_dir_all(own.join("lib")).unwrap();
    fs::write(own.join("lib/libtorch_cpu.so"), "").unwrap();
    assert!(machine.fetch(own.to_str()).status.success());
    assert!(!machine.path("checkout/.libtorch").exists(), "nothing is linked");
    refuses(&machine.fetch_with_cuda(own.to_str()), "holds no lib/libtorch_cuda.so");
}
