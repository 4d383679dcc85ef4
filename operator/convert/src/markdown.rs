//! Commands in Markdown: the fenced blocks of a shell. `shell` evaluates the commands.

/// Languages of a fence that a shell reads; a fence without one may be anything.
const LANGUAGES: [&str; 6] = ["bash", "sh", "shell", "zsh", "console", "shell-session"];

/// The texts of the fenced blocks of a shell, in order. Prompts of a session (`$ `) are left out.
pub(crate) fn shell_blocks(markdown: &str) -> Vec<String> {
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
    /// Its characters, three or more of one of the two marks.
    marks: String,
    indent: usize,
    is_shell: bool,
    text: String,
}

impl Fence {
    fn opened_by(line: &str) -> Option<Self> {
        let trimmed = line.trim_start();
        let mark = trimmed.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
        let marks: String = trimmed.chars().take_while(|each| *each == mark).collect();
        let language = trimmed[marks.len()..].trim_start().split([' ', '{', ',']).next().unwrap_or_default();
        let is_shell = LANGUAGES.iter().any(|known| language.eq_ignore_ascii_case(known));
        let indent = line.len() - trimmed.len();
        (marks.len() >= 3).then(|| Self { marks, indent, is_shell, text: String::new() })
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

    fn script(self) -> Option<String> {
        self.is_shell.then_some(self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::shell_blocks;

    #[test]
    fn blocks_of_a_shell_are_found_among_others() {
        let text = "# Title\n\n```bash\ntrl dpo \\\n  --beta 0.1\n```\n\n```python\ntrl sft\n```\n\
                    1. one\n   ~~~sh title=\"a\"\n   echo a\n     b\n   ~~~\n\n```\nnot said\n```\n\
                    ````markdown\n```bash\nquoted\n```\n````\n```console\n$ trl sft --a b\n";
        assert_eq!(shell_blocks(text), ["trl dpo \\\n  --beta 0.1\n", "echo a\n  b\n", "trl sft --a b\n"]);
    }
}
