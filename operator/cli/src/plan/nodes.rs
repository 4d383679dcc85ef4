//! Checks whether a job fits the GPUs of the nodes on which its workers may run. A node's GPUs are read from
//! its labels.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use rlt_api::ValidatedJob;
use rlt_api::spec::Device;
use rlt_plan::{Machine, Models, UnknownGpu, plan_on};

use super::comparison::{Outcome, PlanCheck};
use super::fit;
use crate::cluster::Connection;
use crate::measure::bytes;

/// Labels of a node.
type Labels = BTreeMap<String, String>;

/// Makes one check per kind of GPU; none for a job on CPUs, or if the nodes cannot be listed.
pub(super) async fn ask(
    connection: &Connection,
    job: &ValidatedJob,
    models: &Models,
) -> anyhow::Result<Vec<PlanCheck>> {
    if job.spec().workers.device != Device::Cuda {
        return Ok(Vec::new());
    }
    let nodes = Api::<Node>::all(connection.client.clone()).list(&ListParams::default()).await;
    let labels = nodes.map(|nodes| nodes.items.into_iter().filter_map(|node| node.metadata.labels).collect());
    Ok(labels.map_or_else(|_| Vec::new(), |labels: Vec<Labels>| checks(&labels, job, models)))
}

/// Checks the plan on each kind of GPU of the nodes that the job selects.
fn checks(nodes: &[Labels], job: &ValidatedJob, models: &Models) -> Vec<PlanCheck> {
    let selector = &job.spec().workers.node_selector;
    let is_selected = |labels: &&Labels| selector.iter().all(|(key, value)| labels.get(key) == Some(value));
    let mut kinds: Vec<(Result<Machine, UnknownGpu>, usize)> = Vec::new();
    for machine in nodes.iter().filter(is_selected).filter_map(|labels| Machine::of_node(labels).transpose())
    {
        match kinds.iter_mut().find(|(kind, _)| *kind == machine) {
            Some((_, num_nodes)) => *num_nodes += 1,
            None => kinds.push((machine, 1)),
        }
    }
    kinds.into_iter().map(|(kind, num_nodes)| check(kind, num_nodes, job, models)).collect()
}

fn check(
    kind: Result<Machine, UnknownGpu>,
    num_nodes: usize,
    job: &ValidatedJob,
    models: &Models,
) -> PlanCheck {
    let of = |name: String, outcome| PlanCheck { kind: "GPU".into(), name, outcome };
    let machine = match kind {
        Ok(machine) => machine,
        Err(unknown) => {
            let message = format!("of {num_nodes} nodes: {unknown}; whether the job fits is not known");
            return of(unknown.name, Outcome::Fits { message });
        }
    };
    let plan = plan_on(job, models, &machine);
    let outcome = match (fit::refusal(&plan), &plan.memory, machine.memory_bytes) {
        (Some(message), _, _) => Outcome::Refused { message },
        (None, Some(memory), Some(available)) => Outcome::Fits {
            message: format!(
                "fits, {} of {} in {:?}, on {num_nodes} nodes",
                bytes(memory.peak_device_bytes),
                bytes(available),
                memory.peak_phase
            ),
        },
        _ => Outcome::Fits { message: format!("on {num_nodes} nodes; an estimate needs --model-config") },
    };
    of(machine.name, outcome)
}

#[cfg(test)]
mod tests {
    use rlt_plan::planned_model;

    use super::*;

    fn node(pool: &str, product: &str) -> Labels {
        [("pool", pool), (rlt_plan::PRODUCT_LABEL, product)].map(|(k, v)| (k.into(), v.into())).into()
    }

    #[test]
    fn the_gpus_of_the_nodes_that_a_job_selects_are_planned_for() {
        let manifest = include_str!("../../../../crds/tests/fixtures/arithmetic.yaml").to_owned()
            + "\n  workers: {device: Cuda, nodeSelector: {pool: train}}\n";
        let job = rlt_api::validate(&manifest).unwrap();
        let models = Models { policy: planned_model(&job).unwrap(), reward: Vec::new() };
        let nodes = [
            node("train", "NVIDIA-H100-80GB-HBM3"),
            node("train", "NVIDIA-H100-80GB-HBM3"),
            node("train", "Tesla-V100"),
            node("serve", "NVIDIA-L40S"),
            Labels::from([("pool".into(), "train".into())]),
        ];
        let text: Vec<String> = checks(&nodes, &job, &models).iter().map(PlanCheck::render).collect();
        assert_eq!(text.len(), 2, "{text:?}");
        assert!(text[0].starts_with("= GPU h100: fits, ") && text[0].ends_with("on 2 nodes\n"), "{text:?}");
        assert!(text[1].contains("GPU Tesla-V100: of 1 nodes: GPU \"Tesla-V100\" is not known"), "{text:?}");
        // A MIG slice that is too small is refused with the values that would fit.
        let mut part = node("train", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb");
        part.insert(rlt_plan::MEMORY_LABEL.into(), "660".into());
        let refused = checks(&[part], &job, &models);
        assert!(refused[0].is_refusal(), "{refused:?}");
        assert!(refused[0].render().contains("it would fit with one of\n  spec."), "{refused:?}");
    }
}
