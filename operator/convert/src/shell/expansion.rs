//! Expansion of words: quotes, parameters, substitutions, and word splitting.

use std::ops::Range;

use brush_parser::ast::{Assignment, AssignmentName, AssignmentValue};
use brush_parser::word::{
    Parameter, ParameterExpr, ParameterTestType, SpecialParameter, SubstringMatchKind, WordPiece,
    WordPieceWithSource,
};
use brush_parser::{ParserOptions, word};

use super::condition::Pattern;
use super::scope::Variable;
use super::{Shell, ShellError, limits, nesting};

/// The fields into which words are split.
#[derive(Debug, Default)]
struct Fields {
    done: Vec<String>,
    open: Option<String>,
}

impl Fields {
    fn push(&mut self, text: &str) {
        self.open.get_or_insert_default().push_str(text);
    }

    /// Adds unquoted text, split at whitespace.
    fn push_split(&mut self, text: &str) {
        for (index, part) in text.split(char::is_whitespace).enumerate() {
            if index > 0 {
                self.done.extend(self.open.take());
            }
            if !part.is_empty() {
                self.push(part);
            }
        }
    }

    /// Adds one field per element, as for `"${list[@]}"`.
    fn push_elements(&mut self, elements: &[String]) {
        for (index, element) in elements.iter().enumerate() {
            if index > 0 {
                self.done.extend(self.open.take());
            }
            self.push(element);
        }
    }

    fn finish(mut self) -> Vec<String> {
        self.done.extend(self.open.take());
        self.done
    }
}

/// The value of a parameter.
enum Expanded {
    One(String),
    Many(Vec<String>),
}

impl Expanded {
    fn joined(self) -> String {
        match self {
            Self::One(text) => text,
            Self::Many(texts) => texts.join(" "),
        }
    }
}

impl Expanded {
    fn num_bytes(&self) -> usize {
        match self {
            Self::One(text) => text.len(),
            Self::Many(texts) => texts.iter().map(|text| text.len() + size_of::<String>()).sum(),
        }
    }
}

impl Shell {
    /// Expands a word to fields.
    pub(super) fn fields(&mut self, text: &str) -> Result<Vec<String>, ShellError> {
        limits::check(text)?;
        nesting::check_word(text)?;
        let mut fields = Fields::default();
        for piece in word::parse(text, &ParserOptions::default())? {
            self.expand(&piece.piece, false, &mut fields)?;
        }
        Ok(fields.finish())
    }

    /// Expands a word without splitting it, as in an assignment.
    pub(super) fn text(&mut self, text: &str) -> Result<String, ShellError> {
        limits::check(text)?;
        nesting::check_word(text)?;
        let mut fields = Fields::default();
        for piece in word::parse(text, &ParserOptions::default())? {
            self.expand(&piece.piece, true, &mut fields)?;
        }
        Ok(fields.finish().join(" "))
    }

    fn expand(&mut self, piece: &WordPiece, is_quoted: bool, fields: &mut Fields) -> Result<(), ShellError> {
        match piece {
            WordPiece::Text(text) | WordPiece::SingleQuotedText(text) | WordPiece::AnsiCQuotedText(text) => {
                self.budget.spend(text.len())?;
                fields.push(text);
            }
            WordPiece::EscapeSequence(text) => match text.strip_prefix('\\') {
                Some("\n") => {}
                Some(escaped) => fields.push(escaped),
                None => fields.push(text),
            },
            WordPiece::DoubleQuotedSequence(pieces) | WordPiece::GettextDoubleQuotedSequence(pieces) => {
                self.expand_quoted(pieces, fields)?;
            }
            WordPiece::TildePrefix(user) => {
                let home = self.scope.variables.get("HOME").map(|home| home.scalar().to_owned());
                fields.push(&home.filter(|_| user.is_empty()).unwrap_or_else(|| format!("~{user}")));
            }
            WordPiece::ParameterExpansion(expression) => match self.expand_parameter(expression)? {
                Expanded::Many(elements) => fields.push_elements(&elements),
                Expanded::One(text) if is_quoted => fields.push(&text),
                Expanded::One(text) => fields.push_split(&text),
            },
            WordPiece::CommandSubstitution(command) | WordPiece::BackquotedCommandSubstitution(command) => {
                let output = self.output_of(command)?;
                if is_quoted { fields.push(&output) } else { fields.push_split(&output) }
            }
            WordPiece::ArithmeticExpression(expression) => {
                let value = self.compute(&expression.value)?;
                fields.push(&value.to_string());
            }
        }
        Ok(())
    }

