//! Rule of doc comments: the first sentence names its subject, so that it can be understood alone, in an
//! editor, in a list of search results and on a generated page.

use rlt_rules::rust_sources;

/// Public doc comments that do not name their subject yet, by file. The list only gets shorter.
const LEFTOVERS: [(&str, &str); 1] = [
    // Descriptions of the custom resource.
    ("crds/src/spec/workers/resources.rs", "Existing PersistentVolumeClaim."),
];
/// Maximum number of words of a sentence that is too short to say anything.
const TOO_FEW_WORDS: usize = 2;
/// Openings that replace the subject of a sentence, or refer to a subject that the sentence omits.
const OPENINGS: [(&str, &[&str]); 5] = [
    ("a pronoun", &["It", "Its", "Their", "Them", "These", "They", "Those"]),
    (
        "a pronoun behind a conjunction",
        &[
            "How it",
            "How its",
            "How their",
            "How they",
            "Whether it",
            "Whether its",
            "Whether their",
            "Whether they",
        ],
    ),
    ("a relative word", &["What", "When", "Where", "Which", "Who", "Whom", "Whose", "Why"]),
    (
        "a preposition",
        &[
            "After", "As", "At", "Before", "By", "For", "From", "In", "Into", "Of", "On", "Since", "To",
            "Until", "With", "Without",
        ],
    ),
    ("a reference to other lines", &["Also", "Likewise", "So", "Such", "The same"]),
];

/// The first sentence of a doc comment, with the number of its first line.
#[derive(Debug, PartialEq)]
struct Opening {
    line: usize,
    sentence: String,
    /// Whether the comment belongs to a file, to a public item, or to a part of one.
    is_public: bool,
}

#[test]
fn the_first_sentence_of_every_public_doc_comment_names_its_subject() {
    let Findings { unnamed, num_read } = findings(true);
    assert!(
        unnamed.is_empty(),
        "begin a public doc comment with what the item is (\"Name of the pod.\") or does (\"Returns the \
         blocks to the pool.\"):\n{}",
        unnamed.join("\n")
    );
    assert!(num_read > 5000, "public doc comments are found: {num_read}");
}

#[test]
fn the_first_sentence_of_every_private_doc_comment_names_its_subject() {
    let Findings { unnamed, num_read } = findings(false);
    assert!(
        unnamed.is_empty(),
        "begin a private doc comment with what the item is or does, in tests too:\n{}",
        unnamed.join("\n")
    );
    assert!(num_read > 3000, "private doc comments are found: {num_read}");
}

/// Findings in the doc comments of the workspace.
struct Findings {
    /// Comments that do not name their subject, without leftovers: position and fault of each.
    unnamed: Vec<String>,
    num_read: usize,
}

fn findings(is_public: bool) -> Findings {
    let mut findings = Findings { unnamed: Vec::new(), num_read: 0 };
    for file in &rust_sources().unwrap() {
        for opening in openings(&file.text).into_iter().filter(|opening| opening.is_public == is_public) {
            let Opening { line, sentence, .. } = opening;
            findings.num_read += 1;
            let is_leftover = LEFTOVERS.contains(&(file.path.as_str(), sentence.as_str()));
            if let Some(fault) = fault_of(&sentence).filter(|_| !is_leftover) {
                findings.unnamed.push(format!("{}:{line}: \"{sentence}\" {fault}", file.path));
            }
        }
    }
    findings
}

/// Describes the fault of a first sentence, as the end of a sentence about it. A sentence may begin with
/// code, which is then its subject.
fn fault_of(sentence: &str) -> Option<String> {
    if sentence.is_empty() || sentence.starts_with(['`', '#']) {
        return None;
    }
    let begins_with = |words: &&str| {
        sentence.strip_prefix(*words).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
    };
    for (kind, openings) in OPENINGS {
        if let Some(opening) = openings.iter().copied().find(|opening| begins_with(opening)) {
            return Some(format!("begins with {kind}, `{opening}`"));
        }
    }
    let is_short = sentence.split_whitespace().count() <= TOO_FEW_WORDS;
    is_short.then(|| format!("has no more than {TOO_FEW_WORDS} words"))
}

/// Returns the first sentences of a file's `//!` comment and of its `///` comments.
fn openings(text: &str) -> Vec<Opening> {
    let lines: Vec<&str> = text.lines().collect();
    let mut openings = Vec::new();
    let mut start = 0;
    while start < lines.len() {
        let block = &lines[start..];
        let block = &block[..block.iter().take_while(|line| doc_text(line).is_some()).count()];
        let is_header = block.first().is_some_and(|line| line.trim_start().starts_with("//!"));
        if !block.is_empty() {
            let is_public = is_header || is_public(&lines, start + block.len());
            openings.push(Opening { line: start + 1, sentence: first_sentence(block), is_public });
        }
        start += block.len().max(1);
    }
    openings
}

