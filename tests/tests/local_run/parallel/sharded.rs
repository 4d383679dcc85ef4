//! FSDP and sequence parallelism: sharded ranks equal one rank, and any number of ranks resumes from their
//! checkpoints.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::job::{Ended, Place, merge, on_files, small_model};
use crate::ranks::{TOLERANCE, difference, on, train};

/// Returns `changes` with the model sharded over `dp_shard` ranks, in sizes that `dp_shard` does not divide,
/// and with the tokens sharded over `sp` ranks.
fn shared_by((dp_shard, sp): (u32, u32), changes: &Value) -> Value {
    let mut shared = uneven(changes);
    merge(&mut shared, json!({ "workers": { "mesh": { "dpShard": dp_shard, "sp": sp } } }));
    shared
}

fn uneven(changes: &Value) -> Value {
    let architecture = json!({
        "family": "Qwen3", "hiddenSize": 22, "intermediateSize": 27, "numLayers": 2, "numHeads": 2, "headDim": 10
    });
    let mut all = json!({ "model": { "architecture": architecture } });
    merge(&mut all, changes.clone());
    all
}

#[test]
fn sharded_ranks_equal_one_rank() {
    let changes = json!({
        "algorithm": { "coldStart": { "steps": 2, "batchSize": 5 } },
        "training": { "steps": 3, "evaluateEvery": 1, "evaluateBefore": true }
    });
    let one = train(1, &uneven(&changes));
    for (count, mesh) in [(4, (2, 1)), (4, (2, 2))] {
        let shared = train(count, &shared_by(mesh, &changes));
        let difference = difference(&one, &shared);
        assert!(difference < TOLERANCE, "{count} ranks by {mesh:?} differ by {difference}");
        let sent = |place: &Place| {
            let steps = place.steps();
            steps.iter().map(|step| step["perf/communication_gb"].as_f64()).collect::<Vec<_>>()
        };
        assert!(sent(&shared).iter().all(|sent| *sent > Some(0.0)), "{:?}", sent(&shared));
        assert!(sent(&one).iter().all(Option::is_none));
    }
}

/// Four ranks divide the heads and widths of the model.
#[test]
fn tensor_parallel_rollouts_equal_one_rank() {
    let architecture = json!({ "intermediateSize": 28, "numHeads": 4, "numKvHeads": 2 });
    let changes = json!({
        "model": { "architecture": architecture },
        "rollout": { "samplesPerPrompt": 3, "heldOut": { "samplesPerPrompt": 2, "temperature": 0.5 } },
        "training": { "steps": 3, "promptsPerStep": 5, "evaluateEvery": 1, "evaluateBefore": true }
    });
    let one = train(1, &uneven(&changes));
    for (count, mesh, rollout_tp) in [(4, (1, 1), 2), (4, (2, 2), 2), (4, (4, 1), 4)] {
        let mut sliced = shared_by(mesh, &changes);
        merge(&mut sliced, json!({ "workers": { "mesh": { "rolloutTp": rollout_tp } } }));
        let sliced = train(count, &sliced);
        let difference = difference(&one, &sliced);
        assert!(difference < TOLERANCE, "{mesh:?} sampling by {rollout_tp} differ by {difference}");
        let texts = |place: &Place| -> Vec<Value> {
            place.completions().iter().map(|one| one["completion"].clone()).collect()
        };
        assert_eq!(texts(&one), texts(&sliced));
    }
}

/// Changes for a job with all roles, in six updates: a critic and a frozen reference, each with its own
/// shards, or an adapter on the actor's shards.
fn roles(kl: &str) -> Value {
    json!({
        "algorithm": { "kind": "PPO", "critic": { "learningRate": 0.01 }, "kl": { "placement": kl, "coefficient": 0.1 } },
        "training": { "promptsPerUpdate": 1, "steps": 2 }
    })
}

