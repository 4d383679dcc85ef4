//! Limits of a report. The trainer respects them, and the operator enforces them.

use std::ops::RangeInclusive;

/// Largest integer that every JSON parser represents exactly, 2^53.
pub const MAX_WHOLE: u64 = 1 << 53;
/// Timestamps in milliseconds since 1970 that RFC 3339 can express: years of four digits.
pub const TIMES_MS: RangeInclusive<i64> = 0..=253_402_300_799_999;
/// Largest exit code of a process.
pub const MAX_EXIT_CODE: u32 = 255;
/// Maximum number of restarts in place for one cause.
pub const MAX_RESTARTS: u32 = 1_000_000;
/// Longest duration of one process in seconds: 30,000 years.
pub const MAX_SECONDS: f64 = 1e12;
/// Maximum size of one encoded report in bytes.
pub const MAX_REPORT_BYTES: usize = 128 * 1024;
/// Maximum number of checkpoints in one report; the newest are kept.
pub const MAX_CHECKPOINTS: usize = 100;
/// Maximum number of commits in one report: the policy's, one for each reward function and one for each data
/// set.
pub const MAX_COMMITS: usize = 66;
/// Maximum number of metrics in one report.
pub const MAX_METRICS: usize = 512;
/// Maximum number of reasons of one warning: each symptom, computing on the CPU, and checkpoints that cannot
/// be saved.
pub const MAX_WARNING_REASONS: usize = 12;
/// Maximum length of a metric's name in bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// Maximum length of the message of an ending or of a warning, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// Maximum length of any other text, such as a path, in bytes.
pub const MAX_TEXT_BYTES: usize = 4096;

/// Returns the longest prefix of `text` that has at most `max_bytes` bytes.
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
