//! Tests of the defaults of clusters and namespaces, which a job overrides, and of the source of each value.

#![expect(clippy::unwrap_used, reason = "a broken fixture should end the test")]

use rlt_api::{Defaults, MergedSpec, Origin, merge};
use serde_json::{Value, json};

fn defaults(workers: &Value) -> Defaults {
    Defaults::parse(&json!({"workers": workers}).to_string()).unwrap()
}

fn merged(job: &Value, namespace: &Value, cluster: &Value) -> MergedSpec {
    merge(&json!({"workers": job}), Some(&defaults(namespace)), Some(&defaults(cluster)))
}

fn origin(merged: &MergedSpec, field: &str) -> Option<(Value, Origin)> {
    merged.origins.get(&format!("spec.workers.{field}")).cloned()
}

#[test]
fn the_innermost_defaults_win_and_are_named_as_the_source() {
    let volume = |path: &str, claim: &str| json!({"mountPath": path, "claimName": claim});
    let merged = merged(
        &json!({
            "count": 2, "network": "Guarded", "nodeSelector": {"a": "job"}, "tolerations": [],
            "pod": {"volumes": [{"mountPath": "/models", "secret": "job"}], "labels": {}},
            "podTemplate": {"spec": {"containers": [{"name": "trainer", "env": [{"name": "A", "value": "job"}]}]}},
        }),
        &json!({
            "nodeSelector": {"a": "ns", "b": "ns"}, "topology": {"required": "rack"},
            "pod": {"volumes": [volume("/models", "ns"), volume("/data", "ns")]},
            "podTemplate": {"spec": {"containers": [
                {"name": "trainer", "env": [{"name": "A", "value": "ns"}, {"name": "B", "value": "ns"}]},
            ]}},
        }),
        &json!({
            "nodeSelector": {"b": "cluster", "c": "cluster"}, "topology": {"preferred": "zone"}, "network": "Isolated",
            "tolerations": [{"operator": "Exists"}], "resources": {"gpu": "amd.com/gpu"},
        }),
    );
    let workers = &merged.spec["workers"];
    assert_eq!(workers["nodeSelector"], json!({"a": "job", "b": "ns", "c": "cluster"}));
    assert_eq!(workers["topology"], json!({"required": "rack"}), "one choice");
    assert_eq!(workers["tolerations"], json!([{"operator": "Exists"}]), "an empty list says nothing");
    let volumes = json!([{"mountPath": "/models", "secret": "job"}, volume("/data", "ns")]);
    assert_eq!(workers["pod"]["volumes"], volumes, "a volume has one source");
    let variables = json!([{"name": "A", "value": "job"}, {"name": "B", "value": "ns"}]);
    assert_eq!(workers["podTemplate"]["spec"]["containers"][0]["env"], variables);
    for (field, value, from) in [
        ("count", json!(2), Origin::Job),
        ("ranksPerWorker", json!(1), Origin::BuiltIn),
        ("network", json!("Guarded"), Origin::Job),
        ("resources.gpu", json!("amd.com/gpu"), Origin::Cluster),
        ("nodeSelector.a", json!("job"), Origin::Job),
        ("nodeSelector.b", json!("ns"), Origin::Namespace),
        ("nodeSelector.c", json!("cluster"), Origin::Cluster),
        ("topology.required", json!("rack"), Origin::Namespace),
        ("podTemplate.spec.containers[trainer].env[B].value", json!("ns"), Origin::Namespace),
        ("podTemplate.spec.containers[trainer].env[A].value", json!("job"), Origin::Job),
    ] {
        assert_eq!(origin(&merged, field), Some((value, from)), "{field}");
    }
    assert_eq!(origin(&merged, "topology.preferred"), None, "the outer choice counts no more");
}

#[test]
fn defaults_written_by_the_api_server_hide_no_other_default() {
    // The section as stored by the API server, with the defaults of the definition.
    let stored = json!({
        "count": 1, "ranksPerWorker": 1, "balance": "Work", "resources": {"extra": {}}, "nodeSelector": {}, "env": [],
        "imagePullSecrets": [], "tolerations": [],
        "pod": {"labels": {}, "annotations": {}, "volumes": [], "capabilities": [], "resourceClaims": []},
    });
    let cluster = json!({
        "network": "Open", "resources": {"gpu": "amd.com/gpu", "extra": {"rdma/hca": "1"}}, "nodeSelector": {"a": "b"},
        "pod": {"hostNetwork": true, "labels": {"team": "a"}, "capabilities": ["IPC_LOCK"]}, "env": [{"name": "A", "value": "b"}],
    });
    let merged = merged(&stored, &json!({}), &cluster);
    for (path, value) in [
        ("/network", json!("Open")),
        ("/resources/gpu", json!("amd.com/gpu")),
        ("/resources/extra", json!({"rdma/hca": "1"})),
        ("/pod/hostNetwork", json!(true)),
        ("/pod/labels/team", json!("a")),
        ("/pod/capabilities", json!(["IPC_LOCK"])),
        ("/env/0/name", json!("A")),
    ] {
        assert_eq!(merged.spec["workers"].pointer(path), Some(&value), "{path}");
    }
}

#[test]
fn defaults_of_storage_fit_the_job() {
    let shared = json!({"storage": {"claimName": "shared"}});
    let class = json!({"storage": {"storageClassName": "fast"}});
    let storage =
        |job: Value, defaults: &Value| merged(&job, defaults, &json!({})).spec["workers"]["storage"].clone();
    assert_eq!(storage(json!({}), &shared), json!({"claimName": "shared"}));
    assert_eq!(storage(json!({}), &class), Value::Null);
    assert_eq!(storage(json!({"storage": {"claimName": "own"}}), &class), json!({"claimName": "own"}));
    let sized = storage(json!({"storage": {"size": "1Gi"}}), &class);
    assert_eq!(sized, json!({"storageClassName": "fast", "size": "1Gi"}));
    let own = storage(json!({"storage": {"size": "1Gi"}}), &shared);
    assert_eq!(own, json!({"size": "1Gi"}));
}

#[test]
fn wrong_defaults_are_named_with_their_place() {
    let wrong = [
        ("workers: 7", "1:1: workers: is a number; expected a map of fields; got 7"),
        ("workers:\n  count: 2\n", "2:3: workers.count: is not a field"),
        ("training: {}", "1:1: training: is not a field"),
        ("workers:\n  network: Closed\n", "2:3: workers.network: is not one of the choices; got \"Closed\""),
        ("[]", "1:1: must be a map with the one section workers"),
        ("workers: {", "is not YAML that can be read"),
    ];
    for (text, expected) in wrong {
        let problems = Defaults::parse(text).unwrap_err();
        assert!(problems[0].to_string().contains(expected), "{}, not {expected}", problems[0]);
    }
    assert!(Defaults::parse("# nothing yet").unwrap().is_empty());
}
