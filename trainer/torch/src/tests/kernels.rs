//! Our CUDA kernels, compiled for the CPU with the threads of a block as fibers, against the CPU's own
//! functions.

mod attention;
mod experts;
mod fibers;
mod optimizer;
mod quantized;
mod rows;
mod sampling;
mod state;

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::OnceLock;

use rlt_devices::StandIn;
use tch::{Kind, Tensor};

use super::{randn, relative_difference};
use crate::Error;
use crate::cuda::Kernels;
use crate::cuda::driver::{open, symbol};

/// `RltKernelEntry` of tests/devices/csrc/on_cpu/table.h.
#[repr(C)]
struct Entry {
    name: *const c_char,
    invoke: unsafe extern "C" fn(*const u32, *const u32, usize, *mut *mut c_void),
    num_params: u32,
    param_sizes: *const u32,
}

/// Chooses the order of fibers.
type Seed = unsafe extern "C" fn(u64);

/// The kernels' sources as a library of this machine.
#[derive(Clone, Copy)]
pub(crate) struct OnCpu {
    entries: &'static [Entry],
    seed: Seed,
}

// SAFETY: names and functions of a library that is never closed.
unsafe impl Send for OnCpu {}
// SAFETY: as above.
unsafe impl Sync for OnCpu {}

impl OnCpu {
    fn library() -> &'static Self {
        static LIBRARY: OnceLock<OnCpu> = OnceLock::new();
        LIBRARY.get_or_init(|| {
            let path = StandIn::build().unwrap().kernels_on_cpu();
            let path = CString::new(path.into_os_string().into_encoded_bytes()).unwrap();
            let library = open(&path).unwrap();
            let find = |name: &CStr| symbol(library, name).unwrap();
            let mut count = 0;
            // SAFETY: table.h declares these functions so.
            unsafe {
                let table: unsafe extern "C" fn(*mut usize) -> *const Entry =
                    std::mem::transmute(find(c"rlt_kernel_table"));
                let entries = table(&mut count);
                let entries = std::slice::from_raw_parts(entries, count);
                let seed: Seed = std::mem::transmute::<*mut c_void, Seed>(find(c"rlt_fibers_seed"));
                Self { entries, seed }
            }
        })
    }

    pub(crate) fn launch<A>(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: usize,
        arguments: &A,
    ) -> Result<(), Error> {
        // SAFETY: names of the table are NUL-terminated.
        let is_named = |entry: &&Entry| unsafe { CStr::from_ptr(entry.name) }.to_bytes() == name.as_bytes();
        let entry = self.entries.iter().find(is_named).unwrap_or_else(|| panic!("no kernel {name}"));
        assert_eq!(entry.num_params, 1, "{name}");
        // SAFETY: the table has a size for each parameter.
        assert_eq!(unsafe { *entry.param_sizes } as usize, size_of::<A>(), "the parameter of {name}");
        let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast::<c_void>()];
        // SAFETY: one parameter of the kernel's layout, sizes of three numbers.
        unsafe { (entry.invoke)(grid.as_ptr(), block.as_ptr(), shared_bytes, parameters.as_mut_ptr()) };
        Ok(())
    }
}

/// Runs `body` with the threads of a block in several orders. In the first one, the values of a warp are
/// reduced in as many exchanges as on a GPU, otherwise in one.
fn in_every_order(body: impl Fn(&Kernels)) {
    let library = OnCpu::library();
    for seed in [1, 2, 3] {
        // SAFETY: any number will do; the order is this thread's own.
        unsafe { (library.seed)(seed) };
        body(&Kernels::on_cpu(*library));
    }
}

/// Tolerance of rounding to `kind`, relative to the largest value; sums in another order stay far below.
fn tolerance(kind: Kind) -> f64 {
    match kind {
        Kind::Float => 4e-6,
        Kind::BFloat16 => 8e-3,
        _ => 1e-3,
    }
}

const KINDS: [Kind; 3] = [Kind::Float, Kind::BFloat16, Kind::Half];

fn assert_near(name: &str, got: &Tensor, expected: &Tensor) {
    assert_eq!(got.size(), expected.size(), "{name}");
    let difference = relative_difference(&got.to_kind(Kind::Float), &expected.to_kind(Kind::Float));
    assert!(difference <= tolerance(got.kind()), "{name} of {:?}: {difference}", got.kind());
}

fn ints(values: &[i32]) -> Tensor {
    Tensor::from_slice(values)
}

fn words(tensor: &Tensor) -> Vec<i32> {
    Vec::try_from(tensor.contiguous().view([-1])).unwrap()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.to_kind(Kind::Float).contiguous().view([-1])).unwrap()
}

#[test]
fn the_architectures_named_are_those_that_are_built() {
    let listed = include_str!("../../csrc/cuda/architectures.txt").lines();
    let mut expected: Vec<String> = listed.map(|arch| format!("sm_{arch}")).collect();
    let last = expected.last().unwrap().replace("sm_", "compute_");
    expected.push(format!("{last} (PTX)"));
    assert_eq!(crate::cuda::BUILT_FOR.map(str::to_owned).to_vec(), expected);
}
