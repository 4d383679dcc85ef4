//! Whether a completion has the asked-for form, whatever it says.

use regex::Regex;

use super::{RewardError, RewardFunction, Sample, one_if, pattern};

/// 1 when the whole completion, without surrounding white space, has the form; else 0.
#[derive(Clone, Debug)]
pub struct Format {
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    Whole(Regex),
    Sections(Vec<String>),
}

impl Format {
    /// The whole text matches `pattern`; `.` matches line breaks as well.
    ///
    /// # Errors
    /// [`RewardError::Pattern`].
    pub fn matching(pattern: &str) -> Result<Self, RewardError> {
        Ok(Self { form: Form::Whole(pattern::compile(&format!(r"(?s)\A(?:{pattern})\z"))?) })
    }

    /// The text is `<a>..</a><b>..</b>`, white space between sections allowed: each tag opened once and
    /// closed once, in this order, with nothing outside.
    ///
    /// # Errors
    /// [`RewardError::Setting`] without a tag or with one that is not a name.
    pub fn sections(tags: &[String]) -> Result<Self, RewardError> {
        let is_name =
            |tag: &String| !tag.is_empty() && tag.chars().all(|c| c.is_alphanumeric() || "_-".contains(c));
        if tags.is_empty() || !tags.iter().all(is_name) {
            let value = format!("{tags:?}");
            let expected = "at least one name of letters, digits, _ and -";
            return Err(RewardError::Setting { function: "format", field: "tags", value, expected });
        }
        Ok(Self { form: Form::Sections(tags.to_vec()) })
    }
}

impl RewardFunction for Format {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let text = sample.completion.trim();
        Ok(one_if(match &self.form {
            Form::Whole(regex) => regex.is_match(text),
            Form::Sections(tags) => has_sections(text, tags),
        }))
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }
}

fn has_sections(text: &str, tags: &[String]) -> bool {
    let mut rest = text;
    for tag in tags {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        if text.matches(&open).count() != 1 || text.matches(&close).count() != 1 {
            return false;
        }
        let section = rest.trim_start().strip_prefix(&open).and_then(|inside| inside.split_once(&close));
        let Some((_, after)) = section else { return false };
        rest = after;
    }
    rest.trim().is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample;
    use super::*;

    #[test]
    fn the_whole_text_has_to_match() {
        let format = Format::matching("a|b.*c").unwrap();
        let score = |text: &str| format.score(&sample(text, &json!(null))).unwrap();
        assert_eq!([" a\n", "b\nc", "ab", "xa"].map(score), [1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn sections_stand_once_in_order_with_nothing_outside() {
        let format = Format::sections(&["think".into(), "answer".into()]).unwrap();
        let score = |text: &str| format.score(&sample(text, &json!(null))).unwrap();
        assert_eq!(score("<think>x < y</think>\n<answer>3</answer>"), 1.0);
        for wrong in [
            "",
            "<think></think>",
            "<answer>3</answer><think>x</think>",
            "<think>x</think> so <answer>3</answer>",
            "<think>x</think><answer>3</answer>!",
            "<think>x</think><think>x</think><answer>3</answer>",
            "<think>x<answer>3</answer></think>",
            "<think>a</think><answer>3</answer></answer>",
        ] {
            assert_eq!(score(wrong), 0.0, "{wrong}");
        }
    }

    #[test]
    fn tags_are_names() {
        assert!(matches!(Format::sections(&[]), Err(RewardError::Setting { .. })));
        assert!(matches!(Format::sections(&["a b".into()]), Err(RewardError::Setting { .. })));
    }
}
