//! Checks of Pod Security up to level `restricted`, as Kubernetes' admission has them
//! (`k8s.io/pod-security-admission/policy`), with templates that violate each.

use serde_json::{Value, json};

/// Annotation that sets the AppArmor profile of the trainer's container.
pub(crate) const APP_ARMOR_OF_TRAINER: &str = "container.apparmor.security.beta.kubernetes.io/trainer";

/// Check of Pod Security, by its name in Kubernetes.
pub(crate) struct Check {
    pub(crate) name: &'static str,
    /// Fields of a container's security context that violate the check.
    contexts: Vec<Value>,
    /// Fields of a container that violate the check.
    containers: Vec<Value>,
    /// Fields of a pod's security context that violate the check.
    pod_contexts: Vec<Value>,
    /// Pod templates that violate the check.
    templates: Vec<Value>,
}

impl Check {
    fn new(name: &'static str) -> Self {
        let none = Vec::new;
        Self { name, contexts: none(), containers: none(), pod_contexts: none(), templates: none() }
    }

    fn contexts(self, contexts: &[Value]) -> Self {
        Self { contexts: contexts.to_vec(), ..self }
    }

    fn containers(self, containers: Vec<Value>) -> Self {
        Self { containers, ..self }
    }

    fn pod_contexts(self, pod_contexts: &[Value]) -> Self {
        Self { pod_contexts: pod_contexts.to_vec(), ..self }
    }

    fn templates(self, templates: Vec<Value>) -> Self {
        Self { templates, ..self }
    }

    /// Fields that violate the check both for a container and for a pod.
    fn both(self, contexts: &[Value]) -> Self {
        self.contexts(contexts).pod_contexts(contexts)
    }

    /// Returns all templates that violate the check: each container also as an init container.
    pub(crate) fn all_templates(&self) -> Vec<Value> {
        let contexts = self.contexts.iter().map(|context| json!({"securityContext": context}));
        let mut all = self.templates.clone();
        for container in contexts.chain(self.containers.iter().cloned()) {
            all.push(with_container("containers", &container));
            all.push(with_container("initContainers", &container));
        }
        let pods = self.pod_contexts.iter();
        all.extend(pods.map(|context| json!({"spec": {"containers": [], "securityContext": context}})));
        all
    }
}

pub(crate) fn with_container(list: &str, fields: &Value) -> Value {
    let mut template = json!({"spec": {"containers": []}});
    let mut container = json!({"name": "other", "image": "example.com/other:1"});
    rlt_api::overlay(&mut container, fields);
    template["spec"][list] = json!([container]);
    template
}

fn with_volume(source: &str) -> Value {
    let volume = match source {
        "hostPath" => json!({"name": "a", "hostPath": {"path": "/"}}),
        "nfs" => json!({"name": "a", "nfs": {"server": "a", "path": "/"}}),
        "iscsi" => json!({"name": "a", "iscsi": {"targetPortal": "a", "iqn": "b", "lun": 0}}),
        _ => json!({"name": "a", "gitRepo": {"repository": "a"}}),
    };
    json!({"spec": {"containers": [], "volumes": [volume]}})
}

/// Returns probes and lifecycle hooks with requests to `host`.
pub(crate) fn requests(host: &Value) -> Vec<Value> {
    let http = json!({"httpGet": {"host": host, "port": 80}});
    let tcp = json!({"tcpSocket": {"host": host, "port": 80}});
    let probes = ["livenessProbe", "readinessProbe", "startupProbe"];
    let probes = probes.into_iter().flat_map(|field| [json!({field: http}), json!({field: tcp})]);
    let hooks = ["postStart", "preStop"].into_iter();
    let hooks = hooks.flat_map(|field| [&http, &tcp].map(|request| json!({"lifecycle": {field: request}})));
    probes.chain(hooks).collect()
}

/// All checks of level `restricted`, which include those of `baseline`.
pub(crate) fn all() -> Vec<Check> {
    of_level_baseline().into_iter().chain(of_level_restricted()).collect()
}

fn of_level_baseline() -> Vec<Check> {
    let annotation = |value: &str| json!({"metadata": {"annotations": {APP_ARMOR_OF_TRAINER: value}}});
    let unconfined = json!({"appArmorProfile": {"type": "Unconfined"}});
    let no_seccomp = json!({"seccompProfile": {"type": "Unconfined"}});
    let switch = |field: &str| json!({"spec": {"containers": [], field: true}});
    vec![
        Check::new("appArmorProfile")
            .both(&[unconfined])
            .templates(vec![annotation("unconfined"), annotation("runtime/other")]),
        Check::new("capabilities_baseline").contexts(&[json!({"capabilities": {"add": ["NET_RAW"]}})]),
        Check::new("hostNamespaces").templates(["hostNetwork", "hostPID", "hostIPC"].map(switch).to_vec()),
        Check::new("hostPathVolumes").templates(vec![with_volume("hostPath")]),
        Check::new("hostPorts").containers(vec![json!({"ports": [{"containerPort": 1, "hostPort": 1}]})]),
        Check::new("hostProbesAndHostLifecycle").containers(requests(&json!("169.254.169.254"))),
        Check::new("privileged").contexts(&[json!({"privileged": true})]),
        Check::new("procMount").contexts(&[json!({"procMount": "Unmasked"})]),
        Check::new("seLinuxOptions").both(&[
            json!({"seLinuxOptions": {"type": "spc_t"}}),
            json!({"seLinuxOptions": {"user": "system_u"}}),
            json!({"seLinuxOptions": {"role": "system_r"}}),
        ]),
        Check::new("seccompProfile_baseline").both(&[no_seccomp]),
        Check::new("sysctls").pod_contexts(&[json!({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]})]),
        Check::new("windowsHostProcess").both(&[json!({"windowsOptions": {"hostProcess": true}})]),
    ]
}

fn of_level_restricted() -> Vec<Check> {
    let drops = [json!({"capabilities": {"drop": []}}), json!({"capabilities": {"drop": ["NET_RAW"]}})];
    vec![
        Check::new("allowPrivilegeEscalation").contexts(&[json!({"allowPrivilegeEscalation": true})]),
        Check::new("capabilities_restricted").contexts(&drops),
        Check::new("procMount_restricted").contexts(&[json!({"procMount": "Unmasked"})]),
        Check::new("restrictedVolumes").templates(["nfs", "iscsi", "gitRepo"].map(with_volume).to_vec()),
        Check::new("runAsNonRoot").both(&[json!({"runAsNonRoot": false})]),
        Check::new("runAsUser").both(&[json!({"runAsUser": 0})]),
        Check::new("seccompProfile_restricted").both(&[json!({"seccompProfile": {"type": "Other"}})]),
    ]
}
