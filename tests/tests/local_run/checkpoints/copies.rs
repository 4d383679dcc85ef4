//! Checkpoints are copied to an object store while the training continues, and a run whose folder is lost
//! resumes from the copies. A store that fails, hangs or is unreachable never stops a run, and never causes
//! the loss of a local checkpoint.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command, Stdio};

use rlt_tests::object_server::{BUCKET, Mood, ObjectServer};
use serde_json::{Value, json};

use crate::job::{ENDLESS, Ended, Place, end_of, merge, signal, tiny_with, wait_until};
use crate::resume::assert_same_run;

fn job(steps: u32, uri: &str) -> Value {
    tiny_with(json!({ "training": { "steps": steps }, "checkpoint": { "uri": uri, "keep": 2 } }))
}

/// Returns `job` with two seconds for its last copy, for stores that never accept it. A store that does may
/// need longer on a busy machine.
fn hasty(mut job: Value) -> Value {
    merge(&mut job["spec"], json!({ "runPolicy": { "terminationGracePeriodSeconds": 2 } }));
    job
}

fn on_server(steps: u32) -> Value {
    job(steps, &format!("s3://{BUCKET}/runs/one"))
}

fn start(place: &Place, manifest: &Value, server: &ObjectServer) -> Child {
    place.start_in(manifest, server.environment())
}

fn train(place: &Place, manifest: &Value, server: &ObjectServer) -> Ended {
    Ended::of(start(place, manifest, server).wait_with_output().unwrap())
}

/// Names the checkpoints of the run `runs/one` that are complete in a store, which means that they have a
/// manifest.
pub(crate) fn whole_of(keys: &[String]) -> BTreeSet<String> {
    let names = keys.iter().filter_map(|key| key.strip_prefix("runs/one/")?.strip_suffix("/manifest.json"));
    names.map(str::to_owned).collect()
}

fn whole_copies(server: &ObjectServer) -> BTreeSet<String> {
    whole_of(&server.keys())
}