#[test]
fn log_probs_reference_and_critic_share_tokens_at_degrees_of_their_own() {
    let one = train(1, &uneven(&roles("Loss")));
    for (mesh, logprob_sp, reference_sp, critic_sp) in [((2, 1), 2, 1, 2), ((1, 2), 1, 2, 1)] {
        let mut shared = shared_by(mesh, &roles("Loss"));
        let degrees = json!({ "logprobSp": logprob_sp, "referenceSp": reference_sp, "criticSp": critic_sp });
        merge(&mut shared, json!({ "workers": { "mesh": degrees.clone() } }));
        let many = train(4, &shared);
        let difference = difference(&one, &many);
        assert!(difference < TOLERANCE, "{mesh:?} and {degrees} differ by {difference}");
    }
}

/// Critic and reference are sharded while the actor is not, unsharded while the actor is sharded, or sharded
/// by another degree.
#[test]
fn a_role_is_held_by_as_many_ranks_as_it_is_given() {
    let one = train(1, &uneven(&roles("Loss")));
    for (mesh, of_reference, of_critic) in [((1, 1), 2, 4), ((4, 1), 2, 1), ((2, 2), 1, 2)] {
        let mut shared = shared_by(mesh, &roles("Loss"));
        let degrees = json!({ "referenceDpShard": of_reference, "criticDpShard": of_critic });
        merge(&mut shared, json!({ "workers": { "mesh": degrees.clone() } }));
        let difference = difference(&one, &train(4, &shared));
        assert!(difference < TOLERANCE, "{mesh:?} and {degrees} differ by {difference}");
    }
}

#[test]
fn every_pass_over_the_model_is_the_same_on_shards() {
    let adapter = json!({ "model": { "lora": { "rank": 4, "alpha": 8 } }, "algorithm": { "kl": { "coefficient": 0.1 } } });
    let sequences = json!({ "algorithm": { "kind": "GSPO" }, "training": { "promptsPerUpdate": 1, "epochsPerBatch": 2 } });
    let batch = json!({ "algorithm": {
        "loss": { "policy": "ClipCov" }, "advantage": { "estimator": "OptimalTokenBaseline" }
    } });
    let (copies, mut adapters) = (roles("Loss"), roles("Reward"));
    let dora = json!({ "rank": 4, "alpha": 8, "dora": true, "learningRateRatio": 4, "rankPattern": { "o_proj": 3 } });
    merge(&mut adapters, json!({ "model": { "lora": dora } }));
    for (count, mesh, changes) in [
        (3, (3, 1), adapter),
        (4, (2, 2), sequences),
        (2, (1, 2), batch),
        (2, (2, 1), copies.clone()),
        (4, (2, 2), copies),
        (3, (3, 1), adapters),
    ] {
        let (one, many) = (train(1, &uneven(&changes)), train(count, &shared_by(mesh, &changes)));
        let difference = difference(&one, &many);
        assert!(difference < TOLERANCE, "{changes} by {mesh:?} differs by {difference}");
    }
}

#[test]
fn a_sharded_checkpoint_is_resumed_by_any_number_of_ranks() {
    // After a cold start, only checkpoints have the weights of the reference.
    let steps = |steps: u32| {
        json!({ "training": { "steps": steps }, "algorithm": {
            "kind": "PPO", "coldStart": { "steps": 1 }, "critic": { "learningRate": 0.01 },
            "kl": { "placement": "Loss", "coefficient": 0.1 }
        } })
    };
    let whole = train(1, &uneven(&steps(5)));
    let resumed = Place::new();
    let roles =
        |reference: u32, critic: u32| json!({ "referenceDpShard": reference, "criticDpShard": critic });
    let meshes = [
        (4, (2, 2), roles(1, 2)),
        (1, (1, 1), json!({})),
        (3, (3, 1), roles(3, 1)),
        (2, (1, 2), json!({})),
        (1, (1, 1), json!({})),
    ];
    for ((count, mesh, of_roles), num_steps) in meshes.into_iter().zip(1..) {
        let mut changes = steps(num_steps);
        merge(&mut changes, json!({ "workers": { "mesh": of_roles } }));
        let says = (num_steps > 1).then(|| format!("resuming after step {}", num_steps - 1));
        let says: Vec<&str> = says.iter().map(String::as_str).collect();
        resumed.train(&on(count, &shared_by(mesh, &changes))).expect(0, &says);
        let checkpoint = resumed.run(&format!("checkpoints/step-{num_steps:06}"));
        let num_files = fs::read_dir(checkpoint).unwrap().count();
        assert_eq!(num_files, count as usize + 2, "a file of each rank, state and manifest");
    }
    let difference = difference(&whole, &resumed);
    assert!(difference < TOLERANCE, "{difference}");
}

