//! Process-wide settings of matrix products, separately for CPUs and GPUs: precision, determinism, the CPU's
//! threads and the instruction set of our kernels.

use crate::Error;
use crate::ffi::{
    check, rlt_cuda_multiplies_in_tf32, rlt_is_deterministic, rlt_kernels_isa, rlt_multiply_by_onednn,
    rlt_set_deterministic, rlt_set_float32_matmul_precision,
};
use std::ffi::CStr;
use tch::{Device, Kind, Tensor};

/// Precision of float32 matrix products, as in libtorch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatmulPrecision {
    /// float32 through the default library (MKL on x86).
    Highest,
    /// TF32 on GPUs that support it; like `Highest` on CPUs.
    High,
    /// float32 through oneDNN on CPUs (up to 2.2 times faster than MKL on AMD). On a CPU with AMX oneDNN
    /// would round to bfloat16, so `Highest` is used there; GPUs use `Highest`, too.
    Medium,
    /// Like `Medium`, but also on CPUs with AMX, where products are rounded to bfloat16; TF32 on GPUs.
    MediumEvenReduced,
}

/// Sets the precision of float32 products for the whole process and returns the one in effect. That is
/// `Highest` if `Medium` would lose precision on this CPU, which is determined by its features and then by a
/// trial product.
///
/// # Errors
/// When libtorch rejects the setting.
pub fn set_float32_matmul_precision(precision: MatmulPrecision) -> Result<MatmulPrecision, Error> {
    let wanted = match precision {
        MatmulPrecision::Medium if cpu_has_amx() => MatmulPrecision::Highest,
        other => other,
    };
    apply(wanted)?;
    if wanted == MatmulPrecision::Medium && !products_are_float32() {
        apply(MatmulPrecision::Highest)?;
        return Ok(MatmulPrecision::Highest);
    }
    Ok(wanted)
}

fn apply(precision: MatmulPrecision) -> Result<(), Error> {
    let name = match precision {
        MatmulPrecision::Highest => c"highest",
        MatmulPrecision::High => c"high",
        MatmulPrecision::MediumEvenReduced => c"medium",
        MatmulPrecision::Medium => {
            // SAFETY: a call without arguments.
            return check("multiplying by oneDNN", unsafe { rlt_multiply_by_onednn() });
        }
    };
    // SAFETY: a constant NUL-terminated name.
    check("setting the float32 matmul precision", unsafe { rlt_set_float32_matmul_precision(name.as_ptr()) })
}

/// Whether float32 matrix products on GPUs are computed in TF32.
///
/// # Errors
/// When libtorch's settings contradict each other.
pub fn cuda_multiplies_in_tf32() -> Result<bool, Error> {
    let mut answer = false;
    // SAFETY: a place for the answer that lives for the call.
    check("asking for TF32", unsafe { rlt_cuda_multiplies_in_tf32(&mut answer) })?;
    Ok(answer)
}

/// Uses only algorithms whose results are bitwise equal in every run, for the whole process. Call it before
/// the first operation on a GPU, whose libraries read a part of the setting when they start. CPUs are always
/// deterministic.
///
/// # Errors
/// When libtorch rejects the setting.
pub fn set_deterministic(wanted: bool) -> Result<(), Error> {
    // SAFETY: a plain value.
    check("choosing deterministic algorithms", unsafe { rlt_set_deterministic(wanted) })
}

/// Whether [`set_deterministic`] is in effect.
pub fn is_deterministic() -> bool {
    // SAFETY: a call without arguments.
    unsafe { rlt_is_deterministic() }
}

/// Whether a trial product of values near 1, which bfloat16 would round to 1, has float32's precision.
fn products_are_float32() -> bool {
    const SIZE: i64 = 96;
    let near_one = Tensor::linspace(1.0, 1.001, SIZE * SIZE, (Kind::Float, Device::Cpu)).view([SIZE, SIZE]);
    let exact = near_one.to_kind(Kind::Double);
    let error = near_one.matmul(&near_one).to_kind(Kind::Double) / exact.matmul(&exact) - 1.0;
    error.abs().max().double_value(&[]) < 1e-5
}

/// Whether the CPU has AMX tiles (leaf 7 of cpuid, EDX bits 22 and 24: AMX-BF16, AMX-TILE).
pub fn cpu_has_amx() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        const AMX_BF16: u32 = 1 << 22;
        const AMX_TILE: u32 = 1 << 24;
        if std::arch::x86_64::__cpuid(0).eax < 7 {
            return false;
        }
        let features = std::arch::x86_64::__cpuid_count(7, 0).edx;
        features & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Sets the number of threads per operation for the whole process.
pub fn set_num_threads(num_threads: usize) {
    tch::set_num_threads(i32::try_from(num_threads.max(1)).unwrap_or(i32::MAX));
}

/// Instruction set of the kernels in use: `amx` and `avx512_bf16` (both with AVX-512), `avx512`, `avx2` or
/// `baseline`.
pub fn kernel_isa() -> String {
    // SAFETY: a constant NUL-terminated name of a static table.
    unsafe { CStr::from_ptr(rlt_kernels_isa()) }.to_string_lossy().into_owned()
}

/// Uses the kernels of one instruction set from now on; returns false if the CPU does not support it.
#[cfg(test)]
pub(crate) fn select_kernels(isa: &str) -> bool {
    let name = std::ffi::CString::new(isa).expect("a name without NUL");
    // SAFETY: a NUL-terminated name that lives for the call.
    unsafe { crate::ffi::rlt_select_kernels(name.as_ptr()) }
}
