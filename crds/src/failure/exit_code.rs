//! Exit codes that trainer, operator and command line agree on. Other modules decide how the operator reacts.

use std::process;

/// Environment variable with the path of the file for a process's termination message: its last error, or its
/// last report if it has finished all steps.
pub const TERMINATION_MESSAGE_VARIABLE: &str = "RLT_TERMINATION_MESSAGE_FILE";

/// Reason why a process of this project ended. Codes from 75 follow the spirit of `sysexits.h`; codes below
/// have the shell's meanings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExitCode {
    /// All work is done.
    Success = 0,
    /// An error of no other class, such as a bug.
    Failure = 1,
    /// The command line or the manifest is wrong; nothing was started.
    Usage = 2,
    /// Reading or writing failed in a way that may pass (full disk, broken mount, unreachable hub).
    RetryableIo = 75,
    /// Another rank of the job is gone.
    PeerLost = 76,
    /// The loss or the gradients stayed non-finite for too many steps.
    Diverged = 77,
    /// The job cannot work on this model, data or machine; trying again cannot help.
    BadConfig = 78,
    /// No complete checkpoint could be read although one was requested.
    CorruptCheckpoint = 79,
    /// Stopped by a signal or a deadline after saving a checkpoint; starting again resumes.
    Preempted = 80,
    /// A GPU failed, or another process occupies its memory; another GPU may work.
    DeviceFailed = 81,
}

impl ExitCode {
    /// All codes in ascending order.
    pub const ALL: [Self; 10] = [
        Self::Success,
        Self::Failure,
        Self::Usage,
        Self::RetryableIo,
        Self::PeerLost,
        Self::Diverged,
        Self::BadConfig,
        Self::CorruptCheckpoint,
        Self::Preempted,
        Self::DeviceFailed,
    ];

    /// The process's exit code.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the reason for an exit code; `None` for other codes, such as 137 for a kill.
    pub fn from_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|exit| i32::from(exit.code()) == code)
    }
}

impl From<ExitCode> for process::ExitCode {
    fn from(exit: ExitCode) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::ExitCode;

    #[test]
    fn every_code_is_found_again_and_a_kill_is_none_of_them() {
        for exit in ExitCode::ALL {
            assert_eq!(ExitCode::from_code(i32::from(exit.code())), Some(exit));
        }
        assert_eq!(ExitCode::from_code(137), None);
    }
}
