//! `rlt-trainer device`: shows the CUDA devices that this process can use, and why others cannot be used.

use std::fmt::Write as _;
use std::io::Write as _;

use clap::{Args, ValueEnum};
use rlt_torch::cuda::{
    self, CudaLibrary, CudaStatus, Driver, Gpu, GpuLink, Kernels, cuda_libraries, link_between,
};
use serde_json::{Value, json};

/// Width of the column of names, in characters.
const NAME_WIDTH: usize = 14;

/// Options of `device`.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Format of the output
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub output: Format,
}

/// Output format: text or JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for reading.
    Text,
    /// One JSON object.
    Json,
}

/// Everything that was detected: driver, libraries, GPUs and their links.
struct Sight {
    search: &'static CudaStatus,
    /// Newest version of CUDA that the driver supports.
    driver: Option<cuda::CudaVersion>,
    libraries: Vec<CudaLibrary>,
    gpus: Vec<SeenGpu>,
    /// Link of each pair of GPUs.
    links: Vec<(usize, usize, GpuLink)>,
    /// Error of the detection, if it failed.
    problem: Option<String>,
}

struct SeenGpu {
    gpu: Gpu,
    /// Error of loading our own kernels on this GPU; `None` if they were loaded.
    kernels: Option<String>,
}

/// Detects and prints devices. A machine without a GPU is not an error.
///
/// # Errors
/// If standard output cannot be written.
pub fn run(args: &DeviceArgs) -> std::io::Result<()> {
    let sight = Sight::take();
    let text = match args.output {
        Format::Text => sight.text(),
        Format::Json => format!("{:#}\n", sight.json()),
    };
    rlt_terminal::document().write_all(text.as_bytes())
}

impl Sight {
    fn take() -> Self {
        let search = cuda::detect_cuda();
        let driver = match (search, Driver::get()) {
            (CudaStatus::DriverTooOld { driver, .. }, _) => Some(*driver),
            (_, Ok(driver)) => driver.version().ok().map(cuda::CudaVersion),
            _ => None,
        };
        let seen = if search.num_gpus() > 0 { gpus_and_links() } else { Ok(Default::default()) };
        let ((gpus, links), problem) = match seen {
            Ok(seen) => (seen, None),
            Err(error) => (Default::default(), Some(error.to_string())),
        };
        Self { search, driver, libraries: cuda_libraries(), gpus, links, problem }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "{name:NAME_WIDTH$} {value}");
        };
        let driver = self.driver.map(|version| format!("serves CUDA up to {version}"));
        line("driver", driver.as_deref().unwrap_or("none"));
        for library in &self.libraries {
            let version =
                library.version.as_deref().map(|version| format!("{version}, ")).unwrap_or_default();
            match &library.file {
                Ok(path) => line(library.name, &format!("{version}{}", path.display())),
                Err(problem) => line(library.name, &format!("not found: {problem}")),
            }
        }
        for seen in &self.gpus {
            line(&format!("GPU {}", seen.gpu.index), &seen.text());
        }
        for (one, other, link) in &self.links {
            line(&format!("link {one}-{other}"), name_of(*link));
        }
        if let Some(problem) = &self.problem {
            line("problem", problem);
        }
        let _ = writeln!(text, "\n{}", self.search);
        if self.search.num_gpus() == 0 {
            text.push_str("Jobs compute on the CPU here.\n");
        }
        text
    }

    fn json(&self) -> Value {
        json!({
            "usable": self.search.num_gpus() > 0,
            "hasUnusableGpu": self.search.has_unusable_gpu(),
            "summary": self.search.to_string(),
            "driver": self.driver.map(|version| version.to_string()),
            "libraries": self.libraries.iter().map(library_json).collect::<Vec<_>>(),
            "gpus": self.gpus.iter().map(SeenGpu::json).collect::<Vec<_>>(),
            "links": self.links.iter().map(|(one, other, link)| {
                json!({ "between": [one, other], "kind": name_of(*link) })
            }).collect::<Vec<_>>(),
            "problem": self.problem,
        })
    }
}

type GpusAndLinks = (Vec<SeenGpu>, Vec<(usize, usize, GpuLink)>);

fn gpus_and_links() -> Result<GpusAndLinks, rlt_torch::Error> {
    let gpus = cuda::gpus()?;
    let mut links = Vec::new();
    for one in 0..gpus.len() {
        for other in one + 1..gpus.len() {
            links.push((one, other, link_between(one, other)?));
        }
    }
    let seen = |gpu: Gpu| {
        let kernels = Kernels::load(gpu.index).err().map(|error| error.to_string());
        SeenGpu { gpu, kernels }
    };
    Ok((gpus.into_iter().map(seen).collect(), links))
}

impl SeenGpu {
    fn text(&self) -> String {
        let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
        let (major, minor) = self.gpu.compute_capability;
        let kernels = self.kernels.as_deref().unwrap_or("loaded");
        format!(
            "{}, compute capability {major}.{minor}, {:.1} of {:.1} GiB free; own kernels: {kernels}",
            self.gpu.name,
            gib(self.gpu.free_bytes),
            gib(self.gpu.memory_bytes)
        )
    }

    fn json(&self) -> Value {
        let (major, minor) = self.gpu.compute_capability;
        json!({
            "index": self.gpu.index,
            "name": self.gpu.name,
            "computeCapability": format!("{major}.{minor}"),
            "memoryBytes": self.gpu.memory_bytes,
            "freeBytes": self.gpu.free_bytes,
            "kernels": { "loaded": self.kernels.is_none(), "problem": self.kernels },
        })
    }
}

fn library_json(library: &CudaLibrary) -> Value {
    json!({
        "name": library.name,
        "version": library.version,
        "path": library.file.as_ref().ok().map(|path| path.display().to_string()),
        "problem": library.file.as_ref().err(),
    })
}

fn name_of(link: GpuLink) -> &'static str {
    match link {
        GpuLink::NvLink => "NVLink",
        GpuLink::Pcie => "PCIe",
        GpuLink::Host => "through the host",
    }
}
