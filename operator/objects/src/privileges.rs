//! Privileges of pods beyond Pod Security's level `restricted`: those that the cluster's settings allow, and
//! those that a job requests. By default none are allowed. Pure.

use std::fmt;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Capabilities, Container, HTTPGetAction, PodSecurityContext, PodSpec, PodTemplateSpec,
    SeccompProfile, SecurityContext, TCPSocketAction, Volume,
};
use rlt_api::spec::WorkersSpec;
use serde::{Deserialize, Serialize};

use crate::pod_template::PATH;

/// Value of the Helm chart that holds the settings.
const SETTING: &str = "podPrivileges";
/// Profiles of seccomp and AppArmor that the level `restricted` allows.
const CONFINED: [&str; 2] = ["RuntimeDefault", "Localhost"];
/// Beginning of the annotations that set a container's AppArmor profile, which older nodes still read.
const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
/// Wildcard that stands for every service account.
const ANY: &str = "*";

/// Privileges that a cluster allows the pods of jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Privileges {
    /// Namespaces whose jobs may have the privileges below; all if empty. The permission for a service
    /// account holds in every namespace.
    pub namespaces: Vec<String>,
    /// Privileges that pods may have.
    pub allow: Vec<Privilege>,
    /// Capabilities that containers may add.
    pub capabilities: Vec<String>,
    /// Folders of nodes that may be mounted, with everything below.
    pub host_paths: Vec<String>,
    /// Service accounts that jobs may name; `*` for all of their namespace.
    pub service_accounts: Vec<String>,
}

impl Default for Privileges {
    fn default() -> Self {
        Self {
            namespaces: Vec::new(),
            allow: Vec::new(),
            capabilities: Vec::new(),
            host_paths: Vec::new(),
            service_accounts: vec![ANY.into()],
        }
    }
}

/// Privilege that is either allowed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Privilege {
    /// Use of the node's network.
    HostNetwork,
    /// Access to the node's processes.
    HostPid,
    /// Access to the node's shared memory.
    HostIpc,
    /// Use of the node's ports.
    HostPorts,
    /// Hosts of probes and lifecycle hooks other than the pod: the node's kubelet sends requests to them.
    ProbeHosts,
    /// Everything that root on the node may do.
    Privileged,
    /// Gaining privileges by a program, such as one with the set-user-ID bit.
    PrivilegeEscalation,
    /// Running as root.
    Root,
    /// Capabilities that a container engine grants where they are not dropped.
    DefaultCapabilities,
    /// Other profiles than the container engine's: seccomp, AppArmor, SELinux, `/proc`, sysctls.
    Unconfined,
    /// Volumes of kinds that Pod Security's level `restricted` does not allow, except folders of nodes.
    OtherVolumes,
    /// A token for the API server.
    ServiceAccountToken,
    /// Annotations of the service account that is created for the job, with which a cloud may grant it
    /// rights.
    ServiceAccountAnnotations,
}

/// Privilege that a job requests, and the field that requests it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    path: String,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Privilege(Privilege),
    Capability(String),
    HostPath(String),
    ServiceAccount(String),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Privilege(privilege) => write!(f, "{privilege:?}"),
            Self::Capability(name) => write!(f, "capability {name}"),
            Self::HostPath(path) => write!(f, "the node's folder {path}"),
            Self::ServiceAccount(name) => write!(f, "service account {name}"),
        }
    }
}

impl What {
    /// Name of the setting that would allow the privilege.
    fn setting(&self) -> &'static str {
        match self {
            Self::Privilege(_) => "allow",
            Self::Capability(_) => "capabilities",
            Self::HostPath(_) => "hostPaths",
            Self::ServiceAccount(_) => "serviceAccounts",
        }
    }
}

