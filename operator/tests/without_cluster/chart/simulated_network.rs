//! Simulated network of a cluster: pods and NetworkPolicies that exist nowhere, about whose connections
//! kube-network-policies, an implementation of NetworkPolicy, is asked. Without Go to build that, tests that
//! need it skip, and under CI they fail.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::of_kind;

/// Address of a node, and of the pods that use its network. Pods with addresses of their own are on other
/// nodes: a node always reaches its own pods, whatever policies say.
const NODE: &str = "192.168.0.1";
/// Address of a server outside of the cluster.
const WEB: &str = "203.0.113.1";

/// An end of connections.
struct End {
    name: &'static str,
    address: String,
}

/// Pods, NetworkPolicies, a node and a server outside of the cluster.
pub(crate) struct SimulatedNetwork {
    program: PathBuf,
    /// NetworkPolicies, and pods with their addresses.
    objects: Vec<Value>,
    ends: Vec<End>,
}

impl SimulatedNetwork {
    /// A network of `node` and `web`, without pods.
    pub(crate) fn new() -> Option<Self> {
        let program = rlt_cluster::network_policy().unwrap()?.get_program().into();
        let end = |name, address: &str| End { name, address: address.to_owned() };
        Some(Self { program, objects: Vec::new(), ends: vec![end("node", NODE), end("web", WEB)] })
    }

    /// Adds the NetworkPolicies and pods among `objects`. The pods are named `names`, in order.
    pub(crate) fn add(&mut self, names: &[&'static str], objects: &[Value]) {
        self.objects.extend(of_kind(objects, "NetworkPolicy").into_iter().cloned());
        let pods = of_kind(objects, "Pod");
        assert_eq!(pods.len(), names.len(), "{names:?}");
        for (name, pod) in names.iter().copied().zip(pods) {
            self.add_pod(name, pod);
        }
    }

    fn add_pod(&mut self, name: &'static str, pod: &Value) {
        let uses_node = pod["spec"]["hostNetwork"] == true;
        let address = if uses_node { NODE.to_owned() } else { format!("10.0.0.{}", self.ends.len()) };
        let mut pod = pod.clone();
        pod["status"] = json!({ "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }] });
        self.objects.push(pod);
        self.ends.push(End { name, address });
    }

    /// Names of all ends with another address than that of `name`.
    pub(crate) fn other_ends(&self, name: &str) -> BTreeSet<&'static str> {
        let address = self.address(name);
        self.ends.iter().filter(|end| end.address != address).map(|end| end.name).collect()
    }

    /// Names of the other ends that may open a TCP connection to a port of `name`.
    pub(crate) fn callers(&self, name: &str, port: u16) -> BTreeSet<&'static str> {
        self.allowed(
            name,
            |address, other| json!({ "from": other, "to": address, "port": port, "protocol": "TCP" }),
        )
    }

    /// Names of the other ends to whose `port` a connection from `name` may be opened.
    pub(crate) fn destinations(&self, name: &str, protocol: &str, port: u16) -> BTreeSet<&'static str> {
        self.allowed(
            name,
            |address, other| json!({ "from": address, "to": other, "port": port, "protocol": protocol }),
        )
    }

    fn address(&self, name: &str) -> &str {
        &self.ends.iter().find(|end| end.name == name).unwrap().address
    }

    /// Names of the other ends with which a connection is allowed. `connection` gets the address of `name`
    /// and that of the other end.
    fn allowed(&self, name: &str, connection: impl Fn(&str, &str) -> Value) -> BTreeSet<&'static str> {
        let address = self.address(name);
        let others: Vec<_> = self.ends.iter().filter(|end| end.address != address).collect();
        let connections: Vec<_> = others.iter().map(|end| connection(address, &end.address)).collect();
        let verdicts = self.ask(&connections);
        assert_eq!(verdicts.len(), others.len());
        let verdicts = others.iter().zip(verdicts);
        verdicts.filter(|(_, is_allowed)| *is_allowed).map(|(end, _)| end.name).collect()
    }

    /// The verdict of kube-network-policies on each connection.
    fn ask(&self, connections: &[Value]) -> Vec<bool> {
        let objects: Vec<_> = self.namespaces().into_iter().chain(self.objects.iter().cloned()).collect();
        let question = json!({ "objects": objects, "connections": connections });
        let mut program = Command::new(&self.program);
        let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(question.to_string().as_bytes()).unwrap();
        let answer = child.wait_with_output().unwrap();
        assert!(answer.status.success(), "{question:#}");
        serde_json::from_slice(&answer.stdout).unwrap()
    }

    /// The namespaces of all objects. Every namespace has its name as a label.
    fn namespaces(&self) -> Vec<Value> {
        let names = self.objects.iter().map(|object| object["metadata"]["namespace"].as_str().unwrap());
        let namespace = |name: &str| {
            let labels = json!({ "kubernetes.io/metadata.name": name });
            json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels },
            })
        };
        names.collect::<BTreeSet<_>>().into_iter().map(namespace).collect()
    }
}
