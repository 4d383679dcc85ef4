//! Reward functions that are modules: where they are read from, and the verdicts that their results become.

use std::sync::LazyLock;

use rlt_api::spec::WasmSpec;
use rlt_core::types::RewardStatus::{Infra, Ok as Fine, Timeout};
use rlt_sandbox::Sandbox;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::super::limits::bounds_of;
use super::super::wasm::judge as judge_by;
use super::server::Server;
use super::*;

/// A module whose `judge` has this body; samples are written to address 16.
fn module(body: &str) -> Vec<u8> {
    let text = format!(
        "(module (memory (export \"memory\") 1)
           (func (export \"alloc\") (param i32) (result i32) (i32.const 16))
           (func (export \"judge\") (param i32 i32) (result f64) {body}))"
    );
    wat::parse_str(text).unwrap()
}

#[test]
fn the_number_of_a_module_is_its_verdict_and_a_call_without_one_is_none() {
    let spec: WasmSpec = serde_json::from_value(
        json!({"path": "unused", "fuel": 300_000, "memoryMib": 4, "timeoutSeconds": 100.0}),
    )
    .unwrap();
    let forever = "(loop $l (br $l)) (unreachable)";
    for (body, status, value, words) in [
        ("(f64.convert_i32_u (local.get 1))", Fine, 21.0, ""),
        ("(f64.const nan)", Infra, 0.0, "cannot judge"),
        ("(f64.const inf)", Infra, 0.0, "returned inf"),
        ("(unreachable)", Infra, 0.0, "trapped"),
        (forever, Timeout, 0.0, "used up its fuel of 300000"),
        // Growth beyond the memory limit returns -1, which the module observes.
        ("(f64.convert_i32_s (memory.grow (i32.const 3)))", Fine, 1.0, ""),
        ("(f64.convert_i32_s (memory.grow (i32.const 64)))", Fine, -1.0, ""),
    ] {
        let sandbox = Sandbox::new(&module(body), bounds_of(&spec)).unwrap();
        let verdict = judge_by(&sandbox, br#"{"completion": "abc"}"#);
        assert_eq!((verdict.status, verdict.value), (status, value), "{body}: {verdict:?}");
        assert!(verdict.message.clone().unwrap_or_default().contains(words), "{body}: {verdict:?}");
    }
    let late: WasmSpec =
        serde_json::from_value(json!({"path": "unused", "fuel": 900_000_000_000_i64, "timeoutSeconds": 0.2}))
            .unwrap();
    let late = judge_by(&Sandbox::new(&module(forever), bounds_of(&late)).unwrap(), b"{}");
    assert!(late.status == Timeout && late.message.unwrap().contains("took longer than 200ms"));
}

/// Module that returns the length of the sample in bytes of JSON, negated.
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
