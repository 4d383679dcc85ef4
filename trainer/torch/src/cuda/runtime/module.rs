//! The file of compiled kernels: its path, loading, and launches of its functions.
//!
//! `make kernels` compiles `csrc/cuda` with a pinned nvcc, and writes the registers, shared memory and
//! occupancy of each kernel to `csrc/cuda/resources.md`. Tests compile the same sources for the CPU
//! (`tests/devices`).

use super::super::kernels::BUILT_FOR;
use super::driver::{Attribute, Context, Driver, Handle, NO_BINARY_FOR_GPU, UNSUPPORTED_PTX_VERSION};
use super::stream::Stream;
use crate::Error;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

pub(in crate::cuda) const FILE_NAME: &str = "rlt-kernels.fatbin";
/// Dynamic shared memory in bytes that a block may use without opting in.
const FREE_SHARED_BYTES: usize = 48 << 10;

/// Shape of a launch: blocks, threads per block, and dynamic shared memory in bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct Shape {
    pub(in crate::cuda) grid: [u32; 3],
    pub(in crate::cuda) threads: u32,
    pub(in crate::cuda) shared_bytes: usize,
}

impl Shape {
    pub(in crate::cuda) fn blocks(grid: [usize; 3], threads: u32) -> Self {
        Self { grid: grid.map(|n| n as u32), threads, shared_bytes: 0 }
    }
}

/// A function of the module, with the dynamic shared memory that was granted to it.
#[derive(Clone, Copy)]
struct Function {
    handle: Handle,
    shared_bytes: usize,
}

/// Our kernels as a module loaded into one device.
pub(in crate::cuda) struct Module {
    device: usize,
    handle: Handle,
    functions: Mutex<HashMap<String, Function>>,
}

// SAFETY: the driver's handles are used from any thread; the module is never unloaded.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// Paths at which the file of kernels may be, in the order of the search.
fn candidates() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("RLT_KERNELS") {
        return vec![path.into()];
    }
    let mut folders = Vec::new();
    if let Some(beside) = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned)) {
        folders.push(beside.clone());
        folders.push(beside.join("../lib"));
    }
    folders.extend(folder_of_torch_cuda());
    folders.into_iter().map(|folder| folder.join(FILE_NAME)).collect()
}

/// Folder from which this process has loaded libtorch's CUDA library.
fn folder_of_torch_cuda() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().find_map(|line| line.find('/').map(|at| &line[at..]).filter(is_torch_cuda))?;
    Path::new(path).parent().map(Path::to_owned)
}

fn is_torch_cuda(path: &&str) -> bool {
    path.ends_with("/libtorch_cuda.so")
}

/// Reads the file of kernels; returns its path and contents.
fn read() -> Result<(PathBuf, Vec<u8>), Error> {
    let tried = candidates();
    for path in &tried {
        match std::fs::read(path) {
            Ok(code) => return Ok((path.clone(), code)),
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(Error::File { act: "reading the kernels", folder: path.clone(), source });
            }
        }
    }
    Err(Error::KernelsMissing { tried })
}

impl Module {
    pub(in crate::cuda) fn load(device: usize) -> Result<Self, Error> {
        let driver = Driver::get()?;
        let (path, mut code) = read()?;
        // PTX is text that must end in a NUL; a fat binary contains its length.
        code.push(0);
        let _context = Context::enter(driver, device)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the image outlives the call, which copies what it keeps.
        let loaded = unsafe { (driver.module_load_data)(&mut handle, code.as_ptr().cast()) };
        if loaded == NO_BINARY_FOR_GPU || loaded == UNSUPPORTED_PTX_VERSION {
            let capability = driver.compute_capability(device)?;
            return Err(Error::Architecture { path, device, capability, built: BUILT_FOR.join(", ") });
        }
        driver.check("loading the kernels", loaded)?;
        Ok(Self { device, handle, functions: Mutex::new(HashMap::new()) })
    }

    /// Launches a kernel on libtorch's current stream. `arguments` is the kernel's only parameter.
    pub(in crate::cuda) fn launch<A>(&self, name: &str, shape: Shape, arguments: &A) -> Result<(), Error> {
        let driver = Driver::get()?;
        let stream = Stream::current(self.device)?;
        let _context = Context::enter(driver, self.device)?;
        let function = self.function(driver, name, shape.shared_bytes)?;
        let [x, y, z] = shape.grid;
        let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast::<c_void>()];
        // SAFETY: the driver copies the kernel's one parameter during the call; its layout is that of the
        // kernel, which the tests of each kernel prove.
        driver.check("launching a kernel", unsafe {
            (driver.launch_kernel)(
                function,
                x,
                y,
                z,
                shape.threads,
                1,
                1,
                shape.shared_bytes as u32,
                stream.handle(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }

    fn function(&self, driver: &Driver, name: &str, shared_bytes: usize) -> Result<Handle, Error> {
        let mut functions = self.functions.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut function = match functions.get(name) {
            Some(&known) => known,
            None => Function { handle: self.find(driver, name)?, shared_bytes: FREE_SHARED_BYTES },
        };
        if shared_bytes > function.shared_bytes {
            grant_shared_memory(driver, self.device, function.handle, shared_bytes)?;
            function.shared_bytes = shared_bytes;
        }
        functions.insert(name.to_owned(), function);
        Ok(function.handle)
    }

    fn find(&self, driver: &Driver, name: &str) -> Result<Handle, Error> {
        let c_name = CString::new(name).map_err(|_| Error::Argument {
            act: "finding a kernel",
            expected: "a name without NUL".into(),
            got: name.into(),
        })?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a module that is never unloaded and a NUL-terminated name.
        let found = unsafe { (driver.module_get_function)(&mut handle, self.handle, c_name.as_ptr()) };
        driver.check("finding a kernel", found).map(|()| handle)
    }
}

fn grant_shared_memory(
    driver: &Driver,
    device: usize,
    function: Handle,
    num_bytes: usize,
) -> Result<(), Error> {
    const MAX_DYNAMIC_SHARED_SIZE_BYTES: i32 = 8;
    let most = driver.attribute(device, Attribute::MaxSharedMemoryPerBlockOptin)?;
    if num_bytes as i64 > i64::from(most) {
        return Err(Error::Argument {
            act: "launching a kernel",
            expected: format!("at most {most} bytes of shared memory"),
            got: num_bytes.to_string(),
        });
    }
    // SAFETY: a function of a loaded module.
    let code =
        unsafe { (driver.func_set_attribute)(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, num_bytes as i32) };
    driver.check("asking for shared memory", code)
}
