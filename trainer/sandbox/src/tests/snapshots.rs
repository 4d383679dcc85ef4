//! CPython in the sandbox, restored from a copy of its memory or booted for each process.

use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Value, json};

use crate::{Bounds, Interpreter, State, WasmError};

/// Limits of a call. The time limit is for the slowest machine.
const BOUNDS: Bounds =
    Bounds { fuel: 200_000_000, max_memory_bytes: 64 << 20, timeout: Duration::from_secs(300) };

/// The interpreter's module; `None` where it cannot be fetched.
static MODULE: LazyLock<Option<Vec<u8>>> =
    LazyLock::new(|| Some(std::fs::read(rlt_tests::python_module()?).unwrap()));

/// A function that answers with random numbers, hashes and times.
const SOURCE: &str = r#"
import os, random, time

def compute_score(solution_str):
    print("seen", solution_str)
    message = f"{hash(solution_str)} {time.time()} {os.urandom(4)} {id(solution_str)}"
    return {"value": random.random(), "message": message}
"#;

fn preparation() -> Value {
    json!({"imports": [], "path": "reward.py", "source": SOURCE, "function": "compute_score"})
}

/// An answer of the function: the random number, and hash and time.
fn answer(interpreter: &Interpreter, completion: &str) -> (f64, String) {
    let sample = json!({"run": "reward", "solution_str": completion});
    let (mut process, state) = interpreter.start(&sample, Some("")).unwrap();
    assert_eq!(state, State::Exited(0), "{}", process.errors());
    let answer: Value = serde_json::from_slice(&process.take_output()).unwrap();
    let message = answer["message"].as_str().unwrap_or_else(|| panic!("{answer}"));
    let hash_and_time = message.split(" b'").next().unwrap();
    (answer["value"].as_f64().unwrap_or_else(|| panic!("{answer}")), hash_and_time.to_owned())
}

#[test]
fn a_copied_interpreter_gives_the_answer_of_a_freshly_started_one() {
    let Some(module) = &*MODULE else { return };
    let copied = Interpreter::new(module, BOUNDS, &preparation()).unwrap();
    let started = Interpreter::with_snapshots(module, BOUNDS, &preparation(), false).unwrap();
    assert!(copied.is_copied() && !started.is_copied());
    let first = answer(&copied, "random a");
    assert_eq!(first.0, answer(&started, "random a").0, "random numbers");
    assert_eq!(first, answer(&copied, "random a"), "nothing is left of the sample before");
    let (_, other) = answer(&copied, "random b");
    assert_ne!(first.1.split(' ').next(), other.split(' ').next(), "hashes of different texts");
}

#[test]
fn an_interpreter_that_needs_more_memory_than_its_limit_is_refused() {
    let Some(module) = &*MODULE else { return };
    let bounds = Bounds { max_memory_bytes: 8 << 20, ..BOUNDS };
    let error = Interpreter::new(module, bounds, &preparation()).err().unwrap();
    assert!(matches!(error, WasmError::Start { .. }), "{error}");
}
