//! Kubernetes' quantities, such as `500m`, `4`, `16Gi` or `1e3`: whether a text is one, and its value.
//! Callers know the unit.

/// Suffixes of a quantity, the empty one included.
const SUFFIXES: [&str; 16] =
    ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Whether a text is a quantity above zero.
pub(crate) fn is_positive_quantity(text: &str) -> bool {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let end = unsigned.find(|each: char| !each.is_ascii_digit() && each != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let is_number = number.matches('.').count() <= 1 && number.contains(|each: char| each.is_ascii_digit());
    let is_above_zero = number.contains(|each: char| ('1'..='9').contains(&each));
    is_number && is_above_zero && (SUFFIXES.contains(&suffix) || is_exponent(suffix))
}

/// Parses a positive quantity; `None` for any other text.
pub fn value(text: &str) -> Option<f64> {
    if !is_positive_quantity(text) {
        return None;
    }
    let end = text.rfind(|each: char| each.is_ascii_digit() || each == '.')? + 1;
    let (number, suffix) = text.split_at(end);
    let thousands = |powers: &str, base: f64| {
        let power = powers.chars().position(|power| suffix.starts_with(power)).unwrap_or(0);
        base.powi(power as i32 + 1)
    };
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        binary if binary.ends_with('i') => thousands("KMGTPE", 1024.0),
        _ => thousands("kMGTPE", 1000.0),
    };
    number.parse::<f64>().ok().map(|number| number * factor)
}

fn is_exponent(suffix: &str) -> bool {
    suffix.strip_prefix(['e', 'E']).is_some_and(|power| power.parse::<i8>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::{is_positive_quantity, value};

    #[test]
    fn quantities_are_distinguished_from_other_texts() {
        for right in ["1", "0.5", "500m", "16Gi", "1e3", "1E-2", "+2", ".5", "5.", "100k"] {
            assert!(is_positive_quantity(right), "{right}");
        }
        for (text, number) in [
            ("1", 1.0),
            ("0.5", 0.5),
            ("500m", 0.5),
            ("16Gi", 16.0 * 1024.0 * 1024.0 * 1024.0),
            ("3Ki", 3072.0),
            ("1e3", 1000.0),
            ("1E-2", 0.01),
            ("2E", 2e18),
            ("+2", 2.0),
            ("100k", 1e5),
        ] {
            assert_eq!(value(text), Some(number), "{text}");
        }
        assert_eq!(value("16GB"), None);
        for wrong in ["", "0", "0Gi", "-1", "1 Gi", "16GB", "1.2.3", ".", "e3", "many", "1e", "Gi"] {
            assert!(!is_positive_quantity(wrong), "{wrong}");
        }
    }
}
