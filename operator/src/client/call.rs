//! Verb and resource of a request to the API server, from its method and path. Pure.

use std::time::Duration;

use kube::client::Body;

use super::connections::Lane;

/// Verb of a call, as in Kubernetes' authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Reads one object.
    Get,
    /// Reads a list of objects.
    List,
    /// Receives changes of objects.
    Watch,
    /// Creates an object.
    Create,
    /// Replaces an object.
    Update,
    /// Changes a part of an object.
    Patch,
    /// Deletes an object.
    Delete,
}

impl Verb {
    /// Name of the verb in a role.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

/// Priority of a call while the rate limit or the connection delays calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Importance {
    /// Leases and watches: never delayed, and not counted.
    Vital,
    /// Statuses on which later decisions depend, and TokenReviews for which ranks wait.
    Status,
    /// Pods, the children that they need to start, and reads.
    Change,
    /// Services, policies and endpoints, which pods need only once they run.
    Network,
    /// Statuses with only counts or progress.
    Notice,
    /// Creation of Events. They follow a status that was written, so a stop of the operator does not cancel
    /// them.
    Event,
}

impl Importance {
    /// Returns the longest time by which more urgent calls may delay a call.
    pub fn patience(self) -> Duration {
        match self {
            Self::Vital | Self::Status => Duration::ZERO,
            Self::Change => Duration::from_millis(500),
            Self::Network => Duration::from_secs(5),
            Self::Notice | Self::Event => Duration::from_secs(10),
        }
    }

    /// Whether a closed limiter still admits the call.
    pub(super) fn passes_when_closed(self) -> bool {
        matches!(self, Self::Vital | Self::Event)
    }
}

/// Verb, resource and namespace of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Verb of the call.
    pub verb: Verb,
    /// Resource with its subresource, such as `pods` or `pods/status`; `none` for URLs that are no resource.
    pub resource: String,
    /// Namespace of the resource; `None` for all namespaces or a cluster-scoped resource.
    pub namespace: Option<String>,
}

impl Call {
    /// Parses a request.
    pub fn of(request: &http::Request<Body>) -> Self {
        let query = request.uri().query().unwrap_or("");
        let is_watch = query.split('&').any(|part| part == "watch=true" || part == "watch=1");
        let segments: Vec<&str> = request.uri().path().split('/').filter(|part| !part.is_empty()).collect();
        let (namespace, resource): (Option<&str>, &[&str]) = match segments.as_slice() {
            ["api", _, "namespaces", namespace, rest @ ..]
            | ["apis", _, _, "namespaces", namespace, rest @ ..]
                if !rest.is_empty() =>
            {
                (Some(namespace), rest)
            }
            ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => (None, rest),
            _ => (None, &[]),
        };
        let has_name = resource.len() > 1;
        let verb = match *request.method() {
            http::Method::POST => Verb::Create,
            http::Method::PUT => Verb::Update,
            http::Method::PATCH => Verb::Patch,
            http::Method::DELETE => Verb::Delete,
            _ if is_watch => Verb::Watch,
            _ if has_name => Verb::Get,
            _ => Verb::List,
        };
        let resource = match resource {
            [] => "none".to_owned(),
            [kind] | [kind, _] => (*kind).to_owned(),
            [kind, _, subresource, ..] => format!("{kind}/{subresource}"),
        };
        Self { verb, resource, namespace: namespace.map(str::to_owned) }
    }

    /// Whether only the leader may make the call: it changes something, and does not belong to the leader
    /// election.
    pub(super) fn is_bound_by_term(&self) -> bool {
        !matches!(self.verb, Verb::Get | Verb::List | Verb::Watch) && self.resource != "leases"
    }

    /// Returns the connections that the call may use.
    pub(super) fn lane(&self) -> Lane {
        match (self.verb, self.resource.as_str()) {
            (Verb::Watch, _) => Lane::Watches,
            (_, "leases") => Lane::Leases,
            _ => Lane::Calls,
        }
    }

    /// Returns the priority of the call, unless the caller sets another one.
    pub fn importance(&self) -> Importance {
        match (self.verb, self.resource.as_str()) {
            (Verb::Watch, _) | (_, "leases") => Importance::Vital,
            (_, "tokenreviews") => Importance::Status,
            // A caller waits for the result of a read.
            (Verb::Get | Verb::List, _) => Importance::Change,
            (_, "services" | "networkpolicies" | "endpointslices") => Importance::Network,
            (_, resource) if resource.ends_with("/status") => Importance::Status,
            (_, "events") => Importance::Event,
            _ => Importance::Change,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, address: &str) -> Call {
        Call::of(&http::Request::builder().method(method).uri(address).body(Body::empty()).unwrap())
    }

    #[test]
    fn verb_and_resource_are_those_that_a_role_would_have_to_allow() {
        let cases = [
            ("GET", "/api/v1/pods?labelSelector=a%3Db&watch=true", "watch pods"),
            ("GET", "/api/v1/namespaces/team/pods?limit=200", "list pods"),
            ("POST", "/api/v1/namespaces/team/pods?fieldManager=rlt-operator", "create pods"),
            ("DELETE", "/api/v1/namespaces/team/pods/adding-0", "delete pods"),
            ("GET", "/api/v1/namespaces/team", "get namespaces"),
            (
                "PATCH",
                "/apis/rltraining.dev/v1alpha1/namespaces/team/rltrainingjobs/adding/status",
                "patch rltrainingjobs/status",
            ),
            ("PUT", "/apis/coordination.k8s.io/v1/namespaces/rl/leases/rl-operator", "update leases"),
            ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", "create tokenreviews"),
            ("GET", "/apis", "list none"),
            ("GET", "/version", "list none"),
        ];
        for (method, address, expected) in cases {
            let call = call(method, address);
            assert_eq!(format!("{} {}", call.verb.name(), call.resource), expected, "{address}");
        }
        let namespace = |address| call("GET", address).namespace;
        assert_eq!(namespace("/api/v1/namespaces/team/pods?watch=true").as_deref(), Some("team"));
        assert_eq!((namespace("/api/v1/pods"), namespace("/api/v1/namespaces/team")), (None, None));
    }

    #[test]
    fn leases_come_before_statuses_before_pods_before_services_before_events() {
        let lease = call("PUT", "/apis/coordination.k8s.io/v1/namespaces/rl/leases/rl-operator");
        let status = call("PATCH", "/apis/rltraining.dev/v1alpha1/namespaces/a/rltrainingjobs/b/status");
        let pod = call("POST", "/api/v1/namespaces/team/pods");
        let service = call("POST", "/api/v1/namespaces/team/services");
        let event = call("POST", "/apis/events.k8s.io/v1/namespaces/team/events");
        let order = [lease, status, pod, service, event].map(|call| call.importance());
        assert!(order.is_sorted_by(|one, other| one < other), "{order:?}");
        assert!(order.is_sorted_by_key(|importance| importance.patience()), "{order:?}");
    }
}
