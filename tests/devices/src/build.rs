//! Compiles the emulated libraries by g++. Processes share the result, which is named by the digest of the
//! sources, of the kernels and of libtorch's version.

mod incomplete;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};

use crate::KERNELS;

pub(crate) const KERNELS_FILE: &str = "rlt-kernels.fatbin";
/// Library of our kernels for the CPU, without a driver.
pub(crate) const KERNELS_ON_CPU: &str = "libkernels-on-cpu.so";
/// Program that shows how the fibers of a block execute faulty kernels.
pub(crate) const FIBERS_PROBE: &str = "fibers-probe";
/// Folder with the libraries of a machine on which two others are missing.
pub(crate) const INCOMPLETE: &str = "incomplete";

/// Options with which all sources are compiled. A product and a sum are rounded separately, as tests of
/// kernels expect.
const FLAGS: [&str; 8] = [
    "-std=c++17",
    "-fPIC",
    "-fopenmp",
    "-ffp-contract=off",
    "-DAT_PER_OPERATOR_HEADERS",
    "-D_GLIBCXX_USE_CXX11_ABI=1",
    "-Wall",
    "-Wno-unused-parameter",
];

/// Optimisation of the kernels, the driver and NCCL, in which tests spend their time.
const LEVEL: &str = "-O2";
/// Optimisation of sources with libtorch's headers, which compile more slowly the higher it is.
const TORCH_LEVEL: &str = "-O1";

/// An error of building the emulated devices.
#[derive(Debug)]
pub struct BuildError(String);

impl std::fmt::Display for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "building the stand-in devices: {}", self.0)
    }
}

impl std::error::Error for BuildError {}

fn failed(act: &str, path: &Path) -> impl FnOnce(io::Error) -> BuildError {
    let what = format!("{act} {}", path.display());
    move |error| BuildError(format!("{what}: {error}"))
}

/// A library or program: its file, the folders of its sources, and what it is linked with.
struct Linked {
    file: &'static str,
    is_program: bool,
    folders: &'static [&'static str],
    links: &'static [&'static str],
}

/// Libraries and programs in the order in which they are linked.
const LINKED: [Linked; 5] = [
    Linked { file: "libcuda.so.1", is_program: false, folders: &["driver", "on_cpu"], links: &["-pthread"] },
    Linked {
        file: "libtorch_cuda.so",
        is_program: false,
        folders: &["torch_cuda"],
        links: &["-ltorch_cpu", "-lc10", "-l:libcuda.so.1"],
    },
    Linked {
        file: "libnccl.so.2",
        is_program: false,
        folders: &["nccl"],
        links: &["-l:libcuda.so.1", "-pthread", "-lrt"],
    },
    Linked { file: KERNELS_ON_CPU, is_program: false, folders: &["on_cpu"], links: &["-pthread"] },
    Linked { file: FIBERS_PROBE, is_program: true, folders: &["on_cpu", "probe"], links: &["-pthread"] },
];

/// Folders of sources, libtorch and build output.
struct Places {
    sources: PathBuf,
    libtorch: PathBuf,
    target: PathBuf,
}

impl Places {
    fn find() -> Result<Self, BuildError> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let root = root.canonicalize().map_err(failed("finding", &root))?;
        let libtorch =
            std::env::var_os("LIBTORCH").map_or_else(|| root.join(".libtorch/torch"), PathBuf::from);
        let libtorch = libtorch.canonicalize().map_err(failed("finding libtorch in", &libtorch))?;
        // The running test's own path is target/<profile>/deps/<test>.
        let program = std::env::current_exe().map_err(failed("finding", Path::new("this program")))?;
        let target = program
            .ancestors()
            .find(|folder| folder.join("CACHEDIR.TAG").exists())
            .map_or_else(|| root.join("target"), Path::to_path_buf);
        Ok(Self { sources: root.join("tests/devices/csrc"), libtorch, target })
    }

    /// Returns the folder of CUDA's headers, next to libtorch.
    fn cuda(&self) -> PathBuf {
        self.libtorch.join("../nvidia/cu13/include")
    }

    /// Returns the folder with the `.cu` sources of our kernels.
    fn kernels(&self) -> PathBuf {
        self.sources.join("../../../trainer/torch/csrc/cuda")
    }
}

