//! Formatting of times and sizes, and parsing of Kubernetes' quantities.

/// Formats seconds in at most two units, such as `3m 20s`.
pub(crate) fn duration(seconds: u64) -> String {
    let units = [(86400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (size, unit) in units {
        if rest >= size || (unit == "s" && parts.is_empty()) {
            parts.push(format!("{}{unit}", rest / size));
            rest %= size;
        } else if !parts.is_empty() {
            break;
        }
    }
    parts.truncate(2);
    parts.join(" ")
}

/// Formats bytes in the largest unit in which they are at least one, such as `3.1 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 { 0 } else { 1 };
    format!("{value:.digits$} {}", units[unit])
}

/// Parses a Kubernetes quantity such as `16Gi` to bytes; `None` if it is invalid.
pub(crate) fn quantity(text: &str) -> Option<u64> {
    let unit_at = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let factor: f64 = match unit {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| (number * factor) as u64)
}

#[cfg(test)]
mod tests {
    use super::{bytes, duration, quantity};

    #[test]
    fn times_have_at_most_two_units() {
        let said = [0, 59, 60, 200, 3600, 3660, 86399, 90000, 864_000].map(duration);
        assert_eq!(said, ["0s", "59s", "1m", "3m 20s", "1h", "1h 1m", "23h 59m", "1d 1h", "10d"]);
    }

    #[test]
    fn sizes_are_read_as_they_are_written() {
        assert_eq!(
            ["512", "2Gi", "1.5Mi", "2G", "1k"].map(quantity),
            [Some(512), Some(2 << 30), Some(3 << 19), Some(2_000_000_000), Some(1000)]
        );
        assert_eq!((quantity("much"), quantity("1e3")), (None, None));
        assert_eq!([0, 1023, 1536, 3 << 30].map(bytes), ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]);
    }
}
