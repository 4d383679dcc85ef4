//! Finding CUDA at run time in a binary that is linked without it.

use crate::Error;
use crate::border::{check, rlt_load_cuda};

/// Loads libtorch's CUDA half where a driver and the library are present; returns whether CUDA can be used.
/// Where there is no driver nothing is loaded, so a CPU machine needs none of CUDA's libraries. Call before
/// the first use of a device.
///
/// # Errors
/// When libtorch fails while it registers its devices.
pub fn load_cuda() -> Result<bool, Error> {
    let mut found = false;
    // SAFETY: a place for the answer.
    check("loading CUDA", unsafe { rlt_load_cuda(&mut found) })?;
    Ok(found && tch::Cuda::is_available())
}
