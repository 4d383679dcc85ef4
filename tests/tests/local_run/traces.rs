//! OpenTelemetry traces of a run, if its environment turns them on; no collector delays or ends it.

use std::process::{Command, Stdio};
use std::time::Duration;

use rlt_tests::collector::{Collector, Received};
use serde_json::{Value, json};

use crate::job::{Ended, Place, end_of, tiny, tiny_with};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn command(place: &Place, manifest: &Value, collector: &Collector) -> Command {
    let path = place.write(manifest);
    let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
    command.args(["launch", "--manifest"]).arg(path).arg("--output").arg(place.run(""));
    command.envs(collector.environment()).env("TRACEPARENT", format!("00-{TRACE}-{PARENT}-01"));
    command
}

fn train(place: &Place, manifest: &Value, collector: &Collector) -> Ended {
    Ended::of(command(place, manifest, collector).output().unwrap())
}

fn named<'a>(spans: &'a [Received], name: &str) -> Vec<&'a Received> {
    spans.iter().filter(|span| span.name == name).collect()
}

#[test]
fn a_run_is_a_span_of_its_parents_trace_with_its_steps_and_their_phases() {
    let (place, collector) = (Place::new(), Collector::start().unwrap());
    let changes = json!({ "algorithm": { "coldStart": { "steps": 2, "batchSize": 2 } } });
    train(&place, &tiny_with(changes), &collector).expect(0, &[TRACE]);
    let spans = collector.spans();
    assert!(spans.iter().all(|span| span.trace == TRACE && span.service == "rlt-trainer"), "{spans:#?}");
    let [run] = named(&spans, "run")[..] else { panic!("one run in {spans:#?}") };
    assert_eq!((run.parent.as_str(), run.attribute("job")), (PARENT, Some("tiny")));
    let steps = named(&spans, "step");
    let numbers: Vec<_> = steps.iter().map(|step| step.attribute("step").unwrap()).collect();
    assert_eq!(numbers, ["1", "2", "3"]);
    assert_eq!(named(&spans, "cold start step").len(), 2);
    for step in steps {
        assert_eq!(step.parent, run.id);
        let children: Vec<&Received> = spans.iter().filter(|span| span.parent == step.id).collect();
        for phase in ["update_weights", "gen", "reward", "adv", "update_actor"] {
            assert!(children.iter().any(|child| child.name == phase), "no {phase} in {children:#?}");
        }
        let in_phases: Duration = children.iter().map(|child| child.duration).sum();
        assert!(in_phases <= step.duration, "{in_phases:?} of {:?}", step.duration);
    }
    assert_eq!(named(&spans, "export").len(), 1);
    assert!(!named(&spans, "save_checkpoint").is_empty());
}

#[test]
fn the_ranks_of_one_run_are_in_one_trace() {
    let (place, collector) = (Place::new(), Collector::start().unwrap());
    let changes = json!({ "training": { "steps": 1 }, "workers": { "count": 2 } });
    train(&place, &tiny_with(changes), &collector).expect(0, &[]);
    let spans = collector.spans();
    let [launch] = named(&spans, "launch")[..] else { panic!("one launch in {spans:#?}") };
    assert_eq!((launch.trace.as_str(), launch.parent.as_str()), (TRACE, PARENT));
    let runs = named(&spans, "run");
    let mut ranks: Vec<_> = runs.iter().map(|run| run.attribute("rank").unwrap()).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, ["0", "1"]);
    assert!(runs.iter().all(|run| run.parent == launch.id), "{runs:#?}");
}

/// The exporter waits half an hour for one answer here, longer than the test waits for the run: only the
/// limit for the last spans, at the end of the process, ends the run in time.
#[test]
fn a_collector_that_never_answers_costs_a_run_two_seconds_at_its_end_and_nothing_else() {
    let (quiet, silent) = (Place::new(), Place::new());
    quiet.train(&tiny()).expect(0, &[]);
    let mut followed = command(&silent, &tiny(), &Collector::silent().unwrap());
    followed.env("OTEL_EXPORTER_OTLP_TIMEOUT", "1800000").env_remove("OTEL_BSP_EXPORT_TIMEOUT");
    followed.stdout(Stdio::piped()).stderr(Stdio::piped());
    end_of(followed.spawn().unwrap()).expect(0, &["traces are lost"]);
    assert_eq!(quiet.weights(), silent.weights());
}

#[test]
fn a_collector_that_takes_nothing_is_named_once_and_the_last_spans_do_not_wait_for_it() {
    let (place, collector) = (Place::new(), Collector::silent().unwrap());
    let mut command = command(&place, &tiny(), &collector);
    command.envs([("OTEL_BSP_SCHEDULE_DELAY", "20"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "20")]);
    let ended = Ended::of(command.output().unwrap()).expect(0, &["because the collector did not take them"]);
    assert_eq!(ended.stderr.matches("the collector does not accept traces").count(), 1, "{}", ended.stderr);
}
