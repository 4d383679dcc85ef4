//! The functions of the CUDA driver that this crate calls, found in `libcuda.so.1` at run time. A missing
//! library or function and every failed call are errors with CUDA's own name and text; no failure ends the
//! process.
//!
//! The bindings are our own because one binary serves machines with and without a driver; `cudarc` panics
//! without one.

use crate::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// Result code of a driver call (`CUresult`); 0 is success.
pub(crate) type Code = c_int;
/// Pointer to an object of the driver: context, module, function, stream, event, graph.
pub(crate) type Handle = *mut c_void;

const SUCCESS: Code = 0;
const NOT_READY: Code = 600;
/// `CUDA_ERROR_NO_BINARY_FOR_GPU`: a module without code for the device's architecture.
pub(crate) const NO_BINARY_FOR_GPU: Code = 209;
/// `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`: the driver is too old to compile the module's PTX.
pub(crate) const UNSUPPORTED_PTX_VERSION: Code = 222;

/// Device attributes with their `CUdevice_attribute` values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// Number of streaming multiprocessors.
    MultiprocessorCount = 16,
    /// Major number of the compute capability.
    ComputeCapabilityMajor = 75,
    /// Minor number of the compute capability.
    ComputeCapabilityMinor = 76,
    /// Largest dynamic shared memory of a block in bytes, if a kernel opts in.
    MaxSharedMemoryPerBlockOptin = 97,
}

macro_rules! driver {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// Functions of the CUDA driver, by their names without the `cu`.
        pub struct Driver {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> Code,)*
        }
        impl Driver {
            fn find(library: Handle) -> Result<Self, Error> {
                Ok(Self {
                    // SAFETY: the driver's header declares the function of this name with these arguments.
                    $($field: unsafe {
                        std::mem::transmute::<Handle, unsafe extern "C" fn($($argument),*) -> Code>(
                            symbol(library, $symbol)?)
                    },)*
                })
            }
        }
    };
}

driver! {
    init = c"cuInit" (c_uint);
    driver_get_version = c"cuDriverGetVersion" (*mut c_int);
    get_error_name = c"cuGetErrorName" (Code, *mut *const c_char);
    get_error_string = c"cuGetErrorString" (Code, *mut *const c_char);
    device_get = c"cuDeviceGet" (*mut c_int, c_int);
    device_get_count = c"cuDeviceGetCount" (*mut c_int);
    device_get_name = c"cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_can_access_peer = c"cuDeviceCanAccessPeer" (*mut c_int, c_int, c_int);
    device_get_p2p_attribute = c"cuDeviceGetP2PAttribute" (*mut c_int, c_int, c_int, c_int);
    mem_get_info = c"cuMemGetInfo_v2" (*mut usize, *mut usize);
    device_get_attribute = c"cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    device_primary_ctx_retain = c"cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    ctx_get_current = c"cuCtxGetCurrent" (*mut Handle);
    ctx_set_current = c"cuCtxSetCurrent" (Handle);
    module_load_data = c"cuModuleLoadData" (*mut Handle, *const c_void);
    module_get_function = c"cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    func_set_attribute = c"cuFuncSetAttribute" (Handle, c_int, c_int);
    launch_kernel = c"cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
    launch_host_func = c"cuLaunchHostFunc" (Handle, unsafe extern "C" fn(*mut c_void), *mut c_void);
    memcpy_dtoh_async = c"cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle);
    memcpy_htod_async = c"cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle);
    stream_synchronize = c"cuStreamSynchronize" (Handle);
    stream_wait_event = c"cuStreamWaitEvent" (Handle, Handle, c_uint);
    stream_begin_capture = c"cuStreamBeginCapture_v2" (Handle, c_int);
    stream_end_capture = c"cuStreamEndCapture" (Handle, *mut Handle);
    graph_instantiate = c"cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
    graph_launch = c"cuGraphLaunch" (Handle, Handle);
    graph_destroy = c"cuGraphDestroy" (Handle);
    graph_exec_destroy = c"cuGraphExecDestroy" (Handle);
    event_create = c"cuEventCreate" (*mut Handle, c_uint);
    event_record = c"cuEventRecord" (Handle, Handle);
    event_query = c"cuEventQuery" (Handle);
    event_synchronize = c"cuEventSynchronize" (Handle);
    event_elapsed_time = c"cuEventElapsedTime_v2" (*mut f32, Handle, Handle);
    event_destroy = c"cuEventDestroy_v2" (Handle);
}

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> Handle;
    fn dlsym(library: Handle, name: *const c_char) -> Handle;
    fn dlerror() -> *const c_char;
}

