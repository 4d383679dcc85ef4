//! Hot spares: pods like those of the workers, with no ranks, no name on the network and no gang.

use serde_json::Value;
use serde_json::json;

use super::super::{Gang, Placement, gang, objects, workload};
use super::{BuildInput, channel, settings, trainer, with_workers};
use crate::prepare::Prepared;
use crate::served::Served;

/// Calls `check` with the input of a job that has two workers and two spares.
fn spares<T>(check: impl FnOnce(&BuildInput<'_>) -> T) -> T {
    let workers = json!({
        "count": 2, "spares": 2, "resources": {"cpu": "2", "memory": "4Gi"},
        "topology": {"preferred": "zone", "slice": {"required": "rack", "size": 2}},
    });
    let mut job = with_workers(workers);
    job.metadata.labels = Some([("kueue.x-k8s.io/queue-name".to_owned(), "team".to_owned())].into());
    let (prepared, settings) = (Prepared::new(&job).unwrap(), settings(Some(channel())));
    check(&BuildInput { job: &job, prepared: &prepared, settings: &settings })
}

fn variables(pod: &Value) -> Vec<(&str, &str)> {
    let all = pod["spec"]["containers"][0]["env"].as_array().unwrap().iter();
    all.map(|one| (one["name"].as_str().unwrap(), one["value"].as_str().unwrap_or_default())).collect()
}

#[test]
fn a_spare_is_a_worker_s_pod_without_ranks() {
    let all = spares(|input| objects(input, 3).unwrap());
    let pods: Vec<_> = all.iter().filter(|object| object["kind"] == "Pod").collect();
    let names: Vec<_> = pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect();
    let expected =
        ["quickstart-trainer-0", "quickstart-trainer-1", "quickstart-spare-0", "quickstart-spare-1"];
    assert_eq!(names, expected);
    let (worker, spare) = (pods[0], pods[2]);
    assert_eq!(spare["metadata"]["labels"]["rltraining.dev/worker-group"], "spare");
    let of = |pod: &Value| pod["spec"]["containers"][0]["resources"].clone();
    assert_eq!(of(spare), of(worker));
    assert_eq!(variables(spare), [("RLT_ATTEMPT", "0")]);
    assert!(variables(worker).contains(&("RANK", "0")));
    assert!(spare["spec"].get("subdomain").is_none());
    let services = all.iter().filter(|object| object["kind"] == "Service").count();
    assert_eq!(services, 1, "spares have no Service");
    let map = all.iter().find(|object| object["kind"] == "ConfigMap").unwrap();
    let shared = |key: &str| serde_json::from_str::<Value>(map["data"][key].as_str().unwrap()).unwrap();
    assert_eq!(shared("environment.json")["RLT_FOLLOW"], "Ranks");
    let of_spare = shared("environment-spare.json");
    assert_eq!((&of_spare["RLT_FOLLOW"], of_spare.get("WORLD_SIZE")), (&json!("Spare"), None));
    let without = with_workers(json!({"count": 2}));
    let (prepared, settings) = (Prepared::new(&without).unwrap(), settings(Some(channel())));
    let input = BuildInput { job: &without, prepared: &prepared, settings: &settings };
    let text = serde_json::to_string(&objects(&input, 1).unwrap()).unwrap();
    assert!(!text.contains("RLT_FOLLOW"), "without spares a pod ends with its ranks");
}

#[test]
fn spares_count_in_the_queue_s_workload_and_in_no_gang() {
    spares(|input| {
        let workload = workload(input, "team", None, &[]);
        let sets = workload.data["spec"]["podSets"].as_array().unwrap();
        let counts: Vec<_> = sets.iter().map(|set| (&set["name"], &set["count"])).collect();
        assert_eq!(counts, [(&json!("trainer"), &json!(2)), (&json!("spare"), &json!(2))]);
        assert!(sets[0].get("topologyRequest").is_some() && sets[1].get("topologyRequest").is_none());
        let served = Served { has_coscheduling: true, ..Served::default() };
        let spare = &input.prepared.plan.worker_groups[1];
        assert_eq!(gang(input, trainer(input), served), Some(Gang::Coscheduling));
        assert_eq!(gang(input, spare, served), None);
    });
}

#[test]
fn a_spare_is_placed_near_the_workers_and_outside_of_slices() {
    spares(|input| {
        let spare = &input.prepared.plan.worker_groups[1];
        let placed = Placement::new(input, spare, 3, None, None);
        let pod = placed.place(super::super::pod(input, 3, spare, 0)).unwrap();
        let near = pod.spec.unwrap().affinity.unwrap().pod_affinity.unwrap();
        assert!(near.required_during_scheduling_ignored_during_execution.is_none(), "{near:?}");
        let wish = near.preferred_during_scheduling_ignored_during_execution.unwrap().remove(0);
        let labels = wish.pod_affinity_term.label_selector.unwrap().match_labels.unwrap();
        assert_eq!(labels["rltraining.dev/worker-group"], "trainer");
    });
}
