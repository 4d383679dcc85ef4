//! Chat templates: Jinja as jinja2 renders it in Python, with the settings and functions of transformers.
//!
//! Templates come with models and are written for `ImmutableSandboxedEnvironment(trim_blocks=True,
//! lstrip_blocks=True)` with loop controls, `raise_exception`, `strftime_now`, `tojson` by `json.dumps` and
//! the `{% generation %}` tag. Values are Python's: `str([None, 1.0])` is `[None, 1.0]`, `7 and 0` is 0, `-7
//! % 3` is 2. `tests/fixtures/make.py` records what jinja2 renders; the tests hold this crate against it.
//!
//! Templates may be hostile. Steps, nesting, texts and values are bounded, so rendering always ends.
//!
//! Why not minijinja: it has Rust's values, and cannot bound what a filter reads. A template that renders
//! differently from jinja2 changes what a model learns, without a message.

mod characters;
mod checks;
mod error;
mod filters;
mod format;
mod given;
mod interpreter;
mod json;
mod methods;
mod names;
mod operators;
mod order;
mod rendered;
mod syntax;
mod text;
mod unknown;
mod value;

use std::collections::BTreeSet;

pub use error::{Error, ErrorKind};
pub use rendered::{Clock, Rendered};
use syntax::{ast, lexer, parser};

/// Number of steps that [`Template::render`] may take. A conversation of a thousand turns takes well below a
/// million. A step copies at most 64 bytes, so this also bounds the memory of a rendering.
pub const MAX_STEPS: usize = 20_000_000;

/// Maximum length of a template's source in bytes; long ones have 30 kB.
pub const MAX_SOURCE_BYTES: usize = 4 << 20;