    fn expand_quoted(
        &mut self,
        pieces: &[WordPieceWithSource],
        fields: &mut Fields,
    ) -> Result<(), ShellError> {
        let is_elements_alone = matches!(pieces, [piece] if matches!(&piece.piece, WordPiece::ParameterExpansion(
            ParameterExpr::Parameter { parameter: Parameter::NamedWithAllIndices { concatenate: false, .. }
                | Parameter::Special(SpecialParameter::AllPositionalParameters { concatenate: false }), .. })));
        if !is_elements_alone {
            fields.push("");
        }
        pieces.iter().try_for_each(|piece| self.expand(&piece.piece, true, fields))
    }

    /// Returns what the commands of a substitution `echo`; the output of programs is unknown.
    fn output_of(&mut self, command: &str) -> Result<String, ShellError> {
        let (num_commands, callers) = (self.commands.len(), self.output.replace(String::new()));
        self.depth += 1;
        let outcome =
            if self.depth > super::MAX_DEPTH { Err(ShellError::Endless) } else { self.run_text(command) };
        self.depth -= 1;
        let output = std::mem::replace(&mut self.output, callers).unwrap_or_default();
        outcome?;
        if output.is_empty() && self.commands.len() > num_commands {
            self.scope.note(format!("the output of `{command}` is not known"));
        }
        Ok(output.trim_end_matches('\n').to_owned())
    }

    fn expand_parameter(&mut self, expression: &ParameterExpr) -> Result<Expanded, ShellError> {
        let expanded = self.expand_unbounded(expression)?;
        self.budget.spend(expanded.num_bytes())?;
        Ok(expanded)
    }

    fn expand_unbounded(&mut self, expression: &ParameterExpr) -> Result<Expanded, ShellError> {
        match expression {
            ParameterExpr::Parameter { parameter, indirect: false } => Ok(self.value_or_empty(parameter)),
            ParameterExpr::Parameter { parameter, indirect: true } => {
                let name = self.value_or_empty(parameter).joined();
                Ok(self.value_or_empty(&Parameter::Named(name)))
            }
            ParameterExpr::UseDefaultValues { parameter, test_type, default_value, .. }
            | ParameterExpr::AssignDefaultValues { parameter, test_type, default_value, .. } => {
                if self.is_given(parameter, test_type) {
                    return Ok(self.value_or_empty(parameter));
                }
                let value = self.text(default_value.as_deref().unwrap_or_default())?;
                if let (ParameterExpr::AssignDefaultValues { .. }, Parameter::Named(name)) =
                    (expression, parameter)
                {
                    self.scope.set(name, value.clone());
                }
                Ok(Expanded::One(value))
            }
            ParameterExpr::IndicateErrorIfNullOrUnset { parameter, test_type, error_message, .. } => {
                if self.is_given(parameter, test_type) {
                    return Ok(self.value_or_empty(parameter));
                }
                let message = error_message.as_deref().unwrap_or("the script needs it");
                self.scope.note(format!("{} is not set: {message}", name_of(parameter)));
                Ok(Expanded::One(String::new()))
            }
            ParameterExpr::UseAlternativeValue { parameter, test_type, alternative_value, .. } => {
                let is_given = self.is_given(parameter, test_type);
                let value = alternative_value.as_deref().filter(|_| is_given).unwrap_or_default();
                Ok(Expanded::One(self.text(value)?))
            }
            ParameterExpr::ParameterLength { parameter, .. } => {
                Ok(Expanded::One(match self.value_or_empty(parameter) {
                    Expanded::One(text) => text.chars().count().to_string(),
                    Expanded::Many(elements) => elements.len().to_string(),
                }))
            }
            ParameterExpr::Substring { parameter, indirect: false, offset, length } => {
                let length = length.as_ref().map(|length| length.value.as_str());
                self.substring(parameter, offset.value.trim(), length)
            }
            _ => self.transform(expression),
        }
    }

