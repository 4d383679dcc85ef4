//! Modules that are no interpreter of Python: each is refused with what it lacks.

use std::time::Duration;

use serde_json::json;

use crate::{Bounds, Interpreter};

const BOUNDS: Bounds =
    Bounds { fuel: 200_000_000, max_memory_bytes: 64 << 20, timeout: Duration::from_secs(300) };

#[test]
fn an_interpreter_is_refused_where_it_cannot_run() {
    let made =
        |text: &str| Interpreter::new(&wat::parse_str(text).unwrap(), BOUNDS, &json!({"imports": []})).err();
    let memory = "(memory (export \"memory\") 1)";
    let import = |from: &str, name: &str, ty: &str| format!("(import \"{from}\" \"{name}\" (func $f {ty}))");
    let start = |body: &str| format!("(func (export \"_start\") {body})");
    for (text, words) in [
        (format!("(module {memory})"), "exports no function `_start`"),
        (format!("(module {})", start("")), "exports no memory `memory`"),
        (format!("(module {} {memory} {})", import("env", "f", ""), start("")), "imports \"env\" \"f\""),
        (format!("(module {memory} {})", start("")), "returned without an exit code"),
        (format!("(module {memory} {})", start("(unreachable)")), "trapped"),
        (
            format!(
                "(module {} {memory} {})",
                import("wasi_snapshot_preview1", "proc_exit", "(param i32)"),
                start("(call $f (i32.const 3))")
            ),
            "it runs no Python",
        ),
    ] {
        let error = made(&text).unwrap_or_else(|| panic!("{text}"));
        assert!(error.to_string().contains(words), "{text}: {error}");
    }
}
