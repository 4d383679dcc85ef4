//! Modules that call WASI with anything: each call gets an answer or ends its process, and memory beyond the
//! module's own is never touched.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use crate::{Bounds, Interpreter};

/// Functions of WASI by their parameters.
const CALLS: [(&str, &str); 16] = [
    ("fd_read", "i32 i32 i32 i32"),
    ("fd_write", "i32 i32 i32 i32"),
    ("fd_pread", "i32 i32 i32 i64 i32"),
    ("fd_fdstat_get", "i32 i32"),
    ("fd_filestat_get", "i32 i32"),
    ("fd_seek", "i32 i64 i32 i32"),
    ("fd_prestat_get", "i32 i32"),
    ("fd_readdir", "i32 i32 i32 i64 i32"),
    ("path_open", "i32 i32 i32 i32 i32 i64 i64 i32 i32"),
    ("args_get", "i32 i32"),
    ("args_sizes_get", "i32 i32"),
    ("environ_sizes_get", "i32 i32"),
    ("clock_time_get", "i32 i64 i32"),
    ("poll_oneoff", "i32 i32 i32 i32"),
    ("random_get", "i32 i32"),
    ("sock_accept", "i32 i32 i32"),
];

/// Generates numbers, most of which are small or close to a limit.
fn number() -> impl Strategy<Value = i64> {
    prop_oneof![
        0..5_i64,
        Just(-1),
        Just(65_528),
        Just(65_536),
        Just(i64::MAX),
        any::<i32>().prop_map(i64::from)
    ]
}

fn call() -> impl Strategy<Value = String> {
    (0..CALLS.len(), prop::collection::vec(number(), 9)).prop_map(|(idx, numbers)| {
        let (name, parameters) = CALLS[idx];
        let constant = |(ty, number): (&str, &i64)| match ty {
            "i64" => format!("(i64.const {number})"),
            _ => format!("(i32.const {})", *number as i32),
        };
        let given: Vec<String> = parameters.split(' ').zip(&numbers).map(constant).collect();
        format!("(i32.store (i32.const 65500) (call ${name} {}))", given.join(" "))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn hostile_calls_end_in_time_with_the_same_answer_every_time(body in prop::collection::vec(call(), 1..8)) {
        let imports: String = CALLS
            .iter()
            .map(|(name, parameters)| {
                format!(
                    "(import \"wasi_snapshot_preview1\" \"{name}\" (func ${name} (param {parameters}) (result i32)))"
                )
            })
            .collect();
        let module = format!(
            "(module {imports} (memory (export \"memory\") 1) (data (i32.const 0) \"{}\")
             (func (export \"_start\") {}))",
            "\\10\\00\\00\\00\\20\\00\\00\\00".repeat(64),
            body.join(" "),
        );
        let bytes = wat::parse_str(&module).unwrap();
        let bounds = Bounds { fuel: 1 << 20, max_memory_bytes: 1 << 20, timeout: Duration::from_secs(100) };
        let answer = || {
            let made = Interpreter::new(&bytes, bounds, &json!({"imports": []}));
            made.err().map(|error| error.to_string())
        };
        let first = answer();
        // The call ends by its fuel, which is the same on every machine, and not by the time limit.
        let message = first.clone().unwrap_or_else(|| "accepted as an interpreter, took longer".to_owned());
        prop_assert!(!message.contains("took longer"), "{message}");
        prop_assert_eq!(first, answer());
    }
}
