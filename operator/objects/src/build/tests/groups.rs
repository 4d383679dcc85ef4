//! Names of many workers and attempts, and a job of two groups of workers, which no manifest requests yet:
//! each group has objects of its own.

use std::collections::BTreeSet;

use rlt_api::spec::Device;
use serde_json::{Value, json};

use super::super::{Flavor, Gang, Placement, objects, pod_group, workload};
use super::{BuildInput, channel, pod, prepared, settings, trainer, with_workers};
use crate::fixtures::with_samplers;
use crate::queue::{Assignment, Workload};

/// Calls `check` with two workers that train and three that sample, on GPUs.
fn two_groups<T>(check: impl FnOnce(&BuildInput<'_>) -> T) -> T {
    let mut job = with_workers(json!({"count": 2, "topology": {"required": "rack"}}));
    job.metadata.labels = Some([("kueue.x-k8s.io/queue-name".to_owned(), "team".to_owned())].into());
    let (prepared, settings) = (with_samplers(prepared(&job, 2), 3), settings(Some(channel())));
    check(&BuildInput { job: &job, prepared: &prepared, settings: &settings })
}

fn named<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a str> {
    let of_kind = objects.iter().filter(|object| object["kind"] == kind);
    of_kind.map(|object| object["metadata"]["name"].as_str().unwrap()).collect()
}

#[test]
fn objects_of_a_second_group_have_names_of_their_own() {
    let both = two_groups(|input| objects(input, 1).unwrap());
    let names: Vec<_> = both.iter().map(|object| (&object["kind"], &object["metadata"]["name"])).collect();
    let different: BTreeSet<_> = names.iter().map(|(kind, name)| (kind.as_str(), name.as_str())).collect();
    assert_eq!(different.len(), names.len(), "{names:?}");
    let trainers = ["quickstart-trainer-0", "quickstart-trainer-1"];
    let samplers = ["quickstart-sampler-0", "quickstart-sampler-1", "quickstart-sampler-2"];
    assert_eq!(named(&both, "Pod"), [&trainers[..], &samplers].concat());
    for kind in ["Service", "EndpointSlice"] {
        assert_eq!(named(&both, kind), ["quickstart-trainer", "quickstart-sampler"]);
    }
    for kind in ["ServiceAccount", "ConfigMap", "NetworkPolicy", "Workload"] {
        assert_eq!(named(&both, kind).len(), 1, "the job has one {kind}");
    }
}

#[test]
fn the_first_group_has_the_objects_that_it_has_alone() {
    let both = two_groups(|input| objects(input, 1).unwrap());
    let mut job = with_workers(json!({"count": 2, "topology": {"required": "rack"}}));
    job.metadata.labels = Some([("kueue.x-k8s.io/queue-name".to_owned(), "team".to_owned())].into());
    let (prepared, settings) = (prepared(&job, 2), settings(Some(channel())));
    let alone = objects(&BuildInput { job: &job, prepared: &prepared, settings: &settings }, 1).unwrap();
    // Both groups are in the ConfigMap and in the Workload.
    for object in alone.iter().filter(|object| object["kind"] != "ConfigMap" && object["kind"] != "Workload")
    {
        assert!(both.contains(object), "{object:#}");
    }
}

#[test]
fn ranks_of_a_group_are_a_world_of_their_own_on_its_own_devices() {
    let both = two_groups(|input| objects(input, 1).unwrap());
    let find = |kind: &str, name: &str| {
        both.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name).unwrap()
    };
    let data = &find("ConfigMap", "quickstart-manifest")["data"];
    let shared = |file: &str| serde_json::from_str::<Value>(data[file].as_str().unwrap()).unwrap();
    assert_eq!(shared("environment.json")["WORLD_SIZE"], "2");
    let of_samplers = shared("environment-sampler.json");
    assert_eq!((&of_samplers["WORLD_SIZE"], &of_samplers["LOCAL_WORLD_SIZE"]), (&json!("6"), &json!("2")));
    assert_eq!(of_samplers["MASTER_ADDR"], "quickstart-sampler-0.quickstart-sampler");
    let last = find("Pod", "quickstart-sampler-2");
    assert_eq!(last["spec"]["subdomain"], "quickstart-sampler");
    assert_eq!(last["metadata"]["labels"]["rltraining.dev/worker-group"], "sampler");
    let container = &last["spec"]["containers"][0];
    let rank = container["env"].as_array().unwrap().iter().find(|variable| variable["name"] == "RANK");
    assert_eq!(rank.unwrap()["value"], "4");
    assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], "2");
    assert_eq!(container["command"][2], "/etc/rltraining/environment-sampler.json");
    let trainer = &find("Pod", "quickstart-trainer-1")["spec"]["containers"][0];
    assert_eq!(trainer["resources"].get("limits"), None);
}

