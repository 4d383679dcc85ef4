//! Reading of YAML from outside: manifests, settings, the operator's values. Callers write YAML with
//! serde_saphyr itself.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

/// Reads one document, with any number of comments: by default serde_saphyr refuses more than 32 lines of
/// comments in one place. Documents without content, such as one after a final `---`, do not count.
///
/// # Errors
/// When the text is not YAML, more than one document, or not of this type.
pub fn read_yaml<T: DeserializeOwned>(text: &str) -> Result<T, serde_saphyr::Error> {
    serde_saphyr::from_str_with_options(&without_empty_documents(text), options())
}

/// Reads all documents, with any number of comments. Documents without content are left out.
///
/// # Errors
/// When the text is not YAML, or a document is not of this type.
pub fn read_yaml_documents<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, serde_saphyr::Error> {
    serde_saphyr::from_multiple_with_options(text, options())
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! { emit_comments: false }
}

/// Line that begins a document; no text of YAML contains such a line otherwise.
const BEGIN: &str = "---";
/// Line that ends a document.
const END: &str = "...";

/// Turns the first line of each document without content into a comment, so that it begins no document. All
/// other lines keep their positions.
fn without_empty_documents(text: &str) -> Cow<'_, str> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let mut kept = Cow::Borrowed(text);
    let mut offset = text.len();
    let mut is_empty = true;
    for line in lines.iter().rev() {
        offset -= line.len();
        match after(line, BEGIN) {
            Some(rest) => {
                if is_empty && has_no_content(rest) {
                    kept.to_mut().replace_range(offset..=offset, "#");
                }
                is_empty = true;
            }
            None if after(line, END).is_some() => is_empty = true,
            None => is_empty &= has_no_content(line),
        }
    }
    kept
}

/// Returns the rest of a line that begins with a marker, and `None` for any other line.
fn after<'a>(line: &'a str, marker: &str) -> Option<&'a str> {
    line.strip_prefix(marker).filter(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// Whether a line is blank or a comment.
fn has_no_content(line: &str) -> bool {
    matches!(line.trim_start().chars().next(), None | Some('#'))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{read_yaml, read_yaml_documents};

    #[test]
    fn documents_without_content_do_not_count() {
        for text in [
            "a: 1\n---\n",
            "a: 1\n---",
            "a: 1\r\n---\r\n",
            "---\na: 1\n---\n# the end\n\n---\n",
            "---\n---\na: 1\n",
            "# a job\n---\n--- # the job\na: 1\n...\n---\n...\n",
            "--- {a: 1}\n---\n",
        ] {
            assert_eq!(read_yaml::<Value>(text).unwrap(), json!({"a": 1}), "{text:?}");
        }
        assert_eq!(read_yaml::<Value>("a: |+\n  b\n---\n").unwrap(), json!({"a": "b\n"}));
        assert_eq!(read_yaml::<Value>("---\n").unwrap(), Value::Null);
    }

    #[test]
    fn all_documents_with_content_are_read_however_many_comments_they_have() {
        let comments = "# a\n".repeat(40);
        for text in [
            "a: 1\n---\nb: 2\n",
            "---\n# first\n---\na: 1\n---\n---\nb: 2\n---\n",
            "a: 1\n---\nnull\n--- {b: 2}\n",
        ] {
            let read: Vec<Value> = read_yaml_documents(&format!("{comments}{text}")).unwrap();
            assert_eq!(read, [json!({"a": 1}), json!({"b": 2})], "{text:?}");
        }
        assert_eq!(read_yaml_documents::<Value>("").unwrap(), [Value::Null; 0]);
        assert!(read_yaml_documents::<Value>("a: 1\n---\nb: [\n").is_err());
    }

    #[test]
    fn a_second_document_with_content_is_refused_at_its_place() {
        for (text, line) in
            [("a: 1\n---\nb: 2\n", 3), ("a: 1\n---\n---\nb: 2\n---\n", 4), ("a: 1\n--- b\n", 2)]
        {
            let error = read_yaml::<Value>(text).unwrap_err();
            assert!(
                matches!(error.without_snippet(), serde_saphyr::Error::MultipleDocuments { .. }),
                "{text:?}: {error}"
            );
            assert_eq!(error.location().map(|location| location.line()), Some(line), "{text:?}");
        }
    }
}
