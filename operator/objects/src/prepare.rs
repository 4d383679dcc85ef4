//! Validation and planning of a job, with a cache of the result for its latest generation.

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
    /// Plan of the job's worker groups, batches and memory.
    pub plan: Plan,
    /// Digests by which a later operator process recognizes the specification.
    pub accepted: AcceptedStatus,
    /// Digest of the job's ConfigMap, once that was built.
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
    /// Returns the reason for the job's condition.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Problems(_) | Self::Model(_) => Reason::InvalidSpec,
            Self::Defaults(_) => Reason::InvalidDefaults,
            Self::NotAllowed(_) => Reason::PodNotAllowed,
        }
    }
}

impl Prepared {
    /// Validates and plans a job without the defaults of its namespace and cluster, whatever privileges it
    /// requests.
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

    /// Returns the number of GPUs that each worker of the first group requests.
    pub fn gpus_per_worker(&self) -> u32 {
        self.plan.worker_groups.first().map_or(0, WorkerGroup::gpus_per_worker)
    }

    /// Returns the group of workers with this name.
    pub fn group(&self, name: &str) -> Option<&WorkerGroup> {
        self.plan.worker_groups.iter().find(|group| group.name == name)
    }

    /// Returns the peak host memory of all ranks of a worker in the first group, in bytes.
    fn peak_memory_bytes(&self) -> Option<u64> {
        let ranks = self.plan.worker_groups.first().map_or(1, |group| group.ranks_per_worker);
        self.plan.memory.as_ref().map(|memory| memory.peak_host_bytes * u64::from(ranks))
    }

    /// Returns the numbers of the plan for the job's status.
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

/// Cache of the outcome of preparing each job's latest generation.
#[derive(Debug, Default)]
pub struct PreparedJobs {
    by_uid: Mutex<HashMap<String, Entry>>,
}

#[derive(Debug)]
struct Entry {
    generation: i64,
    /// Resource version of the namespace's defaults; `None` without defaults.
    defaults: Option<String>,
    outcome: Result<Arc<Prepared>, Invalid>,
    /// Specification that the job began with, if the job continues under it instead of `outcome`.
    began_with: Option<Arc<Prepared>>,
}

impl PreparedJobs {
    /// Returns the prepared job, from the cache if neither its generation nor the defaults of its namespace
    /// have changed. While the defaults cannot be parsed, a job that was prepared before keeps that
    /// preparation.
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

    /// Returns the ranks that a worker of a job runs; `None` if the job is not cached, its specification is
    /// invalid, or it has no such group.
    pub fn ranks_of(&self, uid: &str, worker: &WorkerId) -> Option<Range<u32>> {
        let entries = self.lock();
        let entry = entries.get(uid)?;
        let prepared = entry.began_with.as_ref().or(entry.outcome.as_ref().ok())?;
        let group = prepared.group(&worker.group)?;
        let first_rank = group.first_rank(worker.idx);
        Some(first_rank..first_rank.saturating_add(group.ranks_per_worker))
    }

    /// Drops all jobs, after a change of a value that their objects contain.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Forgets a job that is gone.
    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Drops the jobs whose UID does not satisfy `is_there`.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.lock().retain(|uid, _| is_there(uid));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