/// Returns the dynamic linker's message about its last failure.
fn linker_error() -> String {
    // SAFETY: null, or a NUL-terminated text that stays until the linker's next failure.
    unsafe {
        let text = dlerror();
        if text.is_null() { "unknown".into() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}

/// Opens a shared library, which is never closed.
pub(crate) fn open(name: &CStr) -> Result<Handle, Error> {
    const NOW: c_int = 2;
    // SAFETY: a NUL-terminated name.
    let library = unsafe { dlopen(name.as_ptr(), NOW) };
    let missing = || Error::Library { name: name.to_string_lossy().into_owned(), message: linker_error() };
    if library.is_null() { Err(missing()) } else { Ok(library) }
}

/// Looks up a function of an opened library.
pub(crate) fn symbol(library: Handle, name: &CStr) -> Result<Handle, Error> {
    // SAFETY: a handle of `open` and a NUL-terminated name.
    let found = unsafe { dlsym(library, name.as_ptr()) };
    let missing = || Error::Library { name: name.to_string_lossy().into_owned(), message: linker_error() };
    if found.is_null() { Err(missing()) } else { Ok(found) }
}

impl Driver {
    /// Returns the driver of this process, which the first call opens and initialises.
    ///
    /// # Errors
    /// When `libcuda.so.1` is missing, lacks a function, or does not initialise.
    pub fn get() -> Result<&'static Self, Error> {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = DRIVER.get() {
            return Ok(driver);
        }
        let driver = Self::find(open(c"libcuda.so.1")?)?;
        // SAFETY: the first call of the driver, with the only allowed flag.
        driver.check("initialising the CUDA driver", unsafe { (driver.init)(0) })?;
        Ok(DRIVER.get_or_init(|| driver))
    }

    /// Returns the newest CUDA version that the driver supports: 1000 * major + 10 * minor.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn version(&self) -> Result<i32, Error> {
        let mut version = 0;
        // SAFETY: a place for the answer.
        self.check("reading the driver's version", unsafe { (self.driver_get_version)(&mut version) })?;
        Ok(version)
    }

    /// Returns an attribute of a device.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn attribute(&self, device: usize, attribute: Attribute) -> Result<i32, Error> {
        let (mut handle, mut value) = (0, 0);
        // SAFETY: places for the answers.
        unsafe {
            self.check("finding a device", (self.device_get)(&mut handle, device as c_int))?;
            let code = (self.device_get_attribute)(&mut value, attribute as c_int, handle);
            self.check("reading a device's attribute", code)?;
        }
        Ok(value)
    }

    /// Returns the major and minor number of a device's compute capability.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn compute_capability(&self, device: usize) -> Result<(i32, i32), Error> {
        let major = self.attribute(device, Attribute::ComputeCapabilityMajor)?;
        Ok((major, self.attribute(device, Attribute::ComputeCapabilityMinor)?))
    }

    /// Converts a result code to an error with the driver's name and text.
    pub(crate) fn check(&self, act: &'static str, code: Code) -> Result<(), Error> {
        if code == SUCCESS {
            return Ok(());
        }
        let name = self.text(self.get_error_name, code);
        Err(Error::Driver { act, code, name, message: self.text(self.get_error_string, code) })
    }

    /// Returns whether a query says that work is done; "not ready" is not an error.
    pub(crate) fn is_done(&self, act: &'static str, code: Code) -> Result<bool, Error> {
        if code == NOT_READY { Ok(false) } else { self.check(act, code).map(|()| true) }
    }

    fn text(&self, of: unsafe extern "C" fn(Code, *mut *const c_char) -> Code, code: Code) -> String {
        let mut text = std::ptr::null();
        // SAFETY: the driver stores a pointer to a text of its own, or null for a code it does not know.
        unsafe {
            of(code, &mut text);
            if text.is_null() {
                return format!("error {code}");
            }
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

/// Guard that makes a device's primary context, in which libtorch computes, current on this thread.
pub(crate) struct Context {
    driver: &'static Driver,
    before: Handle,
}

impl Context {
    pub(crate) fn enter(driver: &'static Driver, device: usize) -> Result<Self, Error> {
        const ACT: &str = "entering a device's context";
        let context = primary_context(driver, device)?;
        let mut before = std::ptr::null_mut();
        // SAFETY: a place for the answer.
        driver.check(ACT, unsafe { (driver.ctx_get_current)(&mut before) })?;
        if before != context {
            // SAFETY: a context that is never released.
            driver.check(ACT, unsafe { (driver.ctx_set_current)(context) })?;
        }
        Ok(Self { driver, before })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A thread that had no context may keep this one, since libtorch sets it likewise.
        if !self.before.is_null() {
            // SAFETY: the context that was current before.
            unsafe { (self.driver.ctx_set_current)(self.before) };
        }
    }
}

/// Returns the primary context of a device, which is retained once and never released, as by libtorch.
fn primary_context(driver: &Driver, device: usize) -> Result<Handle, Error> {
    const MAX_DEVICES: usize = 64;
    static CONTEXTS: [OnceLock<usize>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];
    let place = CONTEXTS.get(device).ok_or_else(|| Error::Argument {
        act: "finding a device",
        expected: format!("an index below {MAX_DEVICES}"),
        got: device.to_string(),
    })?;
    if let Some(&context) = place.get() {
        return Ok(context as Handle);
    }
    let (mut handle, mut context) = (0, std::ptr::null_mut());
    // SAFETY: places for the answers.
    unsafe {
        driver.check("finding a device", (driver.device_get)(&mut handle, device as c_int))?;
        let code = (driver.device_primary_ctx_retain)(&mut context, handle);
        driver.check("retaining a device's context", code)?;
    }
    Ok(*place.get_or_init(|| context as usize) as Handle)
}
