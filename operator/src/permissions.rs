//! Permissions of the operator in a cluster, with reasons: the one table from which the chart's roles are
//! generated.
//!
//! The API server refuses a call that the table does not allow. Tests check that, and that each entry is
//! needed by a call.

use serde::Serialize;

/// Scope of a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All watched namespaces.
    Watched,
    /// Namespace of the operator.
    Own,
    /// Resources without a namespace.
    Cluster,
}

/// One entry of the table of permissions.
#[derive(Clone, Copy, Debug)]
pub struct Permission {
    /// Scope of the permission.
    pub reach: Reach,
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Resource, with its subresource.
    pub resource: &'static str,
    /// Verbs that are allowed.
    pub verbs: &'static [&'static str],
    /// Name of the only allowed object, as a template of the chart; `None` for all objects. Creating cannot
    /// be limited to names.
    pub name: Option<&'static str>,
    /// Reason for the permission.
    pub reason: &'static str,
}

/// Name of the status channel's Secret, as a template of the chart.
const CHANNEL_SECRET: &str = "{{ include `rl-operator.name` . }}-channel";

const fn permission(
    reach: Reach,
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    reason: &'static str,
) -> Permission {
    Permission { reach, group, resource, verbs, name: None, reason }
}

/// Verbs for a child that is created once for each job, watched, and restored when it differs. An existing
/// object of the same name is read to find its owner.
const CHILD: &[&str] = &["create", "get", "list", "patch", "watch"];

/// Verbs for an object that is created before the pods of an attempt, and replaced in the next one. An
/// existing object of the same name is read to find its owner.
const GROUP: &[&str] = &["create", "deletecollection", "get"];
const GROUP_REASON: &str =
    "have all workers of an attempt placed, or none, where the cluster has such a scheduler";

/// All permissions of the operator.
pub const PERMISSIONS: &[Permission] = &[
    permission(
        Reach::Watched,
        "rltraining.dev",
        "rltrainingjobs",
        &["delete", "list", "watch"],
        "work on jobs, and remove them when their time after the end is over",
    ),
    permission(Reach::Watched, "rltraining.dev", "rltrainingjobs/status", &["patch"], "report"),
    permission(
        Reach::Watched,
        "rltraining.dev",
        "rltrainingjobs/finalizers",
        &["update"],
        "own objects that hold up a job's deletion, where the cluster asks for it",
    ),
    permission(
        Reach::Watched,
        "",
        "pods",
        &["create", "delete", "get", "list", "patch", "watch"],
        "start, stop and follow workers, and give spares the place of lost ones",
    ),
    permission(Reach::Watched, "", "configmaps", CHILD, "hand manifests to workers"),
    permission(Reach::Watched, "", "services", CHILD, "let workers find each other"),
    permission(
        Reach::Watched,
        "discovery.k8s.io",
        "endpointslices",
        &["create", "delete", "get", "list", "patch", "watch"],
        "lead the name of a gang to its first worker, whatever the family of its address",
    ),
    permission(Reach::Watched, "", "serviceaccounts", CHILD, "give workers an account without rights"),
    permission(Reach::Watched, "", "persistentvolumeclaims", CHILD, "keep checkpoints"),
    permission(
        Reach::Watched,
        "networking.k8s.io",
        "networkpolicies",
        &["create", "delete", "get", "list", "patch", "watch"],
        "keep others away from workers",
    ),
    permission(
        Reach::Watched,
        "kueue.x-k8s.io",
        "workloads",
        &["create", "delete", "get", "list", "patch", "watch"],
        "ask a queue for a place, where the cluster has Kueue, and take over a Workload of MultiKueue",
    ),
    permission(
        Reach::Watched,
        "kueue.x-k8s.io",
        "workloads/status",
        &["patch"],
        "release quota, and report the job's progress to its queue",
    ),
    permission(Reach::Watched, "scheduling.k8s.io", "podgroups", GROUP, GROUP_REASON),
    permission(Reach::Watched, "scheduling.volcano.sh", "podgroups", GROUP, GROUP_REASON),
    permission(Reach::Watched, "scheduling.x-k8s.io", "podgroups", GROUP, GROUP_REASON),
    permission(Reach::Watched, "events.k8s.io", "events", &["create"], "publish Events"),
    permission(
        Reach::Own,
        "coordination.k8s.io",
        "leases",
        &["create", "get", "list", "update", "watch"],
        "elect the replica that leads",
    ),
    Permission {
        name: Some(CHANNEL_SECRET),
        ..permission(
            Reach::Own,
            "",
            "secrets",
            &["create", "get", "update"],
            "keep the status channel's authority, shared by replicas",
        )
    },
    permission(
        Reach::Own,
        "",
        "services",
        &["get"],
        "let the status channel's endpoint go with its Service, and give a Lease or Secret its release again",
    ),
    permission(
        Reach::Own,
        "discovery.k8s.io",
        "endpointslices",
        &["create", "patch"],
        "name the leader as the status channel's endpoint",
    ),
    permission(
        Reach::Cluster,
        "kueue.x-k8s.io",
        "resourceflavors",
        &["get"],
        "know the nodes that a queue has set aside",
    ),
    permission(
        Reach::Cluster,
        "kueue.x-k8s.io",
        "workloadpriorityclasses",
        &["get"],
        "read a job's priority in its queue",
    ),
    permission(
        Reach::Cluster,
        "scheduling.k8s.io",
        "priorityclasses",
        &["get"],
        "read the priority of a job's pods for its queue",
    ),
    permission(
        Reach::Cluster,
        "",
        "nodes",
        &["get", "list", "watch"],
        "start workers elsewhere whose node is gone, and let go of what it held",
    ),
    permission(
        Reach::Cluster,
        "authentication.k8s.io",
        "tokenreviews",
        &["create"],
        "know the pod behind a report",
    ),
];

