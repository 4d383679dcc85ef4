//! Correct and misbehaving modules: each call ends within its limits, with the same result every time.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::{Bounds, Sandbox, SandboxError, WasmError};

/// Limits of a call; only fuel and memory are ever used up.
const BOUNDS: Bounds = Bounds { fuel: 300_000, max_memory_bytes: 4 << 20, timeout: Duration::from_secs(100) };

/// A module whose `judge` has this body; samples are written to address 16.
fn module(body: &str) -> Vec<u8> {
    let text = format!(
        "(module (memory (export \"memory\") 1) (table 4 funcref) (type $f (func (param i32 i32) (result f64)))
           (func (export \"alloc\") (param i32) (result i32) (i32.const 16))
           (func $judge (export \"judge\") (param i32 i32) (result f64) (local i32 i64 f64) {body}))"
    );
    wat::parse_str(text).unwrap()
}

fn judge_by(bytes: &[u8], bounds: Bounds) -> Result<f64, SandboxError> {
    Sandbox::new(bytes, bounds).unwrap().judge(br#"{"completion": "abc"}"#)
}

#[test]
fn a_module_reads_its_input_and_gives_a_number() {
    let length = module("(f64.convert_i32_u (local.get 1))");
    assert_eq!(judge_by(&length, BOUNDS), Ok(21.0));
    let first = module("(f64.convert_i32_u (i32.load8_u (local.get 0)))");
    assert_eq!(judge_by(&first, BOUNDS), Ok(f64::from(b'{')));
    // `memory.grow` beyond the limit fails in a way that a module can see: it returns -1.
    let growing = module("(f64.convert_i32_s (memory.grow (i32.const 65000)))");
    assert_eq!(judge_by(&growing, BOUNDS), Ok(-1.0));
}

#[test]
fn a_module_that_misbehaves_ends_within_its_bounds() {
    let forever = "(loop $l (br $l)) (unreachable)";
    for (body, words) in [
        (forever, "used up its fuel of 300000"),
        ("(unreachable)", "trapped"),
        ("(call $judge (local.get 0) (local.get 1))", "trapped"),
        ("(f64.load (i32.const -8))", "trapped"),
        ("(call_indirect (type $f) (local.get 0) (local.get 1) (i32.const 1))", "trapped"),
        ("(f64.convert_i32_s (i32.div_s (i32.const 1) (i32.const 0)))", "trapped"),
        ("(loop $l (drop (memory.grow (i32.const 1))) (br $l)) (unreachable)", "used up its fuel of 300000"),
    ] {
        let reason = BOUNDS.reason(judge_by(&module(body), BOUNDS).unwrap_err());
        assert!(reason.contains(words), "{body}: {reason}");
    }
    let started = Instant::now();
    let bounds = Bounds { fuel: 900_000_000_000, timeout: Duration::from_millis(200), ..BOUNDS };
    let late = judge_by(&module(forever), bounds).unwrap_err();
    assert_eq!(late, SandboxError::Time);
    assert!(bounds.reason(late).contains("took longer than 200ms"));
    assert!(started.elapsed() < Duration::from_secs(100), "{:?}", started.elapsed());
}

#[test]
fn a_module_that_cannot_judge_is_refused_before_its_first_call() {
    let refused = |text: &str| Sandbox::new(&wat::parse_str(text).unwrap(), BOUNDS).err().unwrap();
    let memory = "(memory (export \"memory\") 1)";
    let alloc = "(func (export \"alloc\") (param i32) (result i32) (i32.const 0))";
    let judge = "(func (export \"judge\") (param i32 i32) (result f64) (f64.const 0))";
    let import = "(import \"wasi_snapshot_preview1\" \"fd_write\" (func (param i32)))";
    let wrong = "(func (export \"judge\") (param i32) (result f64) (f64.const 0))";
    assert!(
        matches!(refused(&format!("(module {import} {memory} {alloc} {judge})")), WasmError::Import { name, .. } if name == "fd_write")
    );
    for text in [format!("{alloc} {judge}"), format!("{memory} {judge}"), format!("{memory} {alloc} {wrong}")]
    {
        assert!(matches!(refused(&format!("(module {text})")), WasmError::Export { .. }), "{text}");
    }
    let start = format!("(module {memory} {alloc} {judge} (func $s) (start $s))");
    assert!(matches!(refused(&start), WasmError::Module(_)));
    assert!(matches!(Sandbox::new(b"#!/bin/sh", BOUNDS).err(), Some(WasmError::Module(_))));
}

/// Statements that hostile modules are made of.
fn statement() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("(drop (memory.grow (i32.const 7)))".to_owned()),
        Just("(memory.fill (i32.const 0) (i32.const 7) (i32.const 65536))".to_owned()),
        Just("(local.set 2 (i32.add (local.get 2) (i32.const 1)))".to_owned()),
        Just("(drop (call $judge (local.get 0) (local.get 1)))".to_owned()),
        Just("(local.set 4 (f64.sqrt (f64.sub (local.get 4) (f64.const 1))))".to_owned()),
        Just("(local.set 3 (i64.rem_u (i64.const 5) (local.get 3)))".to_owned()),
        Just("(if (i32.gt_u (local.get 2) (i32.const 3)) (then (unreachable)))".to_owned()),
        Just("(drop (call_indirect (type $f) (local.get 0) (local.get 1) (local.get 2)))".to_owned()),
        any::<i32>().prop_map(|at| format!("(i32.store (i32.const {at}) (i32.const -1))")),
        any::<u16>().prop_map(|at| format!("(local.set 2 (i32.load (i32.const {at})))")),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let several = prop::collection::vec(inner, 1..4).prop_map(|several| several.join(" "));
        prop_oneof![
            several.clone().prop_map(|body| format!("(loop $l {body} (br $l))")),
            several.clone().prop_map(|body| format!("(block $l {body} (br $l))")),
            several.prop_map(|body| format!("(if (local.get 2) (then {body}))")),
        ]
    })
}

/// Returns the number of a call, or the reason why it has none. NaN becomes `None`, so that results can be
/// compared.
fn result_of(bytes: &[u8], bounds: Bounds) -> Result<Option<f64>, String> {
    let judged = judge_by(bytes, bounds).map_err(|broken| bounds.reason(broken));
    judged.map(|value| (!value.is_nan()).then_some(value))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn hostile_modules_end_in_time_with_the_same_result_every_time(
        body in prop::collection::vec(statement(), 1..6)
    ) {
        let bytes = module(&format!("{} (local.get 4)", body.join(" ")));
        let bounds = Bounds { fuel: 50_000, ..BOUNDS };
        let result = result_of(&bytes, bounds);
        // Calls end by their fuel, which is the same on every machine, and not by the time limit.
        let reason = result.clone().err();
        prop_assert!(reason.as_ref().is_none_or(|reason| !reason.contains("took longer")), "{reason:?}");
        prop_assert!(reason.is_none_or(|reason| !reason.is_empty()), "a call without a number has a reason");
        prop_assert_eq!(result, result_of(&bytes, bounds));
    }
}
