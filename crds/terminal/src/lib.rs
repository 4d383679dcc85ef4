//! Standard output and error of the command lines. They show untrusted text from manifests, data sets, models
//! and servers. Control sequences in such text could move the cursor, rename the window or hide text, so they
//! are shown as escapes instead of being executed.

pub mod panics;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal as _, Write};
use std::panic::{self, PanicHookInfo};

/// Returns standard output for text to be read, which is escaped wherever it goes.
pub fn text() -> Output<io::Stdout> {
    Output { stream: io::stdout(), escaper: Some(Escaper::default()) }
}

/// Returns standard output for a document, such as JSON, a manifest or a log. The document is escaped on a
/// terminal; a file or another program gets it unchanged.
pub fn document() -> Output<io::Stdout> {
    let stream = io::stdout();
    let escaper = stream.is_terminal().then(Escaper::default);
    Output { stream, escaper }
}

/// Returns standard error for messages, which are escaped.
pub fn messages() -> Output<io::Stderr> {
    Output { stream: io::stderr(), escaper: Some(Escaper::default()) }
}

/// Redirects the messages of panics to [`messages`], which escapes them: the panic message of a library may
/// quote the untrusted text on which the library fails.
pub fn escape_panics() {
    panic::set_hook(Box::new(|panic| show_panic(panic, &mut messages())));
}

/// Writes the message of a panic, and its backtrace if `RUST_BACKTRACE` requests one.
fn show_panic(panic: &PanicHookInfo<'_>, output: &mut impl Write) {
    let thread = std::thread::current();
    // An error of a closed stream cannot be shown anywhere.
    let _ = writeln!(output, "thread '{}' {panic}", thread.name().unwrap_or("without a name"));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        let _ = writeln!(output, "{backtrace}");
    }
}

