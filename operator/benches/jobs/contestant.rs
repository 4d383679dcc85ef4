//! The contestants: the same gang of pods, as different kinds of objects.

use std::fmt;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use rlt_objects::args::PullPolicy;
use rlt_objects::build::{self, Authority, BuildInput, ChannelAccess, Settings};
use rlt_objects::job::Job;
use rlt_objects::prepare::Prepared;
use serde_json::{Value, json};

use crate::restart::End;

/// The size of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gang {
    pub(crate) num_pods: usize,
    /// Processes of an RLTrainingJob's pod. The others start theirs by a launcher of their own, unseen by the
    /// API.
    pub(crate) ranks_per_pod: usize,
}

/// The gang of most measurements.
pub(crate) const EIGHT_PODS: Gang = Gang::of_pods(8);
/// A job of 4 nodes with 8 GPUs each.
pub(crate) const FOUR_NODES: Gang = Gang { num_pods: 4, ranks_per_pod: 8 };

impl Gang {
    /// Pods of one process.
    pub(crate) const fn of_pods(num_pods: usize) -> Self {
        Self { num_pods, ranks_per_pod: 1 }
    }

    /// Reads `8` (pods) or `4x8` (pods x ranks of each).
    pub(crate) fn parse(word: &str) -> Option<Self> {
        match word.split_once('x') {
            Some((pods, ranks)) => {
                Some(Self { num_pods: pods.parse().ok()?, ranks_per_pod: ranks.parse().ok()? })
            }
            None => Some(Self::of_pods(word.parse().ok()?)),
        }
    }
}

impl fmt::Display for Gang {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ranks_per_pod {
            1 => write!(formatter, "{}", self.num_pods),
            ranks => write!(formatter, "{} of {ranks} ranks", self.num_pods),
        }
    }
}

/// One way to run a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contestant {
    /// An RLTrainingJob, whose pods this operator makes.
    Operator,
    /// An indexed batch Job.
    Job,
    /// An indexed batch Job of the pods that an RLTrainingJob has.
    TrainerJob,
    /// A JobSet of one such Job.
    JobSet,
}

impl Contestant {
    pub(crate) const ALL: [Self; 4] = [Self::Operator, Self::Job, Self::TrainerJob, Self::JobSet];

    /// Name of the contestant in a report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Operator => "RLTrainingJob",
            Self::Job => "batch Job",
            Self::TrainerJob => "batch Job of trainer pods",
            Self::JobSet => "JobSet",
        }
    }

    /// Name of the contestant in the bench's settings.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Job => "job",
            Self::TrainerJob => "trainer-job",
            Self::JobSet => "jobset",
        }
    }

    /// The user by whose name its controller calls.
    pub(crate) fn user(self) -> &'static str {
        match self {
            Self::Operator => "system:serviceaccount:rl-operator:rl-operator",
            Self::Job | Self::TrainerJob => "system:serviceaccount:kube-system:job-controller",
            Self::JobSet => "system:serviceaccount:jobset-system:jobset-controller-manager",
        }
    }

    pub(crate) fn resource(self) -> ApiResource {
        let (group, version, kind) = match self {
            Self::Operator => ("rltraining.dev", "v1alpha1", "RLTrainingJob"),
            Self::Job | Self::TrainerJob => ("batch", "v1", "Job"),
            Self::JobSet => ("jobset.x-k8s.io", "v1alpha2", "JobSet"),
        };
        ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
    }

    /// A gang whose pods request 100m CPU and 64Mi.
    pub(crate) fn manifest(self, name: &str, gang: Gang) -> DynamicObject {
        let resource = self.resource();
        let spec = match self {
            Self::Operator => training(gang),
            Self::Job | Self::TrainerJob => batch_job(gang.num_pods, 6, &self.pod()),
            Self::JobSet => json!({
                // Where one pod is lost, the whole gang starts again, as ours does.
                "failurePolicy": { "maxRestarts": 3 },
                "replicatedJobs": [{ "name": "workers", "replicas": 1, "template": { "spec": batch_job(gang.num_pods, 0, &self.pod()) } }]
            }),
        };
        let object = json!({
            "apiVersion": resource.api_version, "kind": resource.kind, "metadata": { "name": name }, "spec": spec
        });
        serde_json::from_value(object).unwrap()
    }

    /// The specification of one of its pods, without what only a gang has.
    pub(crate) fn pod(self) -> Value {
        match self {
            Self::Operator | Self::TrainerJob => serde_json::to_value(trainer_pod()).unwrap(),
            Self::Job | Self::JobSet => small_pod(),
        }
    }

    /// Whether the status says that all pods run.
    pub(crate) fn reports_running(self, object: &DynamicObject, num_pods: usize) -> bool {
        let status = &object.data["status"];
        match self {
            Self::Operator => {
                let conditions = status["conditions"].as_array().into_iter().flatten();
                let mut ready = conditions.filter(|condition| condition["type"] == "PodsReady");
                ready.any(|condition| condition["status"] == "True")
            }
            Self::Job | Self::TrainerJob => status["ready"] == num_pods,
            Self::JobSet => status["replicatedJobsStatus"][0]["ready"] == 1,
        }
    }

    /// Pods that are made when one of a gang is lost.
    pub(crate) fn pods_after_loss(self, gang: Gang) -> usize {
        match self {
            Self::Operator | Self::JobSet => gang.num_pods,
            Self::Job | Self::TrainerJob => 1,
        }
    }

    /// Whether jobs with a namespace each are measured, too: of batch Jobs those of small pods.
    pub(crate) fn is_measured_in_namespaces(self) -> bool {
        matches!(self, Self::Operator | Self::Job)
    }

    /// Ways to end the contestant's controller that this benchmark can measure.
    pub(crate) fn ends(self) -> &'static [End] {
        match self {
            Self::Operator => &[End::WithoutStandby, End::AskedToStop, End::Killed],
            Self::Job | Self::TrainerJob => &[],
            // Two of its processes can not share this machine: each takes the webhook's port.
            Self::JobSet => &[End::WithoutStandby],
        }
    }
}

