//! Redaction of values that were sent to a server, such as tokens, from text that the server answers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::HeaderMap;
use serde_json::Value;

/// Minimum length of a redacted value in bytes; a shorter one may be part of many words.
const MIN_BYTES: usize = 6;
/// Text that replaces a value.
const REDACTED: &str = "[redacted]";

/// Values that are sent to a server and never shown, in every form in which an answer may repeat them.
#[derive(Clone, Default)]
pub struct Secrets {
    /// Longest first, because one may contain another.
    forms: Vec<String>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secrets of {} forms", self.forms.len())
    }
}

impl Secrets {
    /// Takes values such as `Bearer TOKEN`, whose scheme may be shown. The decoded password of `Basic
    /// CREDENTIALS` is redacted as well.
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut forms = Vec::new();
        for value in values {
            let value = value.trim();
            let decoded = decoded_credentials(value);
            let words = value.split_whitespace().skip(1).chain(decoded.iter().map(String::as_str));
            for text in words.chain([value]).filter(|text| text.len() >= MIN_BYTES) {
                let quoted = Value::from(text).to_string();
                let json = &quoted[1..quoted.len() - 1];
                forms.extend([text.to_owned(), json.to_owned(), json.replace('/', "\\/")]);
            }
        }
        forms.sort_by(|one, other| (other.len(), one).cmp(&(one.len(), other)));
        forms.dedup();
        Self { forms }
    }

    /// Takes the values of all headers that are marked as sensitive.
    pub fn of_headers(headers: &HeaderMap) -> Self {
        let sensitive = headers.values().filter(|value| value.is_sensitive());
        Self::new(sensitive.filter_map(|value| std::str::from_utf8(value.as_bytes()).ok()))
    }

    /// Redacts each value in `text`, and at its end also the beginning of a value that was cut off.
    pub fn redact(&self, text: &str) -> String {
        let mut shown = text.to_owned();
        for form in &self.forms {
            shown = shown.replace(form, REDACTED);
        }
        let cut = |form: &String| {
            let mut lengths = (MIN_BYTES..form.len()).rev().filter(|length| form.is_char_boundary(*length));
            lengths.find(|length| shown.ends_with(&form[..*length]))
        };
        let longest_cut = self.forms.iter().filter_map(cut).max();
        if let Some(length) = longest_cut {
            shown.truncate(shown.len() - length);
            shown.push_str(REDACTED);
        }
        shown
    }

    /// Replaces each value in all texts of a JSON document, names of fields included.
    pub fn redact_json(&self, document: Value) -> Value {
        if self.forms.is_empty() {
            return document;
        }
        match document {
            Value::String(text) => Value::String(self.redact(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.redact_json(item)).collect(),
            Value::Object(fields) => {
                let redacted =
                    fields.into_iter().map(|(name, value)| (self.redact(&name), self.redact_json(value)));
                Value::Object(redacted.collect())
            }
            plain => plain,
        }
    }
}

/// Returns the password of the value `Basic CREDENTIALS` of a header, alone and with its user.
fn decoded_credentials(value: &str) -> Vec<String> {
    let encoded = value.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
    let decoded = encoded.and_then(|(_, encoded)| STANDARD.decode(encoded.trim()).ok());
    let Some(pair) = decoded.and_then(|bytes| String::from_utf8(bytes).ok()) else { return Vec::new() };
    let password = pair.split_once(':').map(|(_, password)| password.to_owned());
    password.into_iter().chain([pair]).collect()
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_redacted_with_and_without_its_scheme() {
        let secrets = Secrets::new(["Bearer tok/en-1234", "short"]);
        for (text, expected) in [
            ("got Bearer tok/en-1234, wrong", "got [redacted], wrong"),
            ("the token tok/en-1234 is unknown", "the token [redacted] is unknown"),
            (r#"{"got": "Bearer tok\/en-1234"}"#, r#"{"got": "[redacted]"}"#),
            ("Bearer is expected, not short", "Bearer is expected, not short"),
            ("a text that is cut within tok/en-", "a text that is cut within [redacted]"),
            ("a text that is cut within Bearer tok/", "a text that is cut within [redacted]"),
            ("", ""),
        ] {
            assert_eq!(secrets.redact(text), expected);
        }
        assert_eq!(Secrets::default().redact("tok/en-1234"), "tok/en-1234");
    }

    #[test]
    fn a_password_is_redacted_encoded_and_decoded() {
        // `user:pass-word`.
        let secrets = Secrets::new(["Basic dXNlcjpwYXNzLXdvcmQ="]);
        for (text, expected) in [
            ("got Basic dXNlcjpwYXNzLXdvcmQ=, wrong", "got [redacted], wrong"),
            ("user:pass-word is unknown", "[redacted] is unknown"),
            ("pass-word is not that of user", "[redacted] is not that of user"),
            ("Basic is expected", "Basic is expected"),
        ] {
            assert_eq!(secrets.redact(text), expected);
        }
    }

    #[test]
    fn values_with_quotes_are_redacted_as_json_writes_them() {
        let secrets = Secrets::new([r#"pass"word\ä""#]);
        let echo = json!({ "echo": r#"pass"word\ä""# }).to_string();
        assert_eq!(secrets.redact(&echo), r#"{"echo":"[redacted]"}"#);
    }

    #[test]
    fn every_text_of_a_document_is_redacted() {
        let secrets = Secrets::new(["password", "password-of-another"]);
        let document = json!({ "password": [1, null, { "a": "is password-of-another" }], "b": true });
        let expected = json!({ "[redacted]": [1, null, { "a": "is [redacted]" }], "b": true });
        assert_eq!(secrets.redact_json(document), expected);
    }

    #[test]
    fn sensitive_headers_are_secrets_and_others_are_not() {
        let mut headers = HeaderMap::new();
        for (name, value, is_sensitive) in [("a", "of the user", true), ("b", "application/json", false)] {
            let mut value = HeaderValue::from_static(value);
            value.set_sensitive(is_sensitive);
            headers.insert(name, value);
        }
        let mut umlauts = HeaderValue::from_str("schlüssel").unwrap();
        umlauts.set_sensitive(true);
        headers.insert("c", umlauts);
        let shown = Secrets::of_headers(&headers).redact("of the user: application/json, schlüssel");
        assert_eq!(shown, "[redacted]: application/json, [redacted]");
    }
}
