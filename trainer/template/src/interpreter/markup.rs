//! Texts that are escaped for HTML: results of `escape` and `safe` are not escaped again.
//!
//! jinja2 gives such texts a type of their own, `Markup`. Here they lose that property within containers, in
//! slices, in formats, and as results of methods with arguments.

use std::collections::HashSet;
use std::sync::Arc;

use crate::value::Value;

/// The escaped texts of a rendering.
#[derive(Default)]
pub(crate) struct Escaped {
    addresses: HashSet<usize>,
    /// The escaped texts, which are held so that no other text gets their addresses.
    texts: Vec<Arc<str>>,
}

impl Escaped {
    /// Notes that a text is escaped.
    pub(crate) fn insert(&mut self, value: &Value) {
        if let Value::Str(text) = value
            && self.addresses.insert(text.as_ptr().addr())
        {
            self.texts.push(text.clone());
        }
    }

    /// Whether a value is an escaped text.
    pub(crate) fn contains(&self, value: &Value) -> bool {
        matches!(value, Value::Str(text) if self.addresses.contains(&text.as_ptr().addr()))
    }
}

/// Escapes a text for HTML.
pub(crate) fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('\'', "&#39;").replace('"', "&#34;")
}
