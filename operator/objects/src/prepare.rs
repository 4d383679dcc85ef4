//! Preparation of a resource: a validated job and its plan, once for every generation of its specification.

mod accepted;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rlt_api::status::{AcceptedStatus, ResolvedNumbers};
use rlt_api::{Reason, ValidatedJob};
use rlt_models::ModelConfigError;
use rlt_plan::{Plan, WorkerGroup};

use crate::build::PodSettings;
use crate::job::Job;
use crate::pod_defaults::{NAME, NamespaceDefaults};
use crate::pod_template;
use crate::worker_id::WorkerId;

/// A valid job with its plan.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The specification with every default filled in.
    pub job: ValidatedJob,
    /// Worker groups, batches, memory.
    pub plan: Plan,
    /// Digests of the specification, by which another operator finds it again.
    pub accepted: AcceptedStatus,
    /// The digest of the manifest that workers read, once it was made.
    pub manifest_digest: OnceLock<String>,
}

/// An error while a job is prepared.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is its message")]
pub enum Invalid {
    #[error("the specification has {} problem(s): {}", .0.len(), .0.join("; "))]
    Problems(Vec<String>),
    #[error("spec.model.architecture is impossible: {0}")]
    Model(Arc<ModelConfigError>),
    #[error("ConfigMap {NAME} of the namespace cannot be parsed: {}", .0.join("; "))]
    Defaults(Vec<String>),
    #[error("the job requests privileges that are not allowed: {}", .0.join("; "))]
    NotAllowed(Vec<String>),
}

impl Invalid {
    /// The reason in the condition.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Problems(_) | Self::Model(_) => Reason::InvalidSpec,
            Self::Defaults(_) => Reason::InvalidDefaults,
            Self::NotAllowed(_) => Reason::PodNotAllowed,
        }
    }
}

impl Prepared {
    /// Validates and plans a job without defaults of a cluster or limits to its pods.
    ///
    /// # Errors
    /// The problems of its specification.
    pub fn new(job: &Job) -> Result<Self, Invalid> {
        Self::of_manifest(job, &job.manifest())
    }

    /// Validates and plans a job over the defaults of its namespace and cluster, within the privileges that
    /// the cluster allows.
    ///
    /// # Errors
    /// The problems of its specification or of the defaults, or forbidden privileges.
    pub fn in_cluster(
        job: &Job,
        pods: &PodSettings,
        namespace: Option<&NamespaceDefaults>,
    ) -> Result<Self, Invalid> {
        let prepared = Self::over_defaults(job, pods, namespace)?;
        let refused = pods.privileges.refused(job.namespace(), &prepared.job.spec().workers);
        if refused.is_empty() { Ok(prepared) } else { Err(Invalid::NotAllowed(refused)) }
    }

    /// Validates and plans a job over the defaults of its namespace and cluster, whatever privileges are
    /// allowed.
    fn over_defaults(
        job: &Job,
        pods: &PodSettings,
        namespace: Option<&NamespaceDefaults>,
    ) -> Result<Self, Invalid> {
        let of_namespace = match namespace.map(|namespace| &namespace.defaults) {
            Some(Err(problems)) => return Err(Invalid::Defaults(problems.clone())),
            Some(Ok(defaults)) => Some(defaults).filter(|defaults| !defaults.is_empty()),
            None => None,
        };
        let of_cluster = Some(&pods.defaults).filter(|defaults| !defaults.is_empty());
        match (of_namespace, of_cluster) {
            (None, None) => Self::new(job),
            _ => Self::of_manifest(job, &job.manifest_over(of_namespace, of_cluster)),
        }
    }

    fn of_manifest(job: &Job, manifest: &str) -> Result<Self, Invalid> {
        let validated = rlt_api::validate_with(manifest, pod_template::problems_of).map_err(|problems| {
            let without_place = |problem: rlt_api::Problem| {
                rlt_api::Problem { line: None, column: None, ..problem }.to_string()
            };
            Invalid::Problems(problems.into_iter().map(without_place).collect())
        })?;
        Self::planned(validated, job.generation(), accepted::spec_digest(job))
    }

    fn planned(job: ValidatedJob, generation: i64, spec_digest: String) -> Result<Self, Invalid> {
        let model = rlt_plan::planned_model(&job).map_err(|error| Invalid::Model(Arc::new(error)))?;
        let plan = rlt_plan::plan(&job, &rlt_plan::Models { policy: model, reward: Vec::new() });
        let accepted = accepted::digests(&job, generation, spec_digest);
        Ok(Self { job, plan, accepted, manifest_digest: OnceLock::new() })
    }

