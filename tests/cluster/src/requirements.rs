//! The requirements of a cluster on the machine, and the skip or failure of a test without them.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use rlt_skipped::skip;

use crate::program::{
    ALL, BUNDLE, CONDITIONS, HELM, KSTATUS, KUBERNETES, Module, NETWORK_POLICY, ProgramError,
};

/// Reason why no cluster can run here; `None` if one can. `tools` are the required programs of the system.
pub(crate) fn missing(tools: &[&str]) -> Option<String> {
    if !cfg!(target_os = "linux") {
        return Some("network namespaces need Linux".into());
    }
    if !is_root() {
        return Some("network namespaces need root".into());
    }
    let absent: Vec<&str> = tools.iter().copied().filter(|tool| !is_on_path(tool)).collect();
    if !absent.is_empty() {
        return Some(format!("no {} here (`make setup`)", absent.join(", ")));
    }
    static SLOW: OnceLock<Option<String>> = OnceLock::new();
    SLOW.get_or_init(|| namespaces_are_refused().or_else(|| go_is_missing(&KUBERNETES.source_folder())))
        .clone()
}

/// A program that says of each JSON document on its standard input what Flux's own library makes of that
/// object: a line such as `Current: Resource is current`. `None` where there is no Go to build it by: then
/// the test says so and returns.
///
/// # Errors
/// When it does not build.
///
/// # Panics
/// Under continuous integration, where a test must not be skipped.
pub fn kstatus() -> Result<Option<Command>, ProgramError> {
    program(KSTATUS)
}

/// A program that says of each question on its standard input, `{"success": .., "failure": .., "object":
/// ..}`, whether Argo Workflows would take the object for `succeeded`, `failed` or still `waiting` under
/// these conditions. `None` as for [`kstatus`].
///
/// # Errors
/// When it does not build.
///
/// # Panics
/// Under continuous integration, where a test must not be skipped.
pub fn conditions() -> Result<Option<Command>, ProgramError> {
    program(CONDITIONS)
}

/// A program that says what the Operator Lifecycle Manager's own library finds wrong with the bundle in the
/// folder that it is given, one line each. `None` as for [`kstatus`].
///
/// # Errors
/// When it does not build.
///
/// # Panics
/// Under continuous integration, where a test must not be skipped.
pub fn olm_bundle() -> Result<Option<Command>, ProgramError> {
    program(BUNDLE)
}

/// A program that says of each pod on its standard input what Kubernetes' own admission makes of it at Pod
/// Security's level `restricted`: a line `{"allowed": .., "checks": [..]}` with the names of the checks that
/// refuse it. The first line is a list of the names of all checks. `None` as for [`kstatus`].
///
/// # Errors
/// When it does not build.
///
/// # Panics
/// Under continuous integration, where a test must not be skipped.
pub fn pod_security() -> Result<Option<Command>, ProgramError> {
    called(KUBERNETES, "pod-security")
}

/// A program that says of each connection in the question on its standard input, `{"objects": [..],
/// "connections": [{"from": .., "to": .., "port": .., "protocol": ..}]}`, whether kube-network-policies would
/// allow it in a cluster of these Namespaces, Pods and NetworkPolicies: a list of booleans. The ends of a
/// connection are IP addresses. `None` as for [`kstatus`].
///
/// # Errors
/// When it does not build.
///
/// # Panics
/// Under continuous integration, where a test must not be skipped.
pub fn network_policy() -> Result<Option<Command>, ProgramError> {
    program(NETWORK_POLICY)
}

/// `helm` without a cluster. `None` as for [`kstatus`].
///
/// # Errors
/// When it does not build.
///
/// # Panics
/// Under continuous integration, where a test must not be skipped.
pub fn helm() -> Result<Option<Command>, ProgramError> {
    program(HELM)
}

/// Builds every program that clusters of tests use, and calls `report` with the name of each before that.
/// Programs that are built already are not named.
///
/// # Errors
/// When one does not build.
pub fn build_programs(mut report: impl FnMut(&str)) -> Result<(), ProgramError> {
    for module in ALL {
        if !module.is_built()? {
            report(module.name);
            module.built()?;
        }
    }
    Ok(())
}

fn program(module: Module) -> Result<Option<Command>, ProgramError> {
    called(module, module.name)
}

/// The program of a module under one of its names.
fn called(module: Module, name: &str) -> Result<Option<Command>, ProgramError> {
    if let Some(reason) = go_is_missing(&module.source_folder()) {
        skip(&reason);
        return Ok(None);
    }
    Ok(Some(Command::new(module.built()?.join(name))))
}

fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&match std::fs::metadata("/proc/self") {
        Ok(metadata) => metadata,
        Err(_) => return false,
    }) == 0
}

/// Root in a container often may not make namespaces.
fn namespaces_are_refused() -> Option<String> {
    let made = Command::new("unshare").args(["--net", "--mount", "true"]).output();
    let is_made = made.is_ok_and(|output| output.status.success());
    (!is_made).then(|| "this machine's root may not make network namespaces".into())
}

fn is_on_path(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(tool).is_file())
}

/// Go answers in the module's folder only if it is new enough for the module or may fetch one that is.
pub(crate) fn go_is_missing(module_folder: &Path) -> Option<String> {
    if !is_on_path("go") {
        return Some("no go here, and the programs are built by it".into());
    }
    let answered = Command::new("go").arg("version").current_dir(module_folder).output();
    match answered {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("go does not run: {error}")),
    }
}
