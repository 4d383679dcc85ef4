//! Python in the sandbox: functions that judge, and code that is tested. Attacks of code on its interpreter
//! never count as success, and the same code gives the same result every time.

use std::sync::LazyLock;

use rlt_api::spec::{PythonRewardSpec, WasmSpec};
use rlt_core::types::RewardStatus::{Infra, Ok as Fine, Timeout, Wrong};
use rlt_sandbox::{Interpreter, WasmError};
use serde_json::json;

use super::super::python::{judge as judge_by, load};
use super::*;

/// Fuel of one call.
const FUEL: u64 = 200_000_000;

/// Module of the interpreter; `None` if it cannot be fetched.
pub(super) static MODULE: LazyLock<Option<Vec<u8>>> =
    LazyLock::new(|| Some(std::fs::read(rlt_tests::python_module()?).unwrap()));

pub(super) fn wasm() -> WasmSpec {
    serde_json::from_value(json!({"path": "unused", "fuel": FUEL, "memoryMib": 64, "timeoutSeconds": 300.0}))
        .unwrap()
}

fn python() -> PythonRewardSpec {
    serde_json::from_value(json!({"path": "reward.py", "function": FUNCTION})).unwrap()
}

const FUNCTION: &str = "compute_score";

/// Interpreter that judges by [`SOURCE`], shared by the tests because its start takes seconds.
static BOOTED: LazyLock<Option<Interpreter>> =
    LazyLock::new(|| Some(load(MODULE.as_ref()?, &wasm(), &python(), SOURCE).unwrap()));

/// Source of a reward function with verl's signature that does what the completion says, and of one that
/// takes all fields of a sample.
const SOURCE: &str = r#"
import re

numbers = re.compile(r"-?\d+")

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    completion = solution_str
    print("seen by", data_source)
    if completion == "raise":
        raise KeyError("no level")
    if completion == "loop":
        while True:
            pass
    if completion == "exit":
        raise SystemExit(0)
    if completion == "memory":
        [bytearray(1 << 20) for _ in range(4096)]
    if completion == "deep":
        def deep(n):
            return [[deep(n + 1)]]
        deep(0)
    if completion == "wait":
        return len(input()) / 0
    special = {
        "none": None, "nan": float("nan"), "text": "a", "list": [1],
        "wrong": {"status": "wrong", "value": -1, "message": "no"}, "late": {"status": "timeout"},
        "ok": {"value": 0.5, "message": "half"}, "odd": {"status": "great", "value": 1},
    }
    if completion in special:
        return special[completion]
    return float(numbers.findall(completion)[-1] == str(ground_truth)) * extra_info["level"]

def all_of(**sample):
    return len(sample["completion"]) + len(sample["prompt"]) + sample["num_tokens"]
"#;

fn sample(completion: &str) -> Value {
    json!({
        "id": "0.0", "prompt": "question", "completion": completion, "num_tokens": 3, "data_source": "a",
        "ground_truth": "42", "extra_info": {"level": 3},
    })
}

#[test]
fn a_python_function_judges_and_its_failure_is_no_verdict() {
    let (Some(module), Some(interpreter)) = (&*MODULE, &*BOOTED) else { return };
    for (completion, status, value, words) in [
        ("so 41 or 42", Fine, 3.0, ""),
        ("43", Fine, 0.0, ""),
        ("ok", Fine, 0.5, "half"),
        ("wrong", Wrong, -1.0, "no"),
        ("late", Timeout, 0.0, "ran out of time"),
        ("raise", Infra, 0.0, "KeyError: 'no level'"),
        ("none", Infra, 0.0, "returned no value"),
        ("nan", Infra, 0.0, "ValueError"),
        ("text", Infra, 0.0, "ValueError"),
        ("list", Infra, 0.0, "TypeError"),
        ("odd", Infra, 0.0, "exit code 0"),
        ("exit", Infra, 0.0, "SystemExit"),
        ("wait", Infra, 0.0, "EOFError"),
        ("memory", Infra, 0.0, "MemoryError"),
        ("deep", Infra, 0.0, "RecursionError"),
        ("loop", Timeout, 0.0, "used up its fuel of 200000000"),
    ] {
        let verdict = judge_by(interpreter, sample(completion));
        assert_eq!((verdict.status, verdict.value), (status, value), "{completion}: {verdict:?}");
        assert!(verdict.message.clone().unwrap_or_default().contains(words), "{completion}: {verdict:?}");
        assert_eq!(judge_by(interpreter, sample(completion)), verdict, "the same every time");
    }
    let by = |function: &str| {
        let python = PythonRewardSpec { function: function.into(), ..python() };
        load(module, &wasm(), &python, SOURCE)
    };
    assert_eq!(judge_by(&by("all_of").unwrap(), sample("abc")).value, 3.0 + 8.0 + 3.0);
    let marked = load(module, &wasm(), &python(), &format!("\u{feff}{SOURCE}")).unwrap();
    assert_eq!(judge_by(&marked, sample("so 41 or 42")).value, 3.0);
    let missing = by("none").err().unwrap();
    assert!(
        matches!(&missing, WasmError::Load { message, .. } if message.contains("no attribute 'none'")),
        "{missing}"
    );
}