/// A parsed template.
#[derive(Debug)]
pub struct Template {
    body: ast::Body,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// [`ErrorKind::Syntax`] with the line, [`ErrorKind::Budget`] for more than [`MAX_SOURCE_BYTES`].
    pub fn new(source: &str) -> Result<Self, Error> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(Error::budget(format!("the template has more than {MAX_SOURCE_BYTES} bytes")));
        }
        let tokens = lexer::tokenize(source)?;
        let body = parser::parse(tokens)?;
        unknown::refuse(&body)?;
        Ok(Self { body })
    }

    /// Renders the template with `variables`, an object by variable name, in at most [`MAX_STEPS`] steps.
    ///
    /// # Errors
    /// [`ErrorKind::Render`] where jinja2 raises an exception, [`ErrorKind::Budget`] where the template takes
    /// more steps, text or nesting than any conversation needs.
    pub fn render(
        &self,
        variables: &serde_json::Map<String, serde_json::Value>,
        clock: Clock<'_>,
    ) -> Result<Rendered, Error> {
        self.render_within(variables, clock, MAX_STEPS)
    }

    /// Renders the template as [`Self::render`] does, in at most `max_steps` steps.
    ///
    /// # Errors
    /// As [`Self::render`].
    pub fn render_within(
        &self,
        variables: &serde_json::Map<String, serde_json::Value>,
        clock: Clock<'_>,
        max_steps: usize,
    ) -> Result<Rendered, Error> {
        let settings = interpreter::Settings { clock, max_steps, is_strict: false };
        interpreter::render(&self.body, variables, &settings)
    }

    /// Returns the names of variables that the template prints, alone or by an attribute, item, slice or
    /// filter, and does not set itself. Values with a default are left out.
    pub fn printed_names(&self) -> BTreeSet<&str> {
        names::printed(&self.body)
    }

    /// Renders the template in at most `max_steps` steps, and fails where it prints an undefined value, which
    /// jinja2 prints as an empty text. It has no clock.
    ///
    /// # Errors
    /// As [`Self::render`], and [`ErrorKind::Render`] with the name of an undefined value.
    pub fn render_strictly(
        &self,
        variables: &serde_json::Map<String, serde_json::Value>,
        max_steps: usize,
    ) -> Result<String, Error> {
        let clock: Clock<'_> = &|_| Err("the template has no clock".to_owned());
        let settings = interpreter::Settings { clock, max_steps, is_strict: true };
        interpreter::render(&self.body, variables, &settings).map(|rendered| rendered.text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// jinja2 compiles the templates without an error here, and none of the others.
    #[test]
    fn an_unknown_filter_or_test_is_refused_unless_an_if_decides_whether_it_is_reached() {
        for (source, is_right) in [
            ("{{ x | nosuch }}", false),
            ("\n{% for y in x %}{{ [y, {'a': y | trim | nosuch}] }}{% endfor %}", false),
            ("{{ f(*[1 is nosuch], **{}) }}", false),
            ("{% set y = not (x[1:x is nosuch] ~ 'a') %}", false),
            ("{% filter nosuch %}a{% endfilter %}", false),
            ("{% macro m(a, b=1 | nosuch) %}{% endmacro %}", false),
            ("{% call m(1) %}{{ 1 | nosuch }}{% endcall %}", false),
            ("{% with a = 1 | nosuch %}{% endwith %}", false),
            ("{% if x %}{{ x | nosuch }}{% elif x is nosuch %}{% endif %}", true),
            ("{{ (x | nosuch) if x else 1 }}", true),
            ("{{ x | map('nosuch') | list }}{{ x is eq 1 }}{{ x | d | urlize }}", true),
        ] {
            let parsed = Template::new(source);
            assert_eq!(parsed.is_ok(), is_right, "{source}: {parsed:?}");
            if let Err(error) = parsed {
                assert_eq!(error.kind(), ErrorKind::Syntax);
                assert!(error.to_string().contains("named 'nosuch'"), "{error}");
            }
        }
    }

    #[test]
    fn names_that_are_printed_and_never_set_come_from_outside() {
        let source = "{{ a }}{{ b.c | trim }}{{ d['e'][1:] }}{{ f | default('') | trim }}{{ 1 if g }}\
            {% set x = h %}{{ x }}{% for y, (z, w) in i %}{{ y }}{{ w.v }}{{ loop.index }}{{ j }}{% else %}{{ k }}{% endfor %}\
            {% macro m(n) %}{{ n }}{{ o }}{% endmacro %}{{ m(1) }}{% with p = 1 %}{{ p }}{% endwith %}\
            {% if q %}{{ r }}{% elif q %}{{ s }}{% else %}{{ t }}{% endif %}{% filter upper %}{{ u }}{% endfilter %}";
        let template = Template::new(source).unwrap();
        let names: String = template.printed_names().into_iter().collect();
        assert_eq!(names, "abdjkorstu");
    }

    #[test]
    fn a_strict_rendering_prints_no_undefined_value() {
        let variables = json!({ "prompt": "1+1", "extra_info": { "level": 3 }, "truth": null });
        let render = |source: &str| {
            let template = Template::new(source).unwrap();
            template.render_strictly(variables.as_object().unwrap(), 1000).map_err(|error| error.to_string())
        };
        let right =
            "{{ prompt }} {{ extra_info.level }} {{ truth }} {{ answer | default('-') }}{{ 1 if answer }}";
        assert_eq!(render(right), Ok("1+1 3 None -".to_owned()));
        assert_eq!(render("{% if answer %}{{ answer }}{% endif %}."), Ok(".".to_owned()));
        for (source, name) in [
            ("{{ promt }}", "'promt' is undefined"),
            ("{{ extra_info.levl }}", "has no attribute 'levl'"),
            ("{% set x %}{{ promt }}{% endset %}{{ x }}", "'promt' is undefined"),
        ] {
            assert!(render(source).unwrap_err().contains(name), "{source}: {:?}", render(source));
        }
        assert!(render("{% for x in range(900) %}{{ x }}{% endfor %}").unwrap_err().contains("1000 steps"));
    }
}