    /// GPUs that each worker of the first group asks the cluster for.
    pub fn gpus_per_worker(&self) -> u32 {
        self.plan.worker_groups.first().map_or(0, WorkerGroup::gpus_per_worker)
    }

    /// A group of workers by its name.
    pub fn group(&self, name: &str) -> Option<&WorkerGroup> {
        self.plan.worker_groups.iter().find(|group| group.name == name)
    }

    /// Peak bytes of the node's memory that all ranks of a worker need together.
    fn peak_memory_bytes(&self) -> Option<u64> {
        let ranks = self.plan.worker_groups.first().map_or(1, |group| group.ranks_per_worker);
        self.plan.memory.as_ref().map(|memory| memory.peak_host_bytes * u64::from(ranks))
    }

    /// The numbers of the plan that a status shows.
    pub fn resolved_numbers(&self) -> ResolvedNumbers {
        let batch = &self.plan.batch;
        ResolvedNumbers {
            world_size: self.plan.mesh.world_size(),
            gpus_per_worker: self.gpus_per_worker(),
            prompts_per_step: batch.prompts_per_step,
            samples_per_step: batch.samples_per_step,
            updates_per_step: batch.updates_per_step,
            peak_memory_bytes: self.peak_memory_bytes(),
        }
    }
}

/// The outcome of preparing each job's latest generation.
#[derive(Debug, Default)]
pub struct PreparedJobs {
    by_uid: Mutex<HashMap<String, Entry>>,
}

#[derive(Debug)]
struct Entry {
    generation: i64,
    /// The version of the defaults of the namespace.
    defaults: Option<String>,
    outcome: Result<Arc<Prepared>, Invalid>,
    /// The specification that the job began with, where it continues under that one instead.
    began_with: Option<Arc<Prepared>>,
}

impl PreparedJobs {
    /// The prepared job, from memory where its generation and the defaults of its namespace are known. A
    /// prepared job keeps its preparation while the defaults cannot be parsed.
    ///
    /// # Errors
    /// The problems of its specification, or of the defaults.
    pub fn get(
        &self,
        job: &Job,
        pods: &PodSettings,
        namespace: Option<&NamespaceDefaults>,
    ) -> Result<Arc<Prepared>, Invalid> {
        let generation = job.generation();
        let version = namespace.map(|namespace| namespace.version.clone());
        let known = {
            let entries = self.lock();
            let known = entries.get(job.uid()).filter(|known| known.generation == generation);
            known.map(|known| (known.defaults == version, known.outcome.clone()))
        };
        let outcome = match known {
            Some((true, outcome)) => return outcome,
            Some((false, Ok(before))) if namespace.is_some_and(|namespace| namespace.defaults.is_err()) => {
                Ok(before)
            }
            _ => Prepared::in_cluster(job, pods, namespace).map(Arc::new),
        };
        let entry = Entry { generation, defaults: version, outcome: outcome.clone(), began_with: None };
        self.lock().insert(job.uid().to_owned(), entry);
        outcome
    }

    /// Returns the specification that a job began with, if [`Self::keep`] has stored it since the job's
    /// specification or defaults changed.
    pub fn began_with(&self, job: &Job) -> Option<Arc<Prepared>> {
        let entries = self.lock();
        let entry = entries.get(job.uid()).filter(|entry| entry.generation == job.generation())?;
        entry.began_with.clone()
    }

    /// Stores the specification that a job began with until its specification or defaults change.
    pub fn keep(&self, job: &Job, began_with: Arc<Prepared>) {
        let mut entries = self.lock();
        let entry = entries.get_mut(job.uid()).filter(|entry| entry.generation == job.generation());
        if let Some(entry) = entry {
            entry.began_with = Some(began_with);
        }
    }

    /// The ranks that a worker of a job runs; none where its latest generation is not known or invalid, or
    /// has no such group.
    pub fn ranks_of(&self, uid: &str, worker: &WorkerId) -> Option<Range<u32>> {
        let entries = self.lock();
        let entry = entries.get(uid)?;
        let prepared = entry.began_with.as_ref().or(entry.outcome.as_ref().ok())?;
        let group = prepared.group(&worker.group)?;
        let first_rank = group.first_rank(worker.idx);
        Some(first_rank..first_rank.saturating_add(group.ranks_per_worker))
    }

    /// Forgets all jobs, because something changed that their objects contain.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Forgets a job that is gone.
    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Forgets the jobs whose UID is none of those that are there.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.lock().retain(|uid, _| is_there(uid));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