fn training(gang: Gang) -> Value {
    let example = include_str!("../../../examples/quickstart/job.yaml");
    let mut manifest: Value = serde_saphyr::from_str(example).unwrap();
    manifest["spec"]["workers"] = json!({
        "count": gang.num_pods, "ranksPerWorker": gang.ranks_per_pod, "device": "Cpu",
        "resources": { "cpu": "100m", "memory": "64Mi" }
    });
    manifest["spec"]["training"]["promptsPerStep"] = json!(64);
    manifest["spec"].take()
}

fn batch_job(num_pods: usize, retries: usize, pod: &Value) -> Value {
    json!({
        "parallelism": num_pods, "completions": num_pods, "completionMode": "Indexed", "backoffLimit": retries,
        "template": { "spec": pod }
    })
}

/// One container, which is all that a pod needs.
pub(crate) fn small_pod() -> Value {
    let requests = json!({ "cpu": "100m", "memory": "64Mi" });
    json!({
        "restartPolicy": "Never",
        "containers": [{ "name": "main", "image": "rlt.local/none", "resources": { "requests": requests } }]
    })
}

/// Returns a pod as the operator makes it, but without account and host name, which only an RLTrainingJob
/// has.
fn trainer_pod() -> PodSpec {
    let mut manifest = serde_json::to_value(Contestant::Operator.manifest("gang", EIGHT_PODS)).unwrap();
    manifest["metadata"]["namespace"] = json!("crowd");
    let job: Job = serde_json::from_value(manifest).unwrap();
    let prepared = Prepared::new(&job).unwrap();
    let address = "https://rl-operator-channel.rl-operator.svc:8443".into();
    let settings = Settings {
        trainer_image: "rlt.local/none".into(),
        trainer_cuda_image: None,
        pull_policy: PullPolicy::IfNotPresent,
        channel: Some(ChannelAccess { address, authority: Authority::default() }),
        traces: Vec::new(),
        pods: Default::default(),
    };
    let group = &prepared.plan.worker_groups[0];
    let pod: Pod =
        build::pod(&BuildInput { job: &job, prepared: &prepared, settings: &settings }, 1, group, 1);
    PodSpec { service_account_name: None, hostname: None, subdomain: None, ..pod.spec.unwrap() }
}