    /// Expands parts of a value, replacements, and changes of case.
    fn transform(&mut self, expression: &ParameterExpr) -> Result<Expanded, ShellError> {
        let (ParameterExpr::RemoveSmallestSuffixPattern { parameter, .. }
        | ParameterExpr::RemoveLargestSuffixPattern { parameter, .. }
        | ParameterExpr::RemoveSmallestPrefixPattern { parameter, .. }
        | ParameterExpr::RemoveLargestPrefixPattern { parameter, .. }
        | ParameterExpr::UppercasePattern { parameter, .. }
        | ParameterExpr::LowercasePattern { parameter, .. }
        | ParameterExpr::UppercaseFirstChar { parameter, .. }
        | ParameterExpr::LowercaseFirstChar { parameter, .. }
        | ParameterExpr::ReplaceSubstring { parameter, .. }) = expression
        else {
            self.scope.note(left_out(expression));
            return Ok(Expanded::One(String::new()));
        };
        let text = self.value_or_empty(parameter).joined();
        let ends: Vec<usize> = text.char_indices().map(|(index, _)| index).chain([text.len()]).collect();
        Ok(Expanded::One(match expression {
            ParameterExpr::RemoveSmallestPrefixPattern { pattern, .. } => {
                self.cut(&text, pattern.as_deref(), ends.iter().map(|&end| (end, text.len())), true)?
            }
            ParameterExpr::RemoveLargestPrefixPattern { pattern, .. } => {
                self.cut(&text, pattern.as_deref(), ends.iter().rev().map(|&end| (end, text.len())), true)?
            }
            ParameterExpr::RemoveSmallestSuffixPattern { pattern, .. } => {
                self.cut(&text, pattern.as_deref(), ends.iter().rev().map(|&begin| (0, begin)), false)?
            }
            ParameterExpr::RemoveLargestSuffixPattern { pattern, .. } => {
                self.cut(&text, pattern.as_deref(), ends.iter().map(|&begin| (0, begin)), false)?
            }
            ParameterExpr::UppercasePattern { .. } => text.to_uppercase(),
            ParameterExpr::LowercasePattern { .. } => text.to_lowercase(),
            ParameterExpr::UppercaseFirstChar { .. } => with_first(&text, str::to_uppercase),
            ParameterExpr::LowercaseFirstChar { .. } => with_first(&text, str::to_lowercase),
            ParameterExpr::ReplaceSubstring { pattern, replacement, match_kind, .. } => {
                let pattern = self.text(pattern)?;
                let replacement = self.text(replacement.as_deref().unwrap_or_default())?;
                let num_found = if pattern.is_empty() { text.len() + 1 } else { text.len() / pattern.len() };
                self.budget.spend(num_found.saturating_mul(replacement.len()))?;
                match match_kind {
                    SubstringMatchKind::Anywhere => text.replace(&pattern, &replacement),
                    _ => text.replacen(&pattern, &replacement, 1),
                }
            }
            _ => text,
        }))
    }

    /// Returns the first of the candidate `parts` whose remainder, before or after the part, matches the
    /// pattern.
    fn cut(
        &mut self,
        text: &str,
        pattern: Option<&str>,
        parts: impl Iterator<Item = (usize, usize)>,
        is_rest_before: bool,
    ) -> Result<String, ShellError> {
        let pattern = Pattern::of(&self.text(pattern.unwrap_or_default())?)?;
        for (begin, end) in parts {
            let rest = if is_rest_before { &text[..begin] } else { &text[end..] };
            self.budget.spend(rest.len() + 64)?;
            if pattern.matches(rest) {
                return Ok(text[begin..end].to_owned());
            }
        }
        Ok(text.to_owned())
    }

    /// Returns a parameter's value; an unknown one is empty, and noted.
    fn value_or_empty(&mut self, parameter: &Parameter) -> Expanded {
        if let Some(value) = self.value(parameter) {
            return value;
        }
        self.scope.note(format!("{} is not set", name_of(parameter)));
        Expanded::One(String::new())
    }

    fn is_given(&mut self, parameter: &Parameter, test: &ParameterTestType) -> bool {
        match self.value(parameter) {
            None => false,
            Some(value) => matches!(test, ParameterTestType::Unset) || !value.joined().is_empty(),
        }
    }

    fn value(&mut self, parameter: &Parameter) -> Option<Expanded> {
        match parameter {
            Parameter::Named(name) => {
                self.scope.variables.get(name).map(|variable| Expanded::One(variable.scalar().to_owned()))
            }
            Parameter::NamedWithIndex { name, index } => {
                let key = self.text(index).ok()?;
                self.scope.variables.get(name)?.element(&key).map(Expanded::One)
            }
            Parameter::NamedWithAllIndices { name, .. } => {
                Some(Expanded::Many(self.scope.variables.get(name).map_or_else(Vec::new, Variable::elements)))
            }
            Parameter::Positional(0) => Some(Expanded::One("script.sh".to_owned())),
            Parameter::Positional(index) => {
                let index = usize::try_from(*index).ok()?.checked_sub(1)?;
                self.scope.arguments.get(index).cloned().map(Expanded::One)
            }
            Parameter::Special(SpecialParameter::AllPositionalParameters { .. }) => {
                Some(Expanded::Many(self.scope.arguments.clone()))
            }
            Parameter::Special(SpecialParameter::PositionalParameterCount) => {
                Some(Expanded::One(self.scope.arguments.len().to_string()))
            }
            Parameter::Special(_) => Some(Expanded::One("0".to_owned())),
        }
    }

