//! The operator's log: one JSON object a line.

use std::process::Command;

use serde_json::Value;

#[test]
fn every_log_line_of_the_operator_is_a_json_object_and_the_last_has_the_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_rlt-operator"))
        .args(["--trainer-image=trainer", "--listen=127.0.0.1:0", "--channel-listen=127.0.0.1:0"])
        .env("KUBECONFIG", "/nowhere/kubeconfig")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.last().unwrap();
    assert_eq!(last["level"], "ERROR");
    let why = last["fields"]["error"].as_str().unwrap();
    assert!(why.contains("failed to find the cluster") && why.contains("/nowhere/kubeconfig"), "{why}");
}
