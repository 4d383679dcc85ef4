//! Untrusted text on a terminal: control sequences, which could move the cursor, rename the window or hide
//! text, are shown as escapes and not executed.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes the control characters of a text, except for line breaks and tabs, and its bidirectional controls.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
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
pub(crate) struct Escaper {
    /// First bytes of an incomplete character.
    begun: Vec<u8>,
}

impl Escaper {
    /// Escapes the next bytes, up to an incomplete character at the end.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
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
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.begun).iter().map(|byte| format!("\\x{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
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
}