impl Privileges {
    /// Returns a message for each privilege that a job requests without permission, with the field and the
    /// setting that refuses it.
    pub fn refused(&self, namespace: &str, workers: &WorkersSpec) -> Vec<String> {
        let asked = asked(workers).into_iter();
        asked.filter_map(|one| self.refusal(namespace, &one)).collect()
    }

    /// Whether the chart's NetworkPolicy keeps these workers from the status channel. Workers on the node's
    /// network have the node's address, and the policy admits such addresses only if the settings allow
    /// `HostNetwork`.
    pub fn close_channel_to(&self, workers: &WorkersSpec) -> bool {
        let node_network = What::Privilege(Privilege::HostNetwork);
        let uses_it = asked(workers).iter().any(|asked| asked.what == node_network);
        uses_it && !self.allow.contains(&Privilege::HostNetwork)
    }

    fn refusal(&self, namespace: &str, asked: &Asked) -> Option<String> {
        let Asked { path, what } = asked;
        let is_allowed = match what {
            What::Privilege(privilege) => self.allow.contains(privilege),
            What::Capability(name) => self.capabilities.contains(name),
            What::HostPath(path) => self.host_paths.iter().any(|folder| is_within(path, folder)),
            What::ServiceAccount(name) => {
                self.service_accounts.iter().any(|allowed| allowed == ANY || allowed == name)
            }
        };
        if !is_allowed {
            let setting = what.setting();
            return Some(format!("{path}: {what} is not in the operator's setting {SETTING}.{setting}"));
        }
        let is_everywhere = self.namespaces.is_empty() || matches!(what, What::ServiceAccount(_));
        let is_here = is_everywhere || self.namespaces.iter().any(|allowed| allowed == namespace);
        (!is_here).then(|| {
            format!(
                "{path}: {what} is not allowed in namespace {namespace}, which is not in the operator's setting \
                 {SETTING}.namespaces"
            )
        })
    }
}