    pub(super) fn assign(&mut self, assignment: &Assignment) -> Result<(), ShellError> {
        let name = match &assignment.name {
            AssignmentName::VariableName(name) => name,
            AssignmentName::ArrayElementName(name, index) => {
                return self.assign_element(name, index, assignment);
            }
        };
        let before = self.scope.variables.get(name).filter(|_| assignment.append).cloned();
        self.budget.spend(before.as_ref().map_or(0, Variable::num_bytes))?;
        let variable = match &assignment.value {
            AssignmentValue::Scalar(value) => {
                let value = self.text(&value.value)?;
                Variable::Scalar(
                    before.map_or_else(String::new, |before| before.scalar().to_owned()) + &value,
                )
            }
            AssignmentValue::Array(values) => {
                let mut variable = before.unwrap_or_else(|| Variable::Array(Vec::new()));
                for (key, value) in values {
                    if let Some(key) = key {
                        self.budget.spend(variable.num_bytes())?;
                        let (key, value) = (self.text(&key.value)?, self.text(&value.value)?);
                        variable.set_element(&key, value);
                        continue;
                    }
                    let mut elements = variable.elements();
                    elements.extend(self.fields(&value.value)?);
                    variable = Variable::Array(elements);
                }
                variable
            }
        };
        self.scope.variables.insert(name.clone(), variable);
        Ok(())
    }

    /// Assigns one element of an array or of a map.
    fn assign_element(&mut self, name: &str, key: &str, assignment: &Assignment) -> Result<(), ShellError> {
        let AssignmentValue::Scalar(word) = &assignment.value else {
            self.scope.note("a list is not assigned to an element of an array".to_owned());
            return Ok(());
        };
        let (key, value) = (self.text(key)?, self.text(&word.value)?);
        let known = self.scope.variables.get(name).cloned();
        let mut variable = known.unwrap_or_else(|| Variable::Array(Vec::new()));
        self.budget.spend(variable.num_bytes())?;
        let before = variable.element(&key).filter(|_| assignment.append).unwrap_or_default();
        variable.set_element(&key, before + &value);
        self.scope.variables.insert(name.to_owned(), variable);
        Ok(())
    }

    /// Expands `${name:offset:length}` of a text or of the elements of an array.
    fn substring(
        &mut self,
        parameter: &Parameter,
        offset: &str,
        length: Option<&str>,
    ) -> Result<Expanded, ShellError> {
        let begin = self.compute(offset)?;
        let length = length.map(|length| self.compute(length)).transpose()?;
        // The first argument of a script has the offset 1.
        let is_arguments =
            matches!(parameter, Parameter::Special(SpecialParameter::AllPositionalParameters { .. }));
        let begin = if is_arguments && begin > 0 { begin - 1 } else { begin };
        Ok(match self.value_or_empty(parameter) {
            Expanded::One(text) => {
                let letters: Vec<char> = text.chars().collect();
                Expanded::One(letters[range(begin, length, letters.len())].iter().collect())
            }
            Expanded::Many(elements) => {
                Expanded::Many(elements[range(begin, length, elements.len())].to_vec())
            }
        })
    }
}

/// Returns the items that an offset and a length select of `count`; negative ones count from the end.
fn range(begin: i64, length: Option<i64>, count: usize) -> Range<usize> {
    let total = i64::try_from(count).unwrap_or(i64::MAX);
    let from = |index: i64| {
        let index = if index < 0 { total.saturating_add(index) } else { index };
        index.clamp(0, total)
    };
    let begin = from(begin);
    let end = match length {
        None => total,
        Some(length) if length < 0 => from(length),
        Some(length) => begin.saturating_add(length).min(total),
    };
    let index = |index: i64| usize::try_from(index).unwrap_or(0);
    index(begin)..index(end.max(begin))
}

/// Returns a text with its first character in another case.
fn with_first(text: &str, change: fn(&str) -> String) -> String {
    let end = text.chars().next().map_or(0, char::len_utf8);
    change(&text[..end]) + &text[end..]
}

/// Returns the note on an expansion that is not evaluated.
fn left_out(expression: &ParameterExpr) -> String {
    match expression {
        ParameterExpr::Transform { parameter, .. } | ParameterExpr::Substring { parameter, .. } => {
            format!("an expansion of {} is left out", name_of(parameter))
        }
        _ => "an expansion to names of variables or keys is left out".to_owned(),
    }
}

fn name_of(parameter: &Parameter) -> String {
    match parameter {
        Parameter::Named(name)
        | Parameter::NamedWithIndex { name, .. }
        | Parameter::NamedWithAllIndices { name, .. } => name.clone(),
        Parameter::Positional(index) => format!("${index}"),
        Parameter::Special(_) => "a special parameter".to_owned(),
    }
}