/// Rule of a role, as Kubernetes writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// API groups of the rule.
    pub api_groups: [&'static str; 1],
    /// Resources of the rule.
    pub resources: [&'static str; 1],
    /// Names of objects; `None` for all objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_names: Option<[&'static str; 1]>,
    /// Verbs of the rule.
    pub verbs: Vec<&'static str>,
}

/// Returns the rules of one scope, in the order of the table.
pub fn rules(reach: Reach) -> Vec<Rule> {
    let within = PERMISSIONS.iter().filter(|permission| permission.reach == reach);
    within.flat_map(rules_of).collect()
}

/// Returns one rule, or two where all verbs except `create` are limited to a name.
fn rules_of(permission: &Permission) -> Vec<Rule> {
    let is_limited = |verb: &&&str| permission.name.is_some() && **verb != "create";
    let rule = |name: Option<&'static str>, verbs: Vec<&'static str>| Rule {
        api_groups: [permission.group],
        resources: [permission.resource],
        resource_names: name.map(|name| [name]),
        verbs,
    };
    let (limited, free): (Vec<_>, Vec<_>) = permission.verbs.iter().partition(|verb| is_limited(verb));
    let rules = [rule(None, free), rule(permission.name, limited)];
    rules.into_iter().filter(|rule| !rule.verbs.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn nothing_is_allowed_twice_for_everything_or_without_a_reason() {
        let mut seen = HashSet::new();
        for permission in PERMISSIONS {
            let Permission { reach, group, resource, .. } = permission;
            assert!(seen.insert((format!("{reach:?}"), group, resource)), "{permission:?}");
            assert!(permission.verbs.is_sorted() && !permission.verbs.is_empty(), "{permission:?}");
            assert!(!permission.verbs.contains(&"*") && permission.resource != "*", "{permission:?}");
            assert!(!permission.reason.is_empty());
        }
    }

    #[test]
    fn secrets_are_read_and_written_by_name_alone() {
        let of_secrets: Vec<_> =
            rules(Reach::Own).into_iter().filter(|rule| rule.resources == ["secrets"]).collect();
        assert_eq!(of_secrets.len(), 2);
        for rule in of_secrets {
            assert!(rule.resource_names.is_some() || rule.verbs == ["create"], "{rule:?}");
        }
    }

    #[test]
    fn nothing_beyond_the_own_namespace_touches_secrets_or_roles() {
        let far = PERMISSIONS.iter().filter(|permission| permission.reach != Reach::Own);
        let sensitive =
            ["secrets", "roles", "rolebindings", "clusterroles", "clusterrolebindings", "pods/exec"];
        assert!(far.into_iter().all(|permission| !sensitive.contains(&permission.resource)));
    }
}
