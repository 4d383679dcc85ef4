//! Fenced Markdown blocks in the languages that start trainers. The modules `shell` and `python` read them.

/// Language of a block that may start a trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Shell,
    Python,
}

/// Names of languages at a fence; blocks without a name are skipped, since they may be anything.
const LANGUAGES: [(&str, Language); 8] = [
    ("bash", Language::Shell),
    ("sh", Language::Shell),
    ("shell", Language::Shell),
    ("zsh", Language::Shell),
    ("console", Language::Shell),
    ("shell-session", Language::Shell),
    ("python", Language::Python),
    ("py", Language::Python),
];

/// Returns the languages and texts of the fenced blocks, in order, without the prompts of a session (`$ `).
pub(crate) fn blocks(markdown: &str) -> Vec<(Language, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<Fence> = None;
    for line in markdown.lines() {
        match &mut open {
            Some(fence) if fence.is_closed_by(line) => blocks.extend(open.take().and_then(Fence::script)),
            Some(fence) => fence.take(line),
            None => open = Fence::opened_by(line),
        }
    }
    blocks.extend(open.and_then(Fence::script));
    blocks
}

/// A fenced block that is being read.
struct Fence {
    /// Opening fence: three or more of one of the two marks.
    marks: String,
    indent: usize,
    language: Option<Language>,
    text: String,
}

impl Fence {
    fn opened_by(line: &str) -> Option<Self> {
        let trimmed = line.trim_start();
        let mark = trimmed.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
        let marks: String = trimmed.chars().take_while(|each| *each == mark).collect();
        let language = trimmed[marks.len()..].trim_start().split([' ', '{', ',']).next().unwrap_or_default();
        let known = LANGUAGES.iter().find(|(known, _)| language.eq_ignore_ascii_case(known));
        let language = known.map(|(_, language)| *language);
        let indent = line.len() - trimmed.len();
        (marks.len() >= 3).then(|| Self { marks, indent, language, text: String::new() })
    }

    fn is_closed_by(&self, line: &str) -> bool {
        let trimmed = line.trim();
        trimmed.len() >= self.marks.len()
            && self.marks.chars().next().is_some_and(|mark| trimmed.chars().all(|each| each == mark))
    }

    fn take(&mut self, line: &str) {
        let indent = line.len() - line.trim_start_matches([' ', '\t']).len();
        let line = &line[indent.min(self.indent)..];
        self.text.push_str(line.strip_prefix("$ ").unwrap_or(line));
        self.text.push('\n');
    }

    fn script(self) -> Option<(Language, String)> {
        self.language.map(|language| (language, self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::{Language, blocks};

    #[test]
    fn blocks_of_a_shell_and_of_python_are_found_among_others() {
        let text = "# Title\n\n```bash\ntrl dpo \\\n  --beta 0.1\n```\n\n```python\ntrl sft\n```\n\
                    1. one\n   ~~~sh title=\"a\"\n   echo a\n     b\n   ~~~\n\n```\nnot said\n```\n\
                    ````markdown\n```bash\nquoted\n```\n````\n```console\n$ trl sft --a b\n";
        let found = blocks(text);
        let found: Vec<_> = found.iter().map(|(language, text)| (*language, text.as_str())).collect();
        let expected = [
            (Language::Shell, "trl dpo \\\n  --beta 0.1\n"),
            (Language::Python, "trl sft\n"),
            (Language::Shell, "echo a\n  b\n"),
            (Language::Shell, "trl sft --a b\n"),
        ];
        assert_eq!(found, expected);
    }
}
