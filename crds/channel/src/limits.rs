//! How large a report may be: the trainer keeps to it, the operator enforces it.

use std::ops::RangeInclusive;

/// The largest whole number that JSON's readers hold exactly, 2^53.
pub const MAX_WHOLE: u64 = 1 << 53;
/// Times in milliseconds since 1970 whose year has four digits, as RFC 3339 wants it.
pub const TIMES_MS: RangeInclusive<i64> = 0..=253_402_300_799_999;
/// The largest exit code of a process.
pub const MAX_EXIT_CODE: u32 = 255;
/// Restarts in place for one cause.
pub const MAX_RESTARTS: u32 = 1_000_000;
/// The longest time of one process, in seconds: 30,000 years.
pub const MAX_SECONDS: f64 = 1e12;
/// Bytes of one encoded report.
pub const MAX_REPORT_BYTES: usize = 128 * 1024;
/// Checkpoints in one report; the newest are named.
pub const MAX_CHECKPOINTS: usize = 100;
/// Commits in one report: the policy's, one for each reward function and one for each data set.
pub const MAX_COMMITS: usize = 66;
/// Metrics in one report.
pub const MAX_METRICS: usize = 512;
/// Reasons of one warning: each symptom, computing on the CPU, and checkpoints that cannot be saved.
pub const MAX_WARNING_REASONS: usize = 12;
/// Bytes of a metric's name.
pub const MAX_NAME_BYTES: usize = 256;
/// Bytes of the message of an ending, and of a warning.
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// Bytes of any other text, such as a path.
pub const MAX_TEXT_BYTES: usize = 4096;

/// The longest beginning of `text` that has at most `max_bytes` bytes.
pub fn shortened(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

#[cfg(test)]
mod tests {
    use super::shortened;

    #[test]
    fn a_text_is_never_cut_within_a_letter() {
        assert_eq!(shortened("aä", 2), "a");
        assert_eq!(shortened("aä", 3), "aä");
        assert_eq!(shortened("", 3), "");
    }
}
