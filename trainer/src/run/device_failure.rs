//! GPU failures during a run: ECC and NVLink errors, and errors that the driver logs as Xid. No change of the
//! job helps, but another GPU may work.

/// CUDA's messages for hardware failures of a device, which no program causes, and the driver's names for
/// them.
const FAILURES: [(&str, &str); 8] = [
    ("uncorrectable ECC error encountered", "CUDA_ERROR_ECC_UNCORRECTABLE"),
    ("uncorrectable NVLink error", "CUDA_ERROR_NVLINK_UNCORRECTABLE"),
    ("hardware stack error", "CUDA_ERROR_HARDWARE_STACK_ERROR"),
    ("unspecified launch failure", "CUDA_ERROR_LAUNCH_FAILED"),
    ("devices are busy or unavailable", "CUDA_ERROR_DEVICE_UNAVAILABLE"),
    ("Invalid access of peer GPU memory over nvlink or a hardware error", "CUDA_ERROR_CONTAINED"),
    ("system not yet initialized", "CUDA_ERROR_SYSTEM_NOT_READY"),
    ("unknown error", "CUDA_ERROR_UNKNOWN"),
];

/// A GPU failed during a phase of the run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the GPU failed in phase `{phase}`: {said}; `nvidia-smi` and the Xid errors in the kernel's log say more"
)]
pub struct DeviceFailed {
    phase: &'static str,
    said: String,
}

impl DeviceFailed {
    /// Recognizes a hardware failure in a `message` of libtorch or the driver; `None` for other messages.
    pub(crate) fn in_message(message: &str, phase: &'static str) -> Option<Self> {
        let is_cudas = message.contains("CUDA error") || message.contains("CUDA_ERROR_");
        let line = message
            .lines()
            .find(|line| FAILURES.iter().any(|(words, name)| line.contains(words) || line.contains(name)))?;
        is_cudas.then(|| Self { phase, said: line.trim().to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceFailed;

    #[test]
    fn a_failed_device_is_distinguished_from_an_error_of_the_program() {
        let ecc = "apply_rope failed in libtorch: CUDA error: uncorrectable ECC error encountered\nframe #1";
        let failed = DeviceFailed::in_message(ecc, "gen").unwrap().to_string();
        assert!(
            failed.contains("`gen`") && failed.contains("uncorrectable ECC") && !failed.contains("frame")
        );
        let by_name =
            "reading a device's memory failed: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure";
        assert!(DeviceFailed::in_message(by_name, "gen").is_some());
        for other in ["CUDA error: an illegal memory access was encountered", "unknown error in a file"] {
            assert_eq!(DeviceFailed::in_message(other, "gen"), None, "{other}");
        }
    }
}