fn local(place: &Place) -> BTreeSet<String> {
    let entries = fs::read_dir(place.run("checkpoints")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_run_without_its_folder_resumes_from_the_newest_copy() {
    let (server, whole, first, second) =
        (ObjectServer::start().unwrap(), Place::new(), Place::new(), Place::new());
    whole.train(&tiny_with(json!({ "training": { "steps": 6 } }))).expect(0, &[]);
    train(&first, &on_server(3), &server).expect(0, &[]);
    assert!(whole_copies(&server).contains("step-000003"), "{:?}", server.keys());
    let said = ["fetched checkpoint step-000003", "resuming after step 3"];
    train(&second, &on_server(6), &server).expect(0, &said);
    assert!(whole.weights() == second.weights(), "the exported weights differ");
    let steps: Vec<u64> = second.steps().iter().map(|step| step["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [4, 5, 6]);
    assert!(whole_copies(&server).len() <= 2, "as many copies stay as checkpoints");
    // The first steps may end before the store has answered what copies it has.
    let steps = second.steps();
    let mut copied = steps.iter().filter_map(|step| step["checkpoint/copied_step"].as_f64());
    assert!(copied.all(|step| step >= 3.0), "{steps:?}");
}

#[test]
fn a_store_that_fails_and_hangs_up_costs_nothing_but_patience() {
    let (server, whole, place) = (ObjectServer::start().unwrap(), Place::new(), Place::new());
    whole.train(&tiny_with(json!({ "training": { "steps": 12 } }))).expect(0, &[]);
    server.become_(Mood::HangingUp);
    let mut patient = on_server(12);
    merge(&mut patient["spec"], json!({ "runPolicy": { "terminationGracePeriodSeconds": 300 } }));
    let child = start(&place, &patient, &server);
    place.wait_for_steps(12);
    assert!(whole_copies(&server).is_empty(), "all steps are done without the store");
    // A run makes two requests at its start. The others are tries to write the owner of the prefix, until all
    // of them have failed.
    wait_until("fourteen requests", || server.num_requests() >= 14);
    server.become_(Mood::Moody);
    end_of(child).expect(0, &["a checkpoint has no copy yet, training continues"]);
    assert!(whole_copies(&server).contains("step-000012"));
    assert_same_run(&whole, &place);
}

#[test]
fn a_run_is_not_complete_before_its_last_checkpoint_is_copied() {
    let (server, place) = (ObjectServer::start().unwrap(), Place::new());
    server.become_(Mood::Silent);
    let said = ["step 4 is not copied to `s3://checkpoints/runs/one` yet", "exit code 75: RetryableIo"];
    train(&place, &hasty(on_server(4)), &server).expect(75, &said);
    assert_eq!(place.steps().len(), 4);
    assert!(local(&place).contains("step-000004"));
    assert!(!place.run("result.json").exists());
    server.become_(Mood::Willing);
    train(&place, &on_server(4), &server).expect(0, &["resuming after step 4"]);
    assert!(whole_copies(&server).contains("step-000004"));
    assert_eq!(place.steps().len(), 4);
}

#[test]
fn a_store_that_hangs_does_not_keep_a_run_from_stopping_in_time() {
    let (server, place) = (ObjectServer::start().unwrap(), Place::new());
    server.become_(Mood::Silent);
    let child = start(&place, &hasty(on_server(ENDLESS)), &server);
    place.wait_for_steps(2);
    signal(&child, "TERM");
    // The store never answers while a test runs.
    end_of(child).expect(80, &["is not copied to"]);
}

#[test]
fn a_copy_that_a_kill_cut_off_does_not_count() {
    let (server, first, second) = (ObjectServer::start().unwrap(), Place::new(), Place::new());
    train(&first, &on_server(2), &server).expect(0, &[]);
    // Only the shard of the next checkpoint is uploaded.
    server.become_(Mood::WillingFor(1));
    let child = start(&first, &on_server(ENDLESS), &server);
    let is_third = |key: &String| &**key > "runs/one/step-000003";
    wait_until("a file of the third step's copy", || server.keys().iter().any(is_third));
    signal(&child, "KILL");
    child.wait_with_output().unwrap();
    let newest = whole_copies(&server).into_iter().next_back().unwrap();
    assert_eq!(newest, "step-000002", "{:?}", server.keys());
    server.become_(Mood::Willing);
    train(&second, &on_server(4), &server).expect(0, &["fetched checkpoint step-000002"]);
    assert!(whole_copies(&server).contains("step-000004"));
    assert!(server.keys().len() <= 7, "what was cut off is swept: {:?}", server.keys());
}

/// One prefix belongs to one run. Neither a job of another name nor a job with other settings fetches,
/// replaces or removes its copies, even with `--overwrite`.
#[test]
fn a_job_that_is_given_the_prefix_of_another_run_ends_before_it_touches_the_copies() {
    let server = ObjectServer::start().unwrap();
    train(&Place::new(), &on_server(3), &server).expect(0, &[]);
    let before = server.keys();
    assert!(before.contains(&"runs/one/run.json".to_owned()), "{before:?}");
    let (mut renamed, mut faster) = (on_server(6), on_server(6));
    merge(&mut renamed, json!({ "metadata": { "name": "another" } }));
    merge(&mut faster["spec"], json!({ "training": { "optimizer": { "learningRate": 0.5 } } }));
    for (manifest, said) in [(&renamed, "this job is `another`"), (&faster, "with other settings")] {
        let place = Place::new();
        train(&place, manifest, &server).expect(78, &["runs/one", said]);
        assert!(!place.run("result.json").exists() && !place.run("export").exists());
        let mut afresh = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
        afresh.args(["launch", "--overwrite", "--manifest"]).arg(place.file("job.yaml"));
        afresh.arg("--output").arg(place.run("")).envs(server.environment());
        Ended::of(afresh.output().unwrap()).expect(78, &["runs/one", said]);
        assert_eq!(server.keys(), before);
    }
}

#[test]
fn an_invalid_checkpoint_uri_ends_a_run_before_it_starts() {
    let server = ObjectServer::start().unwrap();
    let nowhere = job(2, "s3://nowhere/runs/one");
    let said = ["spec.checkpoint.uri", "the bucket of `s3://nowhere/runs/one` does not exist"];
    train(&Place::new(), &nowhere, &server).expect(78, &said);
    server.become_(Mood::Refusing);
    train(&Place::new(), &on_server(2), &server).expect(78, &["check the credentials in the environment"]);
    Place::new().train(&job(2, "ftp://host/folder")).expect(2, &["spec.checkpoint.uri", "s3://"]);
}

#[test]
fn a_run_without_folder_and_store_cannot_be_resumed() {
    let (server, place) = (ObjectServer::start().unwrap(), Place::new());
    train(&place, &on_server(2), &server).expect(0, &[]);
    // No server listens on port 1.
    let alone = |place: &Place, manifest: &Value| {
        let path = place.write(manifest);
        let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
        command.args(["launch", "--manifest"]).arg(path).arg("--output").arg(place.run(""));
        command.envs(server.environment()).env("AWS_ENDPOINT", "http://127.0.0.1:1");
        Ended::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap())
    };
    alone(&Place::new(), &hasty(on_server(2))).expect(75, &["runs/one", "exit code 75"]);
    let said = ["copies of checkpoints could not be listed", "resuming after step 2", "is not copied to"];
    alone(&place, &hasty(on_server(4))).expect(75, &said);
    assert_eq!(place.steps().len(), 4, "the local checkpoint was enough to resume");
}

#[test]
fn a_run_that_starts_afresh_forgets_its_copies() {
    let (server, place) = (ObjectServer::start().unwrap(), Place::new());
    train(&place, &on_server(3), &server).expect(0, &[]);
    let mut other = on_server(2);
    merge(&mut other["spec"], json!({ "training": { "seed": 5 } }));
    let path = place.write(&other);
    let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
    command.args(["launch", "--overwrite", "--manifest"]).arg(path).arg("--output").arg(place.run(""));
    let ended = Ended::of(command.envs(server.environment()).output().unwrap()).expect(0, &[]);
    assert!(!ended.stderr.contains("fetched"), "{}", ended.stderr);
    let copies = whole_copies(&server);
    assert!(copies.contains("step-000002") && !copies.contains("step-000003"), "{copies:?}");
}
