//! Tests of the identity of ranks: their numbers, their workers, and the axes of the mesh that span workers.

use serde_json::{Value, json};

use super::planned;

#[test]
fn a_rank_learns_its_place_from_the_environment() {
    let plan = planned(|_| {});
    let group = &plan.worker_groups[0];
    let variables = group.environment(0).unwrap();
    let text: Vec<_> =
        variables.iter().map(|variable| format!("{}={}", variable.name, variable.value)).collect();
    assert_eq!(
        text,
        [
            "RANK=0",
            "WORLD_SIZE=1",
            "LOCAL_RANK=0",
            "LOCAL_WORLD_SIZE=1",
            "MASTER_ADDR=localhost",
            "MASTER_PORT=29500"
        ]
    );
    assert_eq!(group.environment(1), None);
    assert_eq!(plan.mesh.world_size(), 1);
}

#[test]
fn every_worker_has_a_rank_and_finds_the_first_by_name() {
    let plan = planned(|spec| spec["workers"] = json!({"count": 3, "device": "Cpu"}));
    assert_eq!(plan.mesh.world_size(), 3);
    let group = &plan.worker_groups[0];
    for rank in 0..3 {
        let variables = group.environment(rank).unwrap();
        let value = |name: &str| variables.iter().find(|v| v.name == name).unwrap().value.clone();
        assert_eq!(value("RANK"), rank.to_string());
        assert_eq!((value("WORLD_SIZE"), value("LOCAL_WORLD_SIZE")), ("3".to_owned(), "1".to_owned()));
        assert!(value("MASTER_ADDR").starts_with(&group.worker_name(0)));
    }
    assert_eq!(group.environment(3), None);
}

#[test]
fn a_worker_of_several_ranks_has_neighbours_and_the_mesh_lays_out_all_of_them() {
    let plan = planned(|spec| {
        spec["workers"] = json!({"count": 4, "ranksPerWorker": 8, "mesh": {"dpShard": 4}, "device": "Cuda"});
    });
    assert_eq!((plan.mesh.world_size(), plan.mesh.dp_replicate), (32, 8));
    let group = &plan.worker_groups[0];
    assert_eq!((group.num_workers, group.ranks_per_worker), (4, 8));
    let environment = |rank: u32| {
        let variables = group.environment(rank).unwrap();
        ["LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"]
            .map(|name| variables.iter().find(|variable| variable.name == name).unwrap().value.clone())
    };
    assert_eq!(environment(8), ["0", "8", "32"]);
    assert_eq!(environment(31), ["7", "8", "32"]);
    assert_eq!(group.environment(32), None);
}

#[test]
fn an_axis_spans_workers_if_its_degree_does_not_divide_ranks_per_worker() {
    let across = |ranks_per_worker: u32, mesh: Value| {
        let plan = planned(|spec| {
            spec["workers"] =
                json!({"count": 6, "ranksPerWorker": ranks_per_worker, "mesh": mesh, "device": "Cuda"});
        });
        plan.mesh.across_workers(ranks_per_worker)
    };
    assert_eq!(across(4, json!({"sp": 2, "rolloutTp": 2, "dpShard": 12})), []);
    let crossing = [
        ("mesh.sp", 2),
        ("mesh.logprobSp", 2),
        ("mesh.referenceSp", 2),
        ("mesh.criticSp", 2),
        ("mesh.rolloutTp", 2),
    ];
    assert_eq!(across(1, json!({"sp": 2, "rolloutTp": 2})), crossing);
    assert_eq!(across(3, json!({"rolloutTp": 2})), [("mesh.rolloutTp", 2)]);
}
