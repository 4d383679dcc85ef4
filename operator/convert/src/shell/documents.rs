//! Here-documents: scripts for a shell or a scheduler, settings files that a script writes, values of `read`.

use brush_parser::ast::{
    CommandPrefixOrSuffixItem, IoFileRedirectKind, IoFileRedirectTarget, IoHereDocument, IoRedirect,
    SimpleCommand,
};

use super::{Shell, ShellError, is_shell};

/// Commands that run the script that they read.
const SCHEDULERS: [&str; 2] = ["sbatch", "qsub"];

impl Shell {
    /// Uses the here-document of a command with these words. Returns whether that completes the command.
    pub(super) fn use_document(
        &mut self,
        command: &SimpleCommand,
        words: &[String],
    ) -> Result<bool, ShellError> {
        let (mut document, mut file) = (None, None);
        for item in command.suffix.iter().flat_map(|suffix| &suffix.0) {
            let CommandPrefixOrSuffixItem::IoRedirect(redirect) = item else { continue };
            match redirect {
                IoRedirect::HereDocument(_, here) => document = Some(here),
                IoRedirect::File(
                    _,
                    IoFileRedirectKind::Write | IoFileRedirectKind::Clobber,
                    IoFileRedirectTarget::Filename(word),
                ) => file = Some(self.text(&word.value)?),
                _ => {}
            }
        }
        let Some(document) = document else { return Ok(false) };
        let name = words.first().map_or("", String::as_str);
        let last = words.iter().rev().find(|word| !word.starts_with('-'));
        if SCHEDULERS.contains(&name) || last.is_some_and(|word| is_shell(word)) {
            return self.run_embedded(name, &document.doc.value).map(|_| true);
        }
        match (name, file.as_ref().or(words.get(1)), words.last()) {
            ("cat" | "tee", Some(path), _) => {
                let text = self.text_of(document)?;
                self.files.insert(path.trim_start_matches("./").to_owned(), text);
                Ok(true)
            }
            ("read", _, Some(variable)) => {
                let text = self.text_of(document)?;
                self.scope.set(variable, text.trim().to_owned());
                Ok(true)
            }
            _ => {
                self.scope.note(format!("the here-document of `{name}` is left out"));
                Ok(false)
            }
        }
    }

    /// Returns the text of a here-document, in which quotes have no special meaning.
    fn text_of(&mut self, document: &IoHereDocument) -> Result<String, ShellError> {
        let text = &document.doc.value;
        self.budget.spend(text.len())?;
        if document.requires_expansion {
            self.text(&format!("\"{}\"", text.replace('"', "\\\"")))
        } else {
            Ok(text.clone())
        }
    }
}
