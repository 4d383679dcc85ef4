//! Servers whose certificates a private authority has signed: `server.caFile`.

use std::fs;
use std::net::TcpListener;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rlt_core::types::RewardStatus::Infra;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;
use tempfile::TempDir;

use super::server::{Request, lengths, read, reply};
use super::*;

/// An authority that no system knows.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Starts a server with a certificate for `name`; returns its address.
    fn serve(&self, name: &str) -> String {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = Arc::new(config.with_single_cert(vec![certificate], key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}/judge", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                let mut stream = StreamOwned::new(connection, stream);
                // A client that does not know the authority hangs up here.
                let Some((head, body)) = read(&mut stream) else { continue };
                reply(&mut stream, 200, &lengths(&Request { number: 0, head, body }).to_string());
                stream.conn.send_close_notify();
                let _ = stream.conn.complete_io(&mut stream.sock);
            }
        });
        url
    }
}

fn judged_by(url: &str, ca_file: Option<&str>) -> Verdict {
    let mut server = json!({"url": url, "retries": 0, "timeoutSeconds": 10.0});
    if let Some(path) = ca_file {
        server["caFile"] = json!(path);
    }
    judge(&functions("Server", server, json!({})).unwrap(), json!(null), &["abcd"]).remove(0)
}

#[test]
fn a_server_of_a_private_authority_is_trusted_with_its_file_and_with_no_other() {
    let (ours, others) = (Authority::new(), Authority::new());
    let dir = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (our_file, other_file) = (file("ours.pem", &ours.pem), file("others.pem", &others.pem));
    let both = file("both.pem", &format!("{}{}", others.pem, ours.pem));
    let url = ours.serve("127.0.0.1");
    assert_eq!(judged_by(&url, Some(&our_file)), Verdict::ok(4.0));
    assert_eq!(judged_by(&url, Some(&both)), Verdict::ok(4.0));
    for ca_file in [None, Some(&*other_file)] {
        let verdict = judged_by(&url, ca_file);
        assert_eq!(verdict.status, Infra);
        assert!(verdict.message.as_deref().unwrap_or_default().contains("certificate"), "{verdict:?}");
    }
    // The authority is trusted, but the certificate names another server.
    let verdict = judged_by(&ours.serve("judge.example.com"), Some(&our_file));
    assert_eq!(verdict.status, Infra);
    assert!(verdict.message.as_deref().unwrap_or_default().contains("certificate"), "{verdict:?}");
}

#[test]
fn a_file_of_authorities_that_holds_none_is_named_before_the_first_step() {
    let dir = TempDir::new().unwrap();
    let refusal = |path: &str| {
        let server = json!({"url": "https://127.0.0.1/judge", "caFile": path});
        let error = functions("Server", server, json!({})).err().unwrap();
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    };
    let empty = dir.path().join("empty.pem");
    fs::write(&empty, "no certificate").unwrap();
    let empty = empty.display().to_string();
    assert!(refusal(&empty).contains(&format!("caFile {empty}: expected certificates in PEM")));
    assert!(refusal("/nowhere/ca.pem").contains("caFile /nowhere/ca.pem"));
}
