//! The template function `strftime_now`: times as Python's `datetime.now().strftime` writes them in English.

use jiff::Zoned;

/// Flags of glibc between `%` and a specifier.
const FLAGS: [char; 5] = ['-', '_', '0', '^', '#'];
/// Specifiers that Python and jiff write alike.
const SAME: &str = "aAbBCdeFgGhHIjklmMnpPRsStTuUVwWyY%";

/// Returns the current time in a format of Python.
///
/// # Errors
/// jiff's message.
pub(super) fn strftime_now(format: &str) -> Result<String, String> {
    strftime(format, &Zoned::now())
}

fn strftime(format: &str, time: &Zoned) -> Result<String, String> {
    jiff::fmt::strtime::format(translated(format), time).map_err(|error| error.to_string())
}

/// Translates a format of Python to one of jiff. `%z` and `%Z` become empty, because the time has no zone. A
/// `%` before anything that is not a specifier is kept as text.
fn translated(format: &str) -> String {
    let mut out = String::with_capacity(format.len());
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let behind = &rest[at + 1..];
        let num_flags = behind.len() - behind.trim_start_matches(FLAGS).len();
        let specifier = behind[num_flags..].chars().next();
        let whole = match specifier {
            Some('c') => "%a %b %e %H:%M:%S %Y",
            Some('x' | 'D') => "%m/%d/%y",
            Some('X') => "%H:%M:%S",
            Some('r') => "%I:%M:%S %p",
            Some('f') => "%6f",
            Some('z' | 'Z') => "",
            Some(same) if SAME.contains(same) => &rest[at..at + 1 + num_flags + same.len_utf8()],
            _ => {
                out.push_str("%%");
                rest = behind;
                continue;
            }
        };
        out.push_str(whole);
        rest = &behind[num_flags + specifier.map_or(0, char::len_utf8)..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of `datetime.datetime(2024, 7, 4, 7, 3, 9, 12345).strftime` in Python 3.11 with glibc.
    #[test]
    fn times_are_written_as_python_writes_them() {
        let time = jiff::civil::datetime(2024, 7, 4, 7, 3, 9, 12_345_000);
        let time = time.to_zoned(jiff::tz::TimeZone::fixed(jiff::tz::offset(2))).unwrap();
        for (format, expected) in [
            ("%a %A %b %B %h|%c", "Thu Thursday Jul July Jul|Thu Jul  4 07:03:09 2024"),
            ("%C %d %D %e|%F %f %G %g", "20 04 07/04/24  4|2024-07-04 012345 2024 24"),
            ("%H %I %j %k %l|%M %m %n%t|%P %p", "07 07 186  7  7|03 07 \n\t|am AM"),
            ("%r|%R|%S|%T|%U %u %V %W %w", "07:03:09 AM|07:03|09|07:03:09|26 4 27 27 4"),
            ("%x|%X|%y|%Y|%z|%Z|%%", "07/04/24|07:03:09|24|2024|||%"),
            ("%-d. %B %Y, %-I:%M %p, %-m/%-d, %_d, %^b", "4. July 2024, 7:03 AM, 7/4,  4, JUL"),
            ("100%", "100%"),
            ("%Q %i %J %", "%Q %i %J %"),
            ("%-x %_z|é%d", "07/04/24 |é04"),
            ("", ""),
        ] {
            assert_eq!(strftime(format, &time), Ok(expected.to_owned()), "{format}");
        }
    }
}