/// Returns the folder with libraries that are built from the current sources.
pub(crate) fn libraries() -> Result<PathBuf, BuildError> {
    let places = Places::find()?;
    let cache = places.target.join("stand-in");
    let link_rules = files_below(&places.sources.join("../src"))?;
    let all = [files_below(&places.sources)?, files_below(&places.kernels())?, link_rules].concat();
    let folder = cache.join(digest(&places, &all)?);
    if folder.exists() {
        return Ok(folder);
    }
    rlt_skipped::may_prepare("a library of the emulated devices").map_err(BuildError)?;
    fs::create_dir_all(&cache).map_err(failed("making", &cache))?;
    // One process compiles, the others wait for it.
    let lock = cache.join("lock");
    let held = File::create(&lock).map_err(failed("making", &lock))?;
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|error| failed("locking", &lock)(error.into()))?;
    if !folder.exists() {
        let work = tempfile::tempdir_in(&cache).map_err(failed("making a folder in", &cache))?;
        compile(&places, &cache.join("objects"), work.path())?;
        let image = work.path().join(KERNELS_FILE);
        fs::write(&image, KERNELS).map_err(failed("writing", &image))?;
        fs::rename(work.keep(), &folder).map_err(failed("moving to", &folder))?;
    }
    Ok(folder)
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>, BuildError> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return Ok(found) };
    for entry in entries {
        let path = entry.map_err(failed("reading", folder))?.path();
        if path.is_dir() {
            found.extend(files_below(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Computes the digest of the compiler options and of these files.
fn digest(places: &Places, files: &[PathBuf]) -> Result<String, BuildError> {
    let mut digest = Sha256::new();
    digest.update([FLAGS.join(" ").as_str(), LEVEL, TORCH_LEVEL].join(" "));
    digest.update(places.libtorch.as_os_str().as_encoded_bytes());
    for path in files {
        digest.update(path.as_os_str().as_encoded_bytes());
        digest.update(fs::read(path).map_err(failed("reading", path))?);
    }
    Ok(digest.finalize().iter().take(10).map(|byte| format!("{byte:02x}")).collect())
}

/// Lists the files that an object of `folder` includes: all headers, and for kernels their sources.
fn included(places: &Places, folder: &str) -> Result<Vec<PathBuf>, BuildError> {
    let mut files = files_below(&places.sources)?;
    files.retain(|path| !is_source(path));
    if folder == "on_cpu" {
        files.extend(files_below(&places.kernels())?);
    }
    Ok(files)
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "cpp")
}

/// Compiles the missing objects into `objects`, each named by its digest, and links all into `into`.
fn compile(places: &Places, objects: &Path, into: &Path) -> Result<(), BuildError> {
    fs::create_dir_all(objects).map_err(failed("making", objects))?;
    let (mut of_files, mut work) = (Vec::new(), Vec::new());
    for linked in &LINKED {
        let mut own = Vec::new();
        for folder in linked.folders {
            let included = included(places, folder)?;
            for source in
                files_below(&places.sources.join(folder))?.into_iter().filter(|path| is_source(path))
            {
                let digest = digest(places, &[included.as_slice(), std::slice::from_ref(&source)].concat())?;
                let object = objects.join(format!("{digest}.o"));
                own.push(object.clone());
                work.push((source, object));
            }
        }
        of_files.push(own);
    }
    // Several libraries share objects, so sorting finds duplicates.
    work.sort();
    work.dedup();
    work.retain(|(_, object)| !object.exists());
    compile_all(places, &work)?;
    for (linked, objects) in LINKED.iter().zip(&of_files) {
        link(places, linked, objects, into)?;
    }
    incomplete::make(&into.join(INCOMPLETE), &into.join(LINKED[0].file))
}

/// Links a library or program from its objects.
fn link(places: &Places, linked: &Linked, objects: &[PathBuf], into: &Path) -> Result<(), BuildError> {
    let mut link = Command::new("g++");
    link.args(["-fopenmp", "-Wl,--no-undefined", "-Wl,-rpath,$ORIGIN"]);
    if !linked.is_program {
        link.arg("-shared").arg(format!("-Wl,-soname,{}", linked.file));
    }
    link.arg("-o").arg(into.join(linked.file)).args(objects);
    link.arg("-L").arg(into).arg("-L").arg(places.libtorch.join("lib")).args(linked.links);
    run(&mut link)
}

/// Compiles sources to objects, as many at a time as there are cores.
fn compile_all(places: &Places, work: &[(PathBuf, PathBuf)]) -> Result<(), BuildError> {
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let num_threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..num_threads {
            scope.spawn(|| {
                while let Some((source, object)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = compile_one(places, source, object) {
                        failure
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner)
                            .get_or_insert(error);
                    }
                }
            });
        }
    });
    failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Compiles one source. The object file gets its final name once it is complete.
fn compile_one(places: &Places, source: &Path, object: &Path) -> Result<(), BuildError> {
    let unfinished = object.with_extension("part");
    run(&mut compiler(places, source, &unfinished))?;
    fs::rename(&unfinished, object).map_err(failed("moving to", object))
}

fn compiler(places: &Places, source: &Path, object: &Path) -> Command {
    let mut command = Command::new("g++");
    let has_torch = source.starts_with(places.sources.join("torch_cuda"));
    command.args(FLAGS).arg(if has_torch { TORCH_LEVEL } else { LEVEL });
    let include = places.libtorch.join("include");
    for folder in [include.clone(), include.join("torch/csrc/api/include"), places.cuda()] {
        command.arg("-isystem").arg(folder);
    }
    command.arg("-I").arg(&places.sources).arg("-I").arg(places.kernels());
    command.arg("-c").arg(source).arg("-o").arg(object);
    command
}

fn run(command: &mut Command) -> Result<(), BuildError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| BuildError(format!("starting {program}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(BuildError(format!("{program} {}: {text}", output.status)))
}