/// Whether `path` is `folder` or below it. A relative path, or one with `.` or `..`, is below
/// nothing.
fn is_within(path: &str, folder: &str) -> bool {
    let is_plain = path.starts_with('/') && !path.split('/').any(|part| part == ".." || part == ".");
    let folder = folder.trim_end_matches('/');
    is_plain && path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn privilege(path: String, privilege: Privilege) -> Asked {
    Asked { path, what: What::Privilege(privilege) }
}

/// Returns all privileges that a job requests. The operator's own pod requests none of them.
fn asked(workers: &WorkersSpec) -> Vec<Asked> {
    let pod = &workers.pod;
    let path = |field: &str| format!("spec.workers.pod.{field}");
    let mut asked = Vec::new();
    if pod.host_network == Some(true) {
        asked.push(privilege(path("hostNetwork"), Privilege::HostNetwork));
    }
    if !pod.service_account_annotations.is_empty() {
        asked.push(privilege(path("serviceAccountAnnotations"), Privilege::ServiceAccountAnnotations));
    }
    asked.extend(
        pod.service_account_name
            .iter()
            .map(|name| Asked { path: path("serviceAccountName"), what: What::ServiceAccount(name.clone()) }),
    );
    asked.extend(
        pod.capabilities
            .iter()
            .map(|name| Asked { path: path("capabilities"), what: What::Capability(name.clone()) }),
    );
    let template = workers.pod_template.clone().map(serde_json::from_value::<PodTemplateSpec>);
    if let Some(Ok(PodTemplateSpec { metadata, spec })) = template {
        let annotations = metadata.and_then(|metadata| metadata.annotations).unwrap_or_default();
        asked.extend(annotations.iter().filter_map(|(name, value)| of_annotation(name, value)));
        if let Some(spec) = spec {
            of_spec(&spec, &format!("{PATH}.spec"), &mut asked);
        }
    }
    asked
}

/// Returns the privilege that an annotation of a pod requests: an AppArmor profile.
fn of_annotation(name: &str, profile: &str) -> Option<Asked> {
    let is_confined = profile.is_empty() || profile == "runtime/default" || profile.starts_with("localhost/");
    let asks = name.starts_with(APP_ARMOR_ANNOTATION) && !is_confined;
    asks.then(|| privilege(format!("{PATH}.metadata.annotations.{name}"), Privilege::Unconfined))
}

fn of_spec(spec: &PodSpec, path: &str, asked: &mut Vec<Asked>) {
    let switches = [
        ("hostNetwork", spec.host_network, Privilege::HostNetwork),
        ("hostPID", spec.host_pid, Privilege::HostPid),
        ("hostIPC", spec.host_ipc, Privilege::HostIpc),
        (
            "automountServiceAccountToken",
            spec.automount_service_account_token,
            Privilege::ServiceAccountToken,
        ),
    ];
    let on = switches.into_iter().filter(|(_, switch, _)| *switch == Some(true));
    asked.extend(on.map(|(field, _, which)| privilege(format!("{path}.{field}"), which)));
    if let Some(context) = &spec.security_context {
        of_pod_context(context, &format!("{path}.securityContext"), asked);
    }
    let lists = [("containers", Some(&spec.containers)), ("initContainers", spec.init_containers.as_ref())];
    for (list, containers) in lists {
        for container in containers.into_iter().flatten() {
            of_container(container, &format!("{path}.{list}[{}]", container.name), asked);
        }
    }
    for volume in spec.volumes.iter().flatten() {
        asked.extend(of_volume(volume, &format!("{path}.volumes[{}]", volume.name)));
    }
}

fn of_pod_context(context: &PodSecurityContext, path: &str, asked: &mut Vec<Asked>) {
    of_users(context.run_as_user, context.run_as_non_root, path, asked);
    of_profiles(context.seccomp_profile.as_ref(), context.app_armor_profile.as_ref(), path, asked);
    let fields = [
        ("seLinuxOptions", context.se_linux_options.is_some()),
        ("sysctls", context.sysctls.as_ref().is_some_and(|all| !all.is_empty())),
        ("windowsOptions", context.windows_options.is_some()),
    ];
    let given = fields.into_iter().filter(|(_, is_given)| *is_given);
    asked.extend(given.map(|(field, _)| privilege(format!("{path}.{field}"), Privilege::Unconfined)));
}

fn of_users(user: Option<i64>, non_root: Option<bool>, path: &str, asked: &mut Vec<Asked>) {
    if user == Some(0) {
        asked.push(privilege(format!("{path}.runAsUser"), Privilege::Root));
    }
    if non_root == Some(false) {
        asked.push(privilege(format!("{path}.runAsNonRoot"), Privilege::Root));
    }
}

fn of_profiles(
    seccomp: Option<&SeccompProfile>,
    app_armor: Option<&AppArmorProfile>,
    path: &str,
    asked: &mut Vec<Asked>,
) {
    let is_unconfined = |type_: &str| !CONFINED.contains(&type_);
    if seccomp.is_some_and(|profile| is_unconfined(&profile.type_)) {
        asked.push(privilege(format!("{path}.seccompProfile"), Privilege::Unconfined));
    }
    if app_armor.is_some_and(|profile| is_unconfined(&profile.type_)) {
        asked.push(privilege(format!("{path}.appArmorProfile"), Privilege::Unconfined));
    }
}

fn of_container(container: &Container, path: &str, asked: &mut Vec<Asked>) {
    for port in container.ports.iter().flatten().filter(|port| port.host_port.is_some_and(|port| port != 0)) {
        let path = format!("{path}.ports[{}].hostPort", port.container_port);
        asked.push(privilege(path, Privilege::HostPorts));
    }
    of_probes(container, path, asked);
    let Some(context) = &container.security_context else { return };
    let path = &format!("{path}.securityContext");
    of_users(context.run_as_user, context.run_as_non_root, path, asked);
    of_profiles(context.seccomp_profile.as_ref(), context.app_armor_profile.as_ref(), path, asked);
    of_context(context, path, asked);
}

/// Finds probes and lifecycle hooks that name a host: the kubelet would send their requests there from the
/// node's network.
fn of_probes(container: &Container, path: &str, asked: &mut Vec<Asked>) {
    let probes = [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ];
    for (field, probe) in probes {
        let Some(probe) = probe else { continue };
        let path = format!("{path}.{field}");
        of_requests(probe.http_get.as_ref(), probe.tcp_socket.as_ref(), &path, asked);
    }
    let Some(lifecycle) = &container.lifecycle else { return };
    for (field, hook) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
        let Some(hook) = hook else { continue };
        let path = format!("{path}.lifecycle.{field}");
        of_requests(hook.http_get.as_ref(), hook.tcp_socket.as_ref(), &path, asked);
    }
}

