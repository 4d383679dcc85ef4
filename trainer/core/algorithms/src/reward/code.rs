//! Unit tests as ground truths: the code of a completion, the tests of a row, and the programs that test the
//! code. The trainer runs the programs.

use std::sync::Arc;

use serde_json::Value;

use super::{DeclaredReward, External, Given, RewardError, RewardFunction, Sample, Section, Verdict};

/// A sandbox's verdicts; rows without tests as ground truth are rejected before training.
pub struct Code(External);

impl DeclaredReward for Code {
    const NAME: &'static str = "Code";
    const DOC: &'static str = "The share of unit tests that the completion's code passes, run in the sandbox by the interpreter \
         `wasm`, or by a SandboxFusion at `server` (its `run_code`). The ground truth holds the tests: `inputs` \
         and `outputs` as verl has them, or assertions.";
    const SECTIONS: &'static [Section] =
        &[Section::optional("server"), Section::optional("wasm"), Section::optional("code")];

    fn build(given: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
        Ok(Arc::new(Self(External::of(given.name))))
    }
}

impl RewardFunction for Code {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        self.0.score(sample)
    }

    fn judge(&self, sample: &Sample<'_>) -> Verdict {
        self.0.judge(sample)
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    fn check_ground_truth(&self, ground_truth: &Value) -> Result<(), RewardError> {
        CodeTests::parse(ground_truth).map(drop)
    }
}

/// Unit tests of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum CodeTests {
    /// Programs that read and write, or a function with arguments and a result.
    Cases {
        /// Standard input of each test; for a function one JSON argument per line.
        inputs: Vec<String>,
        /// Expected standard output of each test; for a function its result.
        outputs: Vec<String>,
        /// Name of the Python function that is called (verl's `fn_name`).
        function: Option<String>,
    },
    /// Python statements that fail if the code is wrong, run after the code.
    Assertions(Vec<String>),
}

/// A program to run as one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Source code of the program.
    pub code: String,
    /// Standard input of the program.
    pub stdin: String,
    /// Expected standard output; `None` if an assertion or the exit code decides.
    pub expected: Option<String>,
    /// Python statement that fails if the code is wrong.
    pub assertion: Option<String>,
}

impl Program {
    /// Returns the code and its assertion as one program, whose exit code says whether it passes.
    pub fn with_assertion(&self) -> String {
        match &self.assertion {
            Some(assertion) => format!("{}\n{assertion}\n", self.code),
            None => self.code.clone(),
        }
    }
}

impl CodeTests {
    /// Parses a ground truth: an object with `inputs` and `outputs` (and `fn_name`) or with `assert_case`, a
    /// list of assertions, the JSON text of one of these, or Python assertions as text.
    ///
    /// # Errors
    /// [`RewardError::Tests`].
    pub fn parse(ground_truth: &Value) -> Result<Self, RewardError> {
        let parsed = match ground_truth {
            Value::String(text) => match serde_json::from_str(text) {
                Ok(value @ (Value::Object(_) | Value::Array(_))) => value,
                _ => return non_empty(vec![text.clone()]),
            },
            other => other.clone(),
        };
        match &parsed {
            Value::Array(assertions) => non_empty(texts(assertions)),
            Value::Object(fields) => {
                match (fields.get("inputs"), fields.get("outputs"), fields.get("assert_case")) {
                    (Some(Value::Array(inputs)), Some(Value::Array(outputs)), _) => {
                        let function = fields.get("fn_name").and_then(Value::as_str).map(str::to_owned);
                        cases(texts(inputs), texts(outputs), function)
                    }
                    (_, _, Some(Value::Array(assertions))) => non_empty(texts(assertions)),
                    _ => Err(wrong("it has neither `inputs` and `outputs` nor `assert_case`")),
                }
            }
            other => Err(wrong(&format!("got {}", shortened(other)))),
        }
    }

    /// Makes the programs that test `code`, at most `max_tests` of them.
    pub fn programs(&self, code: &str, max_tests: usize) -> Vec<Program> {
        match self {
            Self::Cases { inputs, outputs, function } => {
                let code = match function {
                    Some(name) => format!("{code}\n{}", CALL.replace("FUNCTION_NAME", name)),
                    None => code.to_owned(),
                };
                let program = |(stdin, expected): (&String, &String)| Program {
                    code: code.clone(),
                    stdin: stdin.clone(),
                    expected: Some(expected.clone()),
                    assertion: None,
                };
                inputs.iter().zip(outputs).take(max_tests).map(program).collect()
            }
            Self::Assertions(assertions) => {
                let program = |assertion: &String| Program {
                    code: code.to_owned(),
                    stdin: String::new(),
                    expected: None,
                    assertion: Some(assertion.clone()),
                };
                assertions.iter().take(max_tests).map(program).collect()
            }
        }
    }
}

/// Python code that calls the function, or the method of `Solution`, with one JSON argument per line, and
/// writes its result: JSON for containers, booleans and None, else text (as in verl).
const CALL: &str = r#"
import json as _json, sys as _sys
_arguments = [_json.loads(_line) for _line in _sys.stdin.read().split("\n") if _line.strip()]
_function = globals().get("FUNCTION_NAME") or getattr(globals()["Solution"](), "FUNCTION_NAME")
_result = _function(*_arguments)
print(_json.dumps(_result) if _result is None or isinstance(_result, (bool, dict, list, tuple)) else _result)
"#;

