//! Correct and misbehaving modules: each call ends within its limits, with the same verdict every time.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rlt_api::spec::WasmSpec;
use rlt_core::types::RewardStatus::{Infra, Ok as Fine, Timeout};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::super::module::WasmError;
use super::super::wasm::Sandbox;
use super::server::Server;
use super::*;

fn spec(settings: Value) -> WasmSpec {
    let mut spec = json!({"path": "unused", "fuel": 300_000, "memoryMib": 4, "timeoutSeconds": 100.0});
    spec.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

/// A module whose `judge` has this body; samples are written to address 16.
fn module(body: &str) -> Vec<u8> {
    let text = format!(
        "(module (memory (export \"memory\") 1) (table 4 funcref) (type $f (func (param i32 i32) (result f64)))
           (func (export \"alloc\") (param i32) (result i32) (i32.const 16))
           (func $judge (export \"judge\") (param i32 i32) (result f64) (local i32 i64 f64) {body}))"
    );
    wat::parse_str(text).unwrap()
}

fn judge_by(bytes: &[u8], settings: Value) -> Verdict {
    Sandbox::new(&spec(settings), bytes).unwrap().judge(br#"{"completion": "abc"}"#)
}

#[test]
fn a_module_reads_its_sample_and_gives_a_number() {
    let length = module("(f64.convert_i32_u (local.get 1))");
    assert_eq!(judge_by(&length, json!({})), Verdict::ok(21.0));
    let first = module("(f64.convert_i32_u (i32.load8_u (local.get 0)))");
    assert_eq!(judge_by(&first, json!({})).value, f64::from(b'{'));
}

#[test]
fn a_module_that_misbehaves_ends_within_its_bounds() {
    let forever = "(loop $l (br $l)) (unreachable)";
    for (body, status, words) in [
        (forever, Timeout, "used up its fuel of 300000"),
        ("(unreachable)", Infra, "trapped"),
        ("(f64.const nan)", Infra, "cannot judge"),
        ("(f64.const inf)", Infra, "returned inf"),
        ("(call $judge (local.get 0) (local.get 1))", Infra, "trapped"),
        ("(f64.load (i32.const -8))", Infra, "trapped"),
        ("(call_indirect (type $f) (local.get 0) (local.get 1) (i32.const 1))", Infra, "trapped"),
        ("(f64.convert_i32_s (i32.div_s (i32.const 1) (i32.const 0)))", Infra, "trapped"),
        // Growing beyond the bound fails as a module can see: -1.
        ("(f64.convert_i32_s (memory.grow (i32.const 65000)))", Fine, ""),
        ("(loop $l (drop (memory.grow (i32.const 1))) (br $l)) (unreachable)", Timeout, "fuel"),
    ] {
        let verdict = judge_by(&module(body), json!({}));
        assert_eq!(verdict.status, status, "{body}: {verdict:?}");
        assert!(verdict.message.clone().unwrap_or_default().contains(words), "{body}: {verdict:?}");
    }
    let started = Instant::now();
    let late = judge_by(&module(forever), json!({"fuel": 900_000_000_000_i64, "timeoutSeconds": 0.2}));
    assert!(late.status == Timeout && late.message.unwrap().contains("took longer than 200ms"));
    assert!(started.elapsed() < Duration::from_secs(100), "{:?}", started.elapsed());
}

#[test]
fn a_module_that_cannot_judge_is_refused_before_training() {
    let refused = |text: &str| Sandbox::new(&spec(json!({})), &wat::parse_str(text).unwrap()).err().unwrap();
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
    assert!(matches!(Sandbox::new(&spec(json!({})), b"#!/bin/sh").err(), Some(WasmError::Module(_))));
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn hostile_modules_end_in_time_with_the_same_verdict_every_time(
        body in prop::collection::vec(statement(), 1..6)
    ) {
        let bytes = module(&format!("{} (local.get 4)", body.join(" ")));
        let settings = json!({"fuel": 50_000});
        let verdict = judge_by(&bytes, settings.clone());
        // By their fuel, which is the same on every machine, and not by the time limit.
        let message = verdict.message.clone().unwrap_or_default();
        prop_assert!(!message.contains("took longer"), "{message}");
        prop_assert_eq!(&verdict, &judge_by(&bytes, settings));
        prop_assert!(verdict.status.is_verdict() || verdict.message.is_some());
    }
}

/// The length of the sample as bytes of JSON, negative.
static MODULE: LazyLock<Vec<u8>> = LazyLock::new(|| module("(f64.neg (f64.convert_i32_u (local.get 1)))"));

fn wasm_functions(wasm: Value) -> Result<ExternalFunctions, RewardSetupError> {
    let spec: RewardsSpec =
        serde_json::from_value(json!({"functions": [{"name": "f", "kind": "Wasm", "wasm": wasm}]})).unwrap();
    ExternalFunctions::new(&spec)
}

#[test]
fn modules_are_read_from_files_and_addresses_and_checked_by_digest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("reward.wasm");
    std::fs::write(&path, &*MODULE).unwrap();
    let digest: String = Sha256::digest(&*MODULE).iter().map(|byte| format!("{byte:02x}")).collect();
    let server = Server::serving(&MODULE);
    let texts: Vec<String> = (0..40).map(|idx| "x".repeat(idx)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let of_file = judge(&wasm_functions(json!({"path": path})).unwrap(), json!(null), &texts);
    assert_eq!(statuses(&of_file), [Fine; 40]);
    assert!(of_file[9].value > of_file[10].value, "each sample is judged by itself");
    let by_url = wasm_functions(json!({"url": server.url, "sha256": digest.to_uppercase()})).unwrap();
    assert_eq!(judge(&by_url, json!(null), &texts), of_file);
    let other = wasm_functions(json!({"path": path, "sha256": "0".repeat(64)})).err().unwrap();
    let cause = std::error::Error::source(std::error::Error::source(&other).unwrap()).unwrap().to_string();
    assert!(cause.contains(&digest) && cause.contains("0000"), "{cause}");
    assert!(wasm_functions(json!({"path": folder.path().join("none")})).is_err());
}