/// Whether a user reads messages and can answer on standard input.
pub fn has_user() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// An output stream that escapes its text where required.
#[derive(Debug)]
pub struct Output<W: Write> {
    stream: W,
    escaper: Option<Escaper>,
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.escaper {
            Some(escaper) => self.stream.write_all(escaper.push(bytes).as_bytes())?,
            None => self.stream.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    /// Writes a message with a single call, so that messages of several processes are not mixed.
    fn write_fmt(&mut self, message: fmt::Arguments<'_>) -> io::Result<()> {
        self.write_all(fmt::format(message).as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl<W: Write> Drop for Output<W> {
    fn drop(&mut self) {
        if let Some(escaper) = &mut self.escaper {
            // An error of a closed stream cannot be shown anywhere.
            let _ = self.stream.write_all(escaper.finish().as_bytes());
        }
    }
}

/// Escapes the control characters of a text, except for line breaks and tabs, and its bidirectional controls.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for each in text.chars() {
        match is_unsafe(each) {
            // Writing to a string cannot fail.
            true => drop(write!(safe, "{}", each.escape_default())),
            false => safe.push(each),
        }
    }
    Cow::Owned(safe)
}

fn is_unsafe(each: char) -> bool {
    let is_turning = matches!(each, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (each.is_control() && !matches!(each, '\n' | '\t')) || is_turning
}

/// Escapes a stream in chunks, which may be split within a character.
#[derive(Debug, Default)]
struct Escaper {
    /// First bytes of an incomplete character.
    begun: Vec<u8>,
}

impl Escaper {
    /// Escapes the next bytes, up to an incomplete character at the end.
    fn push(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut safe = String::new();
        for chunk in all.utf8_chunks() {
            safe.push_str(&escaped(chunk.valid()));
            for byte in chunk.invalid() {
                let _ = write!(safe, "\\x{byte:02x}");
            }
        }
        // A character that may still be completed is not invalid.
        let is_cut = |length: &usize| {
            let tail = &all[all.len() - length..];
            std::str::from_utf8(tail)
                .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        };
        if let Some(length) = (1..=3.min(all.len())).rev().find(is_cut) {
            self.begun = all.split_off(all.len() - length);
            safe.truncate(safe.len() - length * "\\x00".len());
        }
        safe
    }

    /// Escapes the bytes of an incomplete character at the end of the stream.
    fn finish(&mut self) -> String {
        std::mem::take(&mut self.begun).iter().map(|byte| format!("\\x{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn control_sequences_are_shown_as_escapes() {
        assert_eq!(escaped("reward 0.5\n\tstep 3 ä 你"), "reward 0.5\n\tstep 3 ä 你");
        assert_eq!(
            escaped("\u{1b}]0;root\u{7}\u{1b}[2Jok\rno\u{8}"),
            "\\u{1b}]0;root\\u{7}\\u{1b}[2Jok\\rno\\u{8}"
        );
        assert_eq!(escaped("\u{9b}31m\u{202e}txt\u{7f}"), "\\u{9b}31m\\u{202e}txt\\u{7f}");
    }

    #[test]
    fn a_stream_is_shown_the_same_wherever_it_is_cut() {
        let text = "ä\u{1b}[31m你好\u{9b}\nplain".as_bytes();
        let bytes = [text, &[0xff, 0xe4, b'x', 0xe4, 0xbd]].concat();
        let whole = {
            let mut escaper = Escaper::default();
            escaper.push(&bytes) + &escaper.finish()
        };
        assert_eq!(whole, "ä\\u{1b}[31m你好\\u{9b}\nplain\\xff\\xe4x\\xe4\\xbd");
        for size in 1..bytes.len() {
            let mut escaper = Escaper::default();
            let pieces: String = bytes.chunks(size).map(|chunk| escaper.push(chunk)).collect();
            assert_eq!(pieces + &escaper.finish(), whole, "pieces of {size} bytes");
        }
    }

    #[test]
    fn an_output_escapes_what_is_written_in_pieces_and_its_end() {
        let mut shown = Vec::new();
        let mut output = Output { stream: &mut shown, escaper: Some(Escaper::default()) };
        let bytes = "a\u{1b}[2J\u{9b}\n".as_bytes();
        bytes.iter().for_each(|byte| output.write_all(&[*byte]).unwrap());
        output.write_all(&[0xe4]).unwrap();
        drop(output);
        assert_eq!(String::from_utf8(shown).unwrap(), "a\\u{1b}[2J\\u{9b}\n\\xe4");
    }

    #[test]
    fn a_panic_is_shown_without_control_sequences() {
        static SHOWN: Mutex<Vec<u8>> = Mutex::new(Vec::new());
        panic::set_hook(Box::new(|panic| {
            let mut shown = SHOWN.lock().unwrap();
            let mut output = Output { stream: &mut *shown, escaper: Some(Escaper::default()) };
            show_panic(panic, &mut output);
        }));
        let panicked = panic::catch_unwind(|| panic!("no number: {}", "\u{1b}]0;root\u{7}"));
        drop(panic::take_hook());
        assert!(panicked.is_err());
        let shown = String::from_utf8(SHOWN.lock().unwrap().clone()).unwrap();
        for words in ["panicked at ", "lib.rs:", "no number: \\u{1b}]0;root\\u{7}\n"] {
            assert!(shown.contains(words), "{shown:?}");
        }
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
    }

    #[test]
    fn a_message_is_written_at_once() {
        /// The writes of a stream.
        struct Writes(Vec<Vec<u8>>);
        impl Write for Writes {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.push(bytes.to_vec());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for escaper in [None, Some(Escaper::default())] {
            let mut output = Output { stream: Writes(Vec::new()), escaper };
            let (num_done, num_steps) = (1, 2);
            writeln!(output, "{num_done} of {num_steps}").unwrap();
            assert_eq!(output.stream.0, [b"1 of 2\n".to_vec()]);
        }
    }

    #[test]
    fn a_document_for_a_program_keeps_every_byte() {
        let mut shown = Vec::new();
        let mut output = Output { stream: &mut shown, escaper: None };
        output.write_all(b"\x1b[31m\xff").unwrap();
        drop(output);
        assert_eq!(shown, b"\x1b[31m\xff");
    }
}