/// The pods share no storage: each has a launcher with a separate run folder.
#[test]
fn ranks_that_do_not_see_the_first_one_s_folder_send_it_their_shards_of_a_checkpoint() {
    let changes = json!({ "training": { "steps": 2 } });
    let places = [Place::new(), Place::new()];
    let port = places[0].port();
    let pods = [0, 1].map(|rank| {
        let place = &places[rank];
        let path = place.write(&on(2, &shared_by((2, 1), &changes)));
        let shared = json!({
            "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": port
        });
        fs::write(place.file("environment.json"), shared.to_string()).unwrap();
        let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
        command.arg("env").arg(place.file("environment.json")).args(["launch", "--manifest"]).arg(path);
        command.arg("--output").arg(place.run("")).env("RANK", rank.to_string()).env("WORLD_SIZE", "5");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    let [first, second] = pods.map(|pod| Ended::of(pod.wait_with_output().unwrap()));
    first.expect(0, &["ranks without the run folder: the first rank saves for all"]);
    second.expect(0, &[]);
    assert!(!places[1].run("checkpoints").exists());
    let num_files = fs::read_dir(places[0].run("checkpoints/step-000002")).unwrap().count();
    assert_eq!(num_files, 3, "one file of tensors, state and manifest");
    let difference = difference(&train(1, &uneven(&changes)), &places[0]);
    assert!(difference < TOLERANCE, "{difference}");
    let longer = json!({ "training": { "steps": 3 } });
    places[0].train(&on(1, &uneven(&longer))).expect(0, &["resuming after step 2"]);
}

#[test]
fn degrees_that_do_not_fit_are_refused_by_their_names() {
    let three_slices = json!({ "workers": { "mesh": { "rolloutTp": 3 } } });
    for (mesh, changes, words) in [
        ((3, 1), json!({}), ["spec.workers.mesh.dpShard", "one of 1, 2, 4"]),
        ((2, 4), json!({}), ["spec.workers.mesh.sp", "one of 1, 2"]),
        ((1, 1), three_slices, ["spec.workers.mesh.rolloutTp", "one of 1, 2, 4"]),
    ] {
        Place::new().train(&on(4, &shared_by(mesh, &changes))).expect(2, &words);
    }
}

/// The heads of a model from a folder are known only where the folder can be read.
#[test]
fn a_degree_that_does_not_divide_the_heads_is_refused_with_those_that_do() {
    for (degree, shared) in [("sp", "heads"), ("rolloutTp", "layers")] {
        let place = Place::new();
        let workers = json!({ "workers": { "count": 3, "mesh": { degree: 3 } } });
        let manifest = on_files(small_model(), workers);
        let misfit = format!("spec.workers.mesh.{degree}: 3 ranks cannot share the {shared}");
        let words = [misfit.as_str(), "expected one of 1, 2"];
        place.train(&manifest).expect(78, &words);
        let mut plan = Command::new(rlt_tests::fresh_binary("rlctl"));
        Ended::of(plan.args(["plan", "-f"]).arg(place.write(&manifest)).output().unwrap()).expect(1, &words);
    }
}
