//! What the operator writes about itself is for programs that collect it: a JSON object a line.

use std::process::Command;

use serde_json::Value;

#[test]
fn every_line_of_the_operator_is_an_object_and_its_last_says_why_it_ends() {
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
