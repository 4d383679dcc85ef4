//! Tests with unusable clusters: none is found, it does not answer, or it has no jobs API. Tests with a
//! usable cluster are in `cluster.rs`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use crate::{rlctl, stderr};

#[test]
fn without_a_cluster_the_error_names_the_searched_kubeconfigs() {
    let none = rlctl(&["status"]);
    assert_eq!(none.status.code(), Some(1));
    let error = stderr(&none);
    assert!(
        error.starts_with("rlctl: find a cluster: ") && error.contains("/nowhere/.kube/config"),
        "{error}"
    );
    assert!(error.contains("--kubeconfig or KUBECONFIG"), "{error}");
    let missing = stderr(&rlctl(&["why", "x", "--kubeconfig", "/nowhere/config"]));
    assert!(missing.contains("/nowhere/config"), "{missing}");
    let path = stderr(&rlctl(&["why", "runs/missing"]));
    assert_eq!(path, "rlctl: runs/missing is no run folder: it has no manifest.yaml\n");
}

/// Writes a kubeconfig for a server at this address.
fn kubeconfig(folder: &Path, server: &str) -> PathBuf {
    let path = folder.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\n\
         users: [{{name: u, user: {{}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u, namespace: team}}}}]\n"
    );
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_server_that_does_not_answer_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let port = rlt_cluster::HeldPort::on([127, 0, 0, 1]).unwrap();
    let server = format!("http://127.0.0.1:{}", port.number());
    let output = rlctl(&["status", "--kubeconfig", kubeconfig(folder.path(), &server).to_str().unwrap()]);
    let error = stderr(&output);
    assert!(error.starts_with(&format!("rlctl: reach the API server {server}: ")), "{error}");
    assert!(error.to_lowercase().contains("connection refused"), "{error}");
}

#[test]
fn a_cluster_without_the_definition_says_how_to_install_it() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).unwrap();
        let body = "404 page not found\n";
        let head = format!("HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\nConnection: close", body.len());
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    });
    let output = rlctl(&["status", "--kubeconfig", kubeconfig(folder.path(), &server).to_str().unwrap()]);
    answer.join().unwrap();
    let error = stderr(&output);
    assert!(
        error.contains("list jobs: this cluster knows no RLTrainingJob; install the operator"),
        "{error}"
    );
}
