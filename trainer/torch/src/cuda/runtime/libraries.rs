//! CUDA's libraries in this process, with path and reported version of each.

use std::ffi::{CStr, c_int};
use std::path::PathBuf;

use super::driver::{Handle, open, symbol};
use crate::Error;

/// A CUDA library, found or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaLibrary {
    /// Usual name of the library.
    pub name: &'static str,
    /// Version that the library reports; `None` if it is missing or reports none.
    pub version: Option<String>,
    /// Path of the library's file, or the dynamic linker's message.
    pub file: Result<PathBuf, String>,
}

/// Interface by which a library reports its version.
enum Version {
    /// The library reports no version.
    None,
    /// `function(int* version)`, with the formatter of its decimal encoding.
    Number(&'static CStr, fn(i64) -> String),
    /// `size_t function()`, with the formatter of its decimal encoding.
    Returned(&'static CStr, fn(i64) -> String),
    /// `function(part, int* number)` for the parts 0, 1 and 2.
    Parts(&'static CStr),
}

struct Known {
    name: &'static str,
    files: &'static [&'static CStr],
    version: Version,
}

/// Libraries to look for. libtorch's CUDA library comes first: the others are found by its search path.
const KNOWN: [Known; 5] = [
    Known { name: "libtorch_cuda", files: &[c"libtorch_cuda.so"], version: Version::None },
    Known {
        name: "CUDA runtime",
        files: &[c"libcudart.so.13", c"libcudart.so.12"],
        version: Version::Number(c"cudaRuntimeGetVersion", |v| format!("{}.{}", v / 1000, v % 1000 / 10)),
    },
    Known {
        name: "cuBLAS",
        files: &[c"libcublas.so.13", c"libcublas.so.12"],
        version: Version::Parts(c"cublasGetProperty"),
    },
    Known {
        name: "cuDNN",
        files: &[c"libcudnn.so.9"],
        version: Version::Returned(c"cudnnGetVersion", |v| {
            format!("{}.{}.{}", v / 10_000, v % 10_000 / 100, v % 100)
        }),
    },
    Known {
        name: "NCCL",
        files: &[c"libnccl.so.2"],
        version: Version::Number(c"ncclGetVersion", |v| {
            format!("{}.{}.{}", v / 10_000, v % 10_000 / 100, v % 100)
        }),
    },
];

/// Loads each of CUDA's libraries that this process can find.
pub fn cuda_libraries() -> Vec<CudaLibrary> {
    KNOWN.iter().map(find).collect()
}

fn find(known: &Known) -> CudaLibrary {
    let mut missing = String::new();
    for file in known.files {
        match open(file) {
            Ok(library) => {
                let name = file.to_string_lossy();
                let path = loaded_from(&name).unwrap_or_else(|| PathBuf::from(name.into_owned()));
                return CudaLibrary {
                    name: known.name,
                    version: version(library, &known.version),
                    file: Ok(path),
                };
            }
            Err(Error::Library { message, .. }) if missing.is_empty() => missing = message,
            Err(_) => {}
        }
    }
    CudaLibrary { name: known.name, version: None, file: Err(missing) }
}

/// Returns the path of a loaded library.
pub(in crate::cuda) fn loaded_from(name: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let stem = name.split(".so").next()?;
    paths
        .filter(|path| {
            let file = path.rsplit('/').next().unwrap_or_default();
            file == name || file.strip_prefix(stem).is_some_and(|rest| rest.starts_with(".so"))
        })
        .map(PathBuf::from)
        .next()
}

fn version(library: Handle, by: &Version) -> Option<String> {
    let mut number: c_int = 0;
    // SAFETY: the libraries' headers declare functions of these names with these arguments.
    unsafe {
        match by {
            Version::None => None,
            Version::Number(name, text) => {
                let get: unsafe extern "C" fn(*mut c_int) -> c_int =
                    std::mem::transmute(symbol(library, name).ok()?);
                (get(&mut number) == 0).then(|| text(number.into()))
            }
            Version::Returned(name, text) => {
                let get: unsafe extern "C" fn() -> usize = std::mem::transmute(symbol(library, name).ok()?);
                Some(text(get() as i64))
            }
            Version::Parts(name) => {
                let get: unsafe extern "C" fn(c_int, *mut c_int) -> c_int =
                    std::mem::transmute(symbol(library, name).ok()?);
                let mut parts = [0; 3];
                for (idx, part) in parts.iter_mut().enumerate() {
                    if get(idx as c_int, part) != 0 {
                        return None;
                    }
                }
                Some(parts.map(|part| part.to_string()).join("."))
            }
        }
    }
}
