//! Objects of kinds for which this process has no types: read from files and applied by kubectl.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::Cluster;

const POLL: Duration = Duration::from_millis(50);
/// Limit of the wait until all definitions are served; a quiet machine needs a second.
const TIMEOUT: Duration = Duration::from_secs(120);

/// An error of reading or applying objects.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// kubectl could not be run.
    #[error("running kubectl failed")]
    Run(#[from] std::io::Error),
    /// kubectl did not take them.
    #[error("kubectl {arguments} answered: {answer}")]
    Refused {
        /// Arguments of kubectl.
        arguments: String,
        /// Standard error of kubectl.
        answer: String,
    },
    /// kubectl's answer is no JSON.
    #[error("kubectl's answer is no JSON")]
    Json(#[from] serde_json::Error),
}

/// The objects of a file or folder of YAML.
pub(crate) fn read(cluster: &Cluster, path: &Path) -> Result<Vec<Value>, ObjectsError> {
    let path = path.display().to_string();
    let arguments = ["create", "--dry-run=client", "--output=json", "--filename", &path];
    let output = cluster.kubectl().args(arguments).output()?;
    if !output.status.success() {
        return Err(refused(&arguments, &output.stderr));
    }
    // One object a document, or a list of them.
    let mut objects = Vec::new();
    for object in serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>() {
        let mut object = object?;
        match object.get_mut("items").and_then(Value::as_array_mut) {
            Some(items) => objects.append(items),
            None => objects.push(object),
        }
    }
    Ok(objects)
}

/// Makes objects, or changes them into these.
pub(crate) fn apply(cluster: &Cluster, objects: &[Value]) -> Result<(), ObjectsError> {
    let arguments = ["apply", "--server-side", "--filename", "-"];
    let mut command = cluster.kubectl();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut input) = child.stdin.take() {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        input.write_all(list.to_string().as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() { Ok(()) } else { Err(refused(&arguments, &output.stderr)) }
}

/// Waits until every kind is served that was defined: controllers end at once where one of their own is not.
pub(crate) fn wait_for_kinds(cluster: &Cluster) -> Result<(), ObjectsError> {
    let arguments = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=120s"];
    let started = Instant::now();
    loop {
        let output = cluster.kubectl().args(arguments).output()?;
        // A definition that has no status at all yet is an error to kubectl.
        match output.status.success() {
            true => return Ok(()),
            false if started.elapsed() > TIMEOUT => return Err(refused(&arguments, &output.stderr)),
            false => std::thread::sleep(POLL),
        }
    }
}

fn refused(arguments: &[&str], answer: &[u8]) -> ObjectsError {
    let answer = String::from_utf8_lossy(answer).trim().to_owned();
    ObjectsError::Refused { arguments: arguments.join(" "), answer }
}