/// Extracts the code of a completion: its last fenced block that is not empty, closed or not, or all of it if
/// there is none.
pub fn code_of(completion: &str) -> &str {
    let (mut found, mut begin, mut position) = (None, None, 0);
    for line in completion.split_inclusive('\n') {
        let end = position + line.len();
        if line.trim_start().starts_with("```") {
            match begin.take() {
                None => begin = Some(end),
                Some(begin) => found = non_blank(&completion[begin..position]).or(found),
            }
        }
        position = end;
    }
    let open = begin.and_then(|begin| non_blank(&completion[begin..]));
    open.or(found).unwrap_or(if completion.contains("```") { "" } else { completion })
}

/// Whether a program's output is the expected one, except for white space at the ends of lines and after the
/// last.
pub fn is_expected(output: &str, expected: &str) -> bool {
    let lines =
        |text: &str| text.trim_end().lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    lines(output) == lines(expected)
}

fn non_blank(code: &str) -> Option<&str> {
    (!code.trim().is_empty()).then_some(code)
}

fn cases(
    inputs: Vec<String>,
    outputs: Vec<String>,
    function: Option<String>,
) -> Result<CodeTests, RewardError> {
    let is_name = |name: &String| name.chars().all(|letter| letter == '_' || letter.is_alphanumeric());
    if inputs.is_empty() || inputs.len() != outputs.len() {
        return Err(wrong(&format!("it has {} inputs and {} outputs", inputs.len(), outputs.len())));
    }
    if let Some(name) = function.as_ref().filter(|name| !is_name(name)) {
        return Err(wrong(&format!("fn_name {name:?} is no name")));
    }
    Ok(CodeTests::Cases { inputs, outputs, function })
}

fn non_empty(assertions: Vec<String>) -> Result<CodeTests, RewardError> {
    if assertions.iter().any(|assertion| !assertion.trim().is_empty()) {
        return Ok(CodeTests::Assertions(assertions));
    }
    Err(wrong("it has no assertions"))
}

/// Converts values to texts: strings unchanged, everything else as JSON.
fn texts(values: &[Value]) -> Vec<String> {
    values.iter().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned)).collect()
}

fn wrong(message: &str) -> RewardError {
    RewardError::Tests { message: message.to_owned() }
}

fn shortened(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_block_of_a_completion_is_its_code() {
        assert_eq!(code_of("print(1)"), "print(1)");
        assert_eq!(code_of("So:\n```python\na\n```\nor\n```\nb\n```\nDone."), "b\n");
        assert_eq!(code_of("```py\na\n```\n```\n\n```"), "a\n");
        assert_eq!(code_of("```python\ncut o"), "cut o");
        assert_eq!(code_of("```\n```"), "");
    }

    #[test]
    fn tests_are_read_in_every_form_that_data_has() {
        let cases = json!({"inputs": ["1\n", [2, 3]], "outputs": ["1", 5]});
        let expected = CodeTests::Cases {
            inputs: vec!["1\n".into(), "[2,3]".into()],
            outputs: vec!["1".into(), "5".into()],
            function: None,
        };
        assert_eq!(CodeTests::parse(&cases).unwrap(), expected);
        assert_eq!(CodeTests::parse(&json!(cases.to_string())).unwrap(), expected);
        let assertions = CodeTests::Assertions(vec!["assert f(1) == 1".into()]);
        for form in [
            json!(["assert f(1) == 1"]),
            json!({"assert_case": ["assert f(1) == 1"]}),
            json!("assert f(1) == 1"),
        ] {
            assert_eq!(CodeTests::parse(&form).unwrap(), assertions, "{form}");
        }
        for wrong in [
            json!(null),
            json!(""),
            json!({"inputs": []}),
            json!({"inputs": ["1"], "outputs": []}),
            json!([]),
        ] {
            assert!(matches!(CodeTests::parse(&wrong), Err(RewardError::Tests { .. })), "{wrong}");
        }
    }

    #[test]
    fn an_assertion_runs_after_the_code() {
        let tests = CodeTests::parse(&json!(["assert f() == 1", "assert f() == 2"])).unwrap();
        let programs = tests.programs("def f(): return 1", 5);
        let whole: Vec<String> = programs.iter().map(Program::with_assertion).collect();
        assert_eq!(whole, ["def f(): return 1\nassert f() == 1\n", "def f(): return 1\nassert f() == 2\n"]);
    }

    #[test]
    fn a_function_is_called_with_its_arguments() {
        let tests = json!({"inputs": ["1\n2"], "outputs": ["3"], "fn_name": "add"});
        let [program] = &CodeTests::parse(&tests).unwrap().programs("def add(a, b): return a + b", 5)[..]
        else {
            panic!("one test is one program");
        };
        assert!(program.code.starts_with("def add") && program.code.contains("globals().get(\"add\")"));
        let bad = json!({"inputs": ["1"], "outputs": ["1"], "fn_name": "f\")\nimport os"});
        assert!(CodeTests::parse(&bad).is_err());
    }

    #[test]
    fn white_space_at_ends_is_no_difference() {
        assert!(is_expected("1 \n2\n\n", "1\n2"));
        assert!(!is_expected("1 2", "1\n2"));
    }
}