fn doc_text(line: &str) -> Option<&str> {
    let comment = line.trim_start();
    comment.strip_prefix("///").or(comment.strip_prefix("//!")).map(str::trim)
}

fn first_sentence(block: &[&str]) -> String {
    let lines = block.iter().map_while(|line| doc_text(line).filter(|text| !text.is_empty()));
    let paragraph = lines.collect::<Vec<_>>().join(" ");
    let end = paragraph.find(". ").map_or(paragraph.len(), |place| place + 1);
    paragraph[..end].to_owned()
}

/// Whether the item that follows a comment at line `start` is declared `pub`, or is part of a public enum or
/// trait, whose parts are not declared `pub`.
fn is_public(lines: &[&str], start: usize) -> bool {
    let Some(item) = item_from(lines, start) else { return false };
    if lines[item].trim_start().starts_with("pub ") {
        return true;
    }
    let mut depth = indent(lines[item]);
    for line in lines[..item].iter().rev() {
        let code = line.trim_start();
        if code.is_empty() || code.starts_with("//") || indent(line) >= depth {
            continue;
        }
        depth = indent(line);
        if code.starts_with("pub enum ") || code.starts_with("pub trait ") {
            return true;
        }
        let is_variant = code.starts_with(char::is_uppercase) && code.ends_with(['{', '(']);
        if !is_variant {
            return false;
        }
    }
    false
}

/// Returns the index of the first line from `start` on that is neither an attribute nor a comment.
fn item_from(lines: &[&str], start: usize) -> Option<usize> {
    let mut idx = start;
    loop {
        let code = lines.get(idx)?.trim_start();
        if code.starts_with("#[") {
            while !lines.get(idx)?.ends_with(']') {
                idx += 1;
            }
        } else if !code.starts_with("//") {
            return Some(idx);
        }
        idx += 1;
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

#[test]
fn a_sentence_that_leaves_its_subject_out_is_refused() {
    for (sentence, fault) in [
        ("Its name.", "begins with a pronoun, `Its`"),
        ("What the engine holds of weights.", "begins with a relative word, `What`"),
        ("Why a run failed.", "begins with a relative word, `Why`"),
        ("Whether it is ready.", "begins with a pronoun behind a conjunction, `Whether it`"),
        ("As [`Self::run`], with a limit.", "begins with a preposition, `As`"),
        ("Of queries and keys.", "begins with a preposition, `Of`"),
        ("The same in pinned memory.", "begins with a reference to other lines, `The same`"),
        ("The cache.", "has no more than 2 words"),
        ("Documented.", "has no more than 2 words"),
    ] {
        assert_eq!(fault_of(sentence).as_deref(), Some(fault), "{sentence}");
    }
}

#[test]
fn a_sentence_that_names_its_subject_is_accepted() {
    for sentence in [
        "Name of the pod.",
        "Number of prompt tokens, images included.",
        "Returns the blocks of `sequence` to the pool.",
        "Whether the sequence has reached its token limit.",
        "Items that wait for a slow tracker.",
        "Formula of the loss.",
        "`https://host:port` of the operator.",
        "`f32[rows]`.",
        "# Errors",
    ] {
        assert_eq!(fault_of(sentence), None, "{sentence}");
    }
}

#[test]
fn doc_comments_of_items_and_of_their_parts_are_read() {
    let text = "\
//! A file of items. It has
//! three of them.

/// A public error. More about
/// it.
#[derive(Debug)]
pub enum Failure {
    /// A variant whose
    /// comment wraps.
    #[error(
        \"a message\"
    )]
    Of {
        /// A field of it.
        path: String,
    },
}

/// A private type.
struct Own {
    /// A private field.
    path: String,
    /// A public field.
    pub name: String,
}

impl Own {
    /// A function of this package.
    pub(crate) fn name() {}
    /// A public function.
    // A remark.
    pub fn path() {}
}

/// A public trait.
pub trait Act {
    /// A method of it.
    fn act(&self);
}
";
    let found = openings(text);
    let sentences = |is_public: bool| -> Vec<(usize, &str)> {
        let found = found.iter().filter(|opening| opening.is_public == is_public);
        found.map(|opening| (opening.line, opening.sentence.as_str())).collect()
    };
    let public = [
        (1, "A file of items."),
        (4, "A public error."),
        (8, "A variant whose comment wraps."),
        (14, "A field of it."),
        (23, "A public field."),
        (30, "A public function."),
        (35, "A public trait."),
        (37, "A method of it."),
    ];
    assert_eq!(sentences(true), public);
    let private = [(19, "A private type."), (21, "A private field."), (28, "A function of this package.")];
    assert_eq!(sentences(false), private);
}