#[test]
fn queues_and_schedulers_place_each_group_as_a_gang() {
    two_groups(|input| {
        let groups = &input.prepared.plan.worker_groups;
        let asked = workload(input, "team", None, &[]);
        let sets = asked.data["spec"]["podSets"].as_array().unwrap();
        let counts: Vec<_> = sets.iter().map(|set| (&set["name"], &set["count"])).collect();
        assert_eq!(counts, [(&json!("trainer"), &json!(2)), (&json!("sampler"), &json!(3))]);
        let gang = pod_group(input, &groups[1], Gang::Coscheduling, 4);
        assert_eq!(gang.metadata.name.as_deref(), Some("quickstart-sampler-4"));
        assert_eq!(gang.data["spec"]["minMember"], 3);
        let flavor = |label: &str| Flavor {
            node_labels: [("pool".to_owned(), label.to_owned())].into(),
            ..Flavor::default()
        };
        let flavors = ["cpu", "gpu"].map(|name| (name.to_owned(), flavor(name))).into();
        let assignment = |name: &str, flavor: &str| Assignment {
            name: name.into(),
            flavors: [flavor.to_owned()].into(),
            ..Assignment::default()
        };
        let assignments = vec![assignment("trainer", "cpu"), assignment("sampler", "gpu")];
        let admitted = Workload { assignments, ..Workload::default() };
        for (group, pool) in groups.iter().zip(["cpu", "gpu"]) {
            let placement = Placement::new(input, group, 1, None, Some((&admitted, &flavors)));
            let pod = placement.place(super::super::pod(input, 1, group, 0)).unwrap();
            let spec = serde_json::to_value(&pod.spec).unwrap();
            assert_eq!(spec["nodeSelector"]["pool"], pool, "the flavors of its own pods");
            let near = &spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
            let labels = &near["labelSelector"]["matchLabels"];
            assert_eq!(labels["rltraining.dev/worker-group"], group.name.as_str(), "near to its own group");
        }
        assert_eq!(groups[1].device, Device::Cuda);
    });
}

/// Returns the host names of two workers and the name of an attempt's PodGroup, for a job with the longest
/// name.
fn long_names(first_letter: &str, workers: [u32; 2], attempt: u32) -> [String; 3] {
    let mut job = with_workers(json!({"count": 1024}));
    job.metadata.name = Some(first_letter.to_owned() + &"x".repeat(51));
    let (prepared, settings) = (prepared(&job, 1024), settings(None));
    let input = &BuildInput { job: &job, prepared: &prepared, settings: &settings };
    let [one, other] = workers.map(|idx| pod(input, attempt, idx).spec.unwrap().hostname.unwrap());
    [one, other, pod_group(input, trainer(input), Gang::Coscheduling, attempt).metadata.name.unwrap()]
}

#[test]
fn names_of_many_workers_and_attempts_fit_into_labels_and_stay_different() {
    let plain = "a".to_owned() + &"x".repeat(51) + "-trainer";
    assert_eq!(long_names("a", [0, 99], 99), ["-0", "-99", "-99"].map(|end| plain.clone() + end));
    let long = ["a", "b"].map(|letter| long_names(letter, [100, 1023], 1000)).concat();
    let fits = |name: &&String| name.len() <= 63 && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    assert!(long.iter().all(|name| fits(&name)), "{long:?}");
    assert_eq!(long.iter().collect::<BTreeSet<_>>().len(), long.len(), "{long:?}");
    assert!(long[1].ends_with("-trainer-1023") && long[2].ends_with("-trainer-1000"), "{long:?}");
}
