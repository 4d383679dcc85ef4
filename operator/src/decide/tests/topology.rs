//! The topology domains of workers in the status.

use rlt_api::status::TopologyStatus;
use rlt_objects::prepare::Prepared;

use super::super::topology::nodes_to_read;
use super::*;
use crate::nodes::NodeLabels;

fn with_topology(topology: Value) -> Prepared {
    let mut prepared = prepared(4, json!({}));
    let mut job = super::super::fixtures::job(&json!({}));
    let mut spec: Value = serde_json::from_str(&job.spec).unwrap();
    spec["workers"] = json!({"count": 4, "device": "Cpu", "topology": topology});
    job.spec = spec.to_string();
    prepared.clone_from(&Prepared::new(&job).unwrap());
    prepared
}

fn on(idx: u32) -> Worker {
    Worker { node: Some(format!("node-{idx}").as_str().into()), ..runs(idx) }
}

fn labels(racks: [&str; 4]) -> NodeLabels {
    let racks = racks.into_iter().enumerate();
    racks
        .map(|(idx, rack)| {
            let labels =
                [("zone", "a"), ("rack", rack)].map(|(name, value)| (name.to_owned(), value.to_owned()));
            (format!("node-{idx}").as_str().into(), labels.into())
        })
        .collect()
}

/// Returns the decision, and the number of nodes whose labels it requested.
fn placed(
    prepared: &Prepared,
    status: &RLTrainingJobStatus,
    workers: Vec<Worker>,
    node_labels: Option<&NodeLabels>,
) -> (Vec<TopologyStatus>, usize, RLTrainingJobStatus) {
    let workers: Vec<_> = workers.into_iter().map(Arc::new).collect();
    let input = ReconcileInput { node_labels, ..input(prepared, status, &workers) };
    let num_nodes = nodes_to_read(&input).len();
    let status = decide(&input).status;
    (status.worker_groups[0].topology.clone(), num_nodes, status)
}

#[test]
fn the_domains_of_an_attempt_are_read_once_when_all_of_it_runs_and_forgotten_with_it() {
    let prepared = with_topology(json!({"preferred": "zone", "slice": {"required": "rack", "size": 2}}));
    let all = || (0..4).map(on).collect::<Vec<_>>();
    let fewer = placed(&prepared, &starting(9), (0..3).map(on).collect(), None);
    assert_eq!((fewer.0.len(), fewer.1), (0, 0), "one is missing");
    let racks = labels(["r7", "r7", "r2", "r2"]);
    let (topology, num_nodes, status) = placed(&prepared, &starting(9), all(), Some(&racks));
    assert_eq!(num_nodes, 4);
    let shown = |topology: &[TopologyStatus]| {
        let domains = |one: &TopologyStatus| {
            one.domains.iter().map(|domain| format!("{} {}", domain.name, domain.workers)).collect::<Vec<_>>()
        };
        topology.iter().map(|one| (one.label.clone(), domains(one))).collect::<Vec<_>>()
    };
    let expected = [
        ("zone".to_owned(), vec!["a 0-3".to_owned()]),
        ("rack".to_owned(), vec!["r7 0-1".to_owned(), "r2 2-3".to_owned()]),
    ];
    assert_eq!(shown(&topology), expected);
    let (kept, num_nodes, _) = placed(&prepared, &status, all(), None);
    assert_eq!((kept, num_nodes), (topology, 0));
    let crashed = [vec![failed(0, 139, 9)], (1..4).map(on).collect()].concat();
    let (forgotten, _, second) = placed(&prepared, &status, crashed, None);
    assert!(forgotten.is_empty() && second.attempt == Some(2));
    let (scattered, ..) = placed(&prepared, &starting(9), all(), Some(&labels(["r0", "r1", "r0", "r0"])));
    assert_eq!(shown(&scattered)[1].1, ["r0 0", "r1 1", "r0 2-3"]);
}

#[test]
fn nodes_are_not_read_for_a_job_without_topology() {
    let prepared = prepared(4, json!({}));
    let (topology, num_nodes, _) = placed(&prepared, &starting(9), (0..4).map(on).collect(), None);
    assert_eq!((topology.len(), num_nodes), (0, 0));
}