fn of_requests(
    http: Option<&HTTPGetAction>,
    tcp: Option<&TCPSocketAction>,
    path: &str,
    asked: &mut Vec<Asked>,
) {
    let hosts = [
        ("httpGet", http.and_then(|action| action.host.as_deref())),
        ("tcpSocket", tcp.and_then(|action| action.host.as_deref())),
    ];
    let named = hosts.into_iter().filter(|(_, host)| host.is_some_and(|host| !host.is_empty()));
    asked.extend(named.map(|(field, _)| privilege(format!("{path}.{field}.host"), Privilege::ProbeHosts)));
}

fn of_context(context: &SecurityContext, path: &str, asked: &mut Vec<Asked>) {
    let is_unmasked = context.proc_mount.as_deref().is_some_and(|mount| mount != "Default");
    let escalates = context.allow_privilege_escalation == Some(true);
    let fields = [
        ("privileged", context.privileged == Some(true), Privilege::Privileged),
        ("allowPrivilegeEscalation", escalates, Privilege::PrivilegeEscalation),
        ("procMount", is_unmasked, Privilege::Unconfined),
        ("seLinuxOptions", context.se_linux_options.is_some(), Privilege::Unconfined),
        ("windowsOptions", context.windows_options.is_some(), Privilege::Unconfined),
    ];
    let given = fields.into_iter().filter(|(_, is_given, _)| *is_given);
    asked.extend(given.map(|(field, _, which)| privilege(format!("{path}.{field}"), which)));
    if let Some(Capabilities { add, drop }) = &context.capabilities {
        asked.extend(add.iter().flatten().map(|name| Asked {
            path: format!("{path}.capabilities.add"),
            what: What::Capability(name.clone()),
        }));
        if drop.as_ref().is_some_and(|drop| !drop.iter().any(|name| name == "ALL")) {
            let path = format!("{path}.capabilities.drop");
            asked.push(privilege(path, Privilege::DefaultCapabilities));
        }
    }
}

fn of_volume(volume: &Volume, path: &str) -> Option<Asked> {
    if let Some(host) = &volume.host_path {
        let what = What::HostPath(host.path.clone());
        return Some(Asked { path: format!("{path}.hostPath"), what });
    }
    if let Some(projected) = &volume.projected {
        let mut sources = projected.sources.iter().flatten();
        let has_token = sources.any(|source| source.service_account_token.is_some());
        let path = format!("{path}.projected");
        return has_token.then(|| privilege(path, Privilege::ServiceAccountToken));
    }
    let is_plain = volume.config_map.is_some()
        || volume.csi.is_some()
        || volume.downward_api.is_some()
        || volume.empty_dir.is_some()
        || volume.ephemeral.is_some()
        || volume.image.is_some()
        || volume.persistent_volume_claim.is_some()
        || volume.secret.is_some();
    let is_empty = *volume == Volume { name: volume.name.clone(), ..Volume::default() };
    (!is_plain && !is_empty).then(|| privilege(path.to_owned(), Privilege::OtherVolumes))
}
