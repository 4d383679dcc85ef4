//! The smallest image there can be, written by hand: one static binary, as an OCI archive. A node needs such
//! an image for its pods' sandboxes before anything that builds images may be there.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Writes an OCI archive with the one file `binary`, which is what a container of it runs, under the name
/// `reference`. `folder` is for work and is left behind.
pub(crate) fn write_archive(binary: &Path, reference: &str, folder: &Path, archive: &Path) -> io::Result<()> {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let layer = folder.join("layer.tar");
    let name = binary.file_name().unwrap_or_default();
    tar(&layer, binary.parent().unwrap_or(binary), &[name.as_ref()])?;
    let layer = keep(&blobs, "application/vnd.oci.image.layer.v1.tar", &fs::read(&layer)?)?;
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": { "Entrypoint": [format!("/{}", name.to_string_lossy())], "User": "65535:65535" },
        "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] }
    });
    let config = keep(&blobs, "application/vnd.oci.image.config.v1+json", config.to_string().as_bytes())?;
    let manifest_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest =
        json!({ "schemaVersion": 2, "mediaType": manifest_type, "config": config, "layers": [layer] });
    let mut manifest = keep(&blobs, manifest_type, manifest.to_string().as_bytes())?;
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": reference });
    fs::write(folder.join("index.json"), json!({ "schemaVersion": 2, "manifests": [manifest] }).to_string())?;
    fs::write(folder.join("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;
    tar(archive, folder, &["blobs".as_ref(), "index.json".as_ref(), "oci-layout".as_ref()])
}

/// Keeps a blob under its digest and returns what refers to it.
fn keep(blobs: &Path, media_type: &str, bytes: &[u8]) -> io::Result<Value> {
    let digest = format!("{:x}", Sha256::digest(bytes));
    fs::write(blobs.join(&digest), bytes)?;
    Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() }))
}

fn tar(archive: &Path, folder: &Path, members: &[&Path]) -> io::Result<()> {
    let output = Command::new("tar")
        .args(["--owner=0", "--group=0", "--create", "--dereference", "--file"])
        .arg(archive)
        .arg("--directory")
        .arg(folder)
        .args(members)
        .output()?;
    let answer = || io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    if output.status.success() { Ok(()) } else { Err(answer()) }
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}
