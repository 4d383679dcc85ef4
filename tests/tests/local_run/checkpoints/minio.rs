//! Copies of checkpoints in a real object store, which is slow, disconnected during an upload, and killed.

use std::collections::BTreeSet;
use std::process::Child;

use rlt_cluster::Minio;
use rlt_tests::relay::{Flow, Relay};
use serde_json::{Value, json};

use crate::copies::whole_of;
use crate::job::{ENDLESS, Ended, Place, signal, tiny_with, wait_until};

/// A job with 1.1 million weights. A checkpoint has three times as many numbers, which are uploaded in two
/// parts.
fn job(steps: u32) -> Value {
    tiny_with(json!({
        "model": { "architecture": { "hiddenSize": 192, "intermediateSize": 768, "numLayers": 2 } },
        "training": { "steps": steps },
        "checkpoint": { "uri": format!("s3://{}/runs/one", Minio::BUCKET), "keep": 3 },
        "runPolicy": { "terminationGracePeriodSeconds": 300 }
    }))
}

struct Store {
    minio: Minio,
    relay: Relay,
}

impl Store {
    fn start() -> Option<Self> {
        let minio = Minio::start().unwrap()?;
        let relay = Relay::to(&minio.address()).unwrap();
        Some(Self { minio, relay })
    }

    fn begin(&self, place: &Place, manifest: &Value) -> Child {
        place.start_in(manifest, self.minio.environment(self.relay.address()))
    }

    fn train(&self, place: &Place, manifest: &Value) -> Ended {
        Ended::of(self.begin(place, manifest).wait_with_output().unwrap())
    }

    fn whole_copies(&self) -> BTreeSet<String> {
        whole_of(&self.minio.keys())
    }
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_slow_store_takes_a_checkpoint_in_parts_and_gives_it_back() {
    let Some(store) = Store::start() else { return };
    let (whole, first, second) = (Place::new(), Place::new(), Place::new());
    let mut alone = job(3);
    alone["spec"]["checkpoint"] = json!({ "everySteps": 1 });
    whole.train(&alone).expect(0, &[]);
    // Four parts are uploaded at a time, so the shard of 13 MB takes about a second.
    store.relay.set(Flow::PerSecond(6 << 20));
    store.train(&first, &job(2)).expect(0, &[]);
    assert!(store.whole_copies().contains("step-000002"), "{:?}", store.minio.keys());
    store.relay.set(Flow::Free);
    store.train(&second, &job(3)).expect(0, &["fetched checkpoint step-000002", "resuming after step 2"]);
    assert!(whole.weights() == second.weights(), "the exported weights differ");
}

#[test]
fn an_interrupted_upload_is_no_checkpoint_and_a_failing_store_stops_no_run() {
    let Some(mut store) = Store::start() else { return };
    let (first, second) = (Place::new(), Place::new());
    store.train(&first, &job(1)).expect(0, &[]);
    assert_eq!(store.whole_copies(), names(&["step-000001"]));
    // A part of the next shard is uploaded, and some of the one after it.
    store.relay.set(Flow::Only(10 << 20));
    let child = store.begin(&first, &job(ENDLESS));
    wait_until("the end of what the relay carries", || store.relay.is_dry());
    signal(&child, "KILL");
    child.wait_with_output().unwrap();
    store.relay.set(Flow::Free);
    assert_eq!(store.whole_copies(), names(&["step-000001"]), "{:?}", store.minio.keys());

    let child = store.begin(&second, &job(ENDLESS));
    second.wait_for_steps(1);
    store.minio.kill();
    second.wait_for_steps(second.steps().len() + 10);
    store.minio.restart().unwrap();
    signal(&child, "TERM");
    Ended::of(child.wait_with_output().unwrap()).expect(80, &["fetched checkpoint step-000001"]);
    let last = second.last_step();
    assert_eq!(second.steps().len() as u64, last - 1, "none twice");
    let copies = store.whole_copies();
    assert!(copies.contains(&format!("step-{last:06}")) && copies.len() <= 3, "{last}: {copies:?}");
}
