//! The specification that a job began with: its digests, and reading it from the ConfigMap of the job.

use rlt_api::resolved::ResolvedSpec;
use rlt_api::spec::{RunPolicySpec, WorkersSpec};
use rlt_api::status::AcceptedStatus;
use rlt_api::{Problem, ValidatedJob};
use serde_json::Value;

use super::Prepared;
use crate::build::{PodSettings, digest};
use crate::job::Job;
use crate::pod_defaults::NamespaceDefaults;
use crate::pod_template;

/// Returns the digest of a job's own specification without `spec.runPolicy`, which may change at any time.
pub(super) fn spec_digest(job: &Job) -> String {
    let mut spec: Value = serde_json::from_str(&job.spec).unwrap_or_default();
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("runPolicy");
    }
    digest([spec.to_string().as_str()])
}

/// Returns the digests of a specification with all defaults.
pub(super) fn digests(job: &ValidatedJob, generation: i64, spec_digest: String) -> AcceptedStatus {
    AcceptedStatus {
        generation,
        manifest_digest: digest([job.to_yaml().unwrap_or_default().as_str()]),
        spec_digest,
        training_digest: training_digest(job),
    }
}

fn training_digest(job: &ValidatedJob) -> String {
    digest([serde_json::to_string(&training_of(job)).unwrap_or_default().as_str()])
}

/// Returns the specification without workers and run policy: what the training computes.
fn training_of(job: &ValidatedJob) -> ResolvedSpec {
    ResolvedSpec {
        workers: WorkersSpec::default(),
        run_policy: RunPolicySpec::default(),
        ..job.spec().clone()
    }
}

impl Prepared {
    /// Prepares the job with the specification that it began with, from the manifest in its ConfigMap.
    /// Returns `None` if the manifest cannot be read or is not the one that the job began with.
    ///
    /// Users can edit ConfigMaps, so a manifest is used only if its digest is the one `recorded` in the job's
    /// status, either as it is or as this release writes it. If `present` supplies workers and run policy, it
    /// is enough that the training has the recorded digest. A job that an earlier release began has no
    /// record. Its manifest is used if a new job with it would be accepted, or if only its training breaks
    /// rules and is that of the job itself, which the API server has accepted.
    ///
    /// `spec.runPolicy.suspend` is always taken from the job's present specification. If that is valid, all
    /// of `spec.workers` and `spec.runPolicy` are.
    pub fn began_with(
        job: &Job,
        manifest: &str,
        recorded: Option<&AcceptedStatus>,
        present: Option<&Self>,
        pods: &PodSettings,
    ) -> Option<Self> {
        let began = match recorded {
            Some(recorded) => {
                // After a rollback, the manifest may come from a later release and have unknown fields.
                let read = rlt_api::read_accepted(manifest);
                let read = read.or_else(|_| rlt_api::read_known_fields(manifest)).ok()?;
                let is_recorded = is_recorded(manifest, &read, recorded)
                    || present.is_some() && has_recorded_training(&read, recorded);
                is_recorded.then_some(read)?
            }
            None => unrecorded(job, manifest, pods)?,
        };
        if (began.name(), began.metadata().namespace.as_deref()) != (job.name(), Some(job.namespace())) {
            return None;
        }
        let began = match present.map(|present| present.job.spec()) {
            Some(spec) => began.with_workers(spec.workers.clone()).with_run_policy(spec.run_policy.clone()),
            None => {
                let run_policy =
                    RunPolicySpec { suspend: job.is_suspended(), ..began.spec().run_policy.clone() };
                began.with_run_policy(run_policy)
            }
        };
        let digest = spec_digest(job);
        // An edited job keeps the record of the specification that it began with.
        let edited = recorded.filter(|recorded| !recorded.is_of(job.generation(), &digest));
        let (generation, digest) = match edited {
            Some(recorded) => (recorded.generation, recorded.spec_digest.clone()),
            None => (job.generation(), digest),
        };
        Self::planned(began, generation, digest).ok()
    }

    /// Rebuilds the manifest that a job began with from the job itself, for a ConfigMap that was deleted. The
    /// specification is merged over the present defaults; privileges are not checked again. `None` if the
    /// result does not have the `recorded` digest, because the job was edited or defaults have changed.
    pub fn recorded_manifest(
        job: &Job,
        recorded: &AcceptedStatus,
        pods: &PodSettings,
        namespace: Option<&NamespaceDefaults>,
    ) -> Option<String> {
        let job = Self::over_defaults(job, pods, namespace).ok()?.job;
        // A specification is recorded when pods are created, so never of a suspended job.
        let run_policy = RunPolicySpec { suspend: false, ..job.spec().run_policy.clone() };
        let manifest = job.with_run_policy(run_policy).to_yaml().ok()?;
        (digest([manifest.as_str()]) == recorded.manifest_digest).then_some(manifest)
    }

    /// Whether a job still has the specification of this record, apart from `spec.runPolicy`.
    pub fn is_unedited(job: &Job, recorded: &AcceptedStatus) -> bool {
        recorded.is_of(job.generation(), &spec_digest(job))
    }
}

/// Whether a manifest is the recorded one, as it is or as this release writes it. Its text is that of another
/// release if an operator of this release recorded the digest of its own text and ended before it wrote the
/// ConfigMap.
fn is_recorded(manifest: &str, read: &ValidatedJob, recorded: &AcceptedStatus) -> bool {
    let is_it = |text: &str| digest([text]) == recorded.manifest_digest;
    is_it(manifest) || read.to_yaml().is_ok_and(|text| is_it(&text))
}

/// Whether a manifest has the recorded training. Its workers or run policy may differ if an operator ended
/// between its writes of the ConfigMap and of the status, or if the write of the ConfigMap failed.
fn has_recorded_training(read: &ValidatedJob, recorded: &AcceptedStatus) -> bool {
    training_digest(read) == recorded.training_digest
}

/// Reads the manifest of a job without a record; `None` if its pods break a rule or request forbidden
/// privileges, or if its training breaks a rule and is not that of the job itself.
fn unrecorded(job: &Job, manifest: &str, pods: &PodSettings) -> Option<ValidatedJob> {
    let began = match rlt_api::validate_with(manifest, pod_template::problems_of) {
        Ok(valid) => valid,
        Err(problems) if problems.iter().all(is_of_training) => began_as_it_is(job, manifest)?,
        Err(_) => return None,
    };
    let is_allowed = pods.privileges.refused(job.namespace(), &began.spec().workers).is_empty();
    is_allowed.then_some(began)
}

/// Whether a problem concerns the training, not the workers, the run policy or the manifest as a whole.
fn is_of_training(problem: &Problem) -> bool {
    let section = problem.path.strip_prefix("spec.").and_then(|path| path.split(['.', '[']).next());
    section.is_some_and(|section| !["workers", "runPolicy"].contains(&section))
}

/// Reads a manifest that breaks a rule, if its training is that of the job's own specification and its pods
/// break no rule.
fn began_as_it_is(job: &Job, manifest: &str) -> Option<ValidatedJob> {
    let began =
        rlt_api::read_accepted(manifest).ok().filter(|began| pod_template::problems_of(began).is_empty())?;
    // Some defaults of the training depend on the workers, whose fields in the manifest include the cluster's
    // defaults.
    let mut spec: Value = serde_json::from_str(&job.spec).ok()?;
    spec.as_object_mut()?.insert("workers".into(), serde_json::to_value(&began.spec().workers).ok()?);
    let own = Job { spec: spec.to_string(), ..job.clone() };
    let own = rlt_api::read_accepted(&own.manifest()).ok()?;
    (training_of(&own) == training_of(&began)).then_some(began)
}

#[cfg(test)]
mod tests {
    use rlt_api::spec::Device;
    use serde_json::json;

    use super::*;
    use crate::fixtures::job;

    fn manifest(prepared: &Prepared) -> String {
        prepared.job.to_yaml().unwrap()
    }

    fn began_with(job: &Job, manifest: &str, recorded: Option<&AcceptedStatus>) -> Option<Prepared> {
        Prepared::began_with(job, manifest, recorded, None, &PodSettings::default())
    }

    /// Returns the job with one section of its specification replaced, one generation later.
    fn with(mut job: Job, section: &str, value: Value) -> Job {
        let mut spec: Value = serde_json::from_str(&job.spec).unwrap();
        spec[section] = value;
        job.spec = spec.to_string();
        job.metadata.generation = Some(job.generation() + 1);
        job
    }

    #[test]
    fn a_job_is_read_as_it_began_with_the_suspension_of_its_present_specification() {
        let began = Prepared::new(&job(&json!({"activeDeadlineSeconds": 90}))).unwrap();
        let broken = with(job(&json!({"suspend": true})), "training", json!({"steps": -1}));
        assert!(Prepared::new(&broken).is_err());
        let read = began_with(&broken, &manifest(&began), Some(&began.accepted)).unwrap();
        assert!(read.job.spec().run_policy.suspend);
        assert_eq!(read.job.spec().run_policy.active_deadline_seconds, Some(90));
        assert_eq!(read.job.spec().training, began.job.spec().training);
        assert_eq!(read.accepted.training_digest, began.accepted.training_digest);
        assert!(!Prepared::is_unedited(&broken, &read.accepted), "the edit is still one");
    }

    #[test]
    fn a_manifest_that_breaks_a_rule_of_a_later_release_is_read_by_its_record_alone() {
        let began = Prepared::new(&job(&json!({}))).unwrap();
        let lax = manifest(&began).replace("samplesPerPrompt: 16", "samplesPerPrompt: 1");
        assert!(rlt_api::validate(&lax).is_err(), "a group of one breaks a rule");
        let recorded = AcceptedStatus { manifest_digest: digest([lax.as_str()]), ..began.accepted.clone() };
        let read = began_with(&job(&json!({})), &lax, Some(&recorded)).unwrap();
        assert!(Prepared::is_unedited(&job(&json!({})), &read.accepted));
        assert!(began_with(&job(&json!({})), &lax, None).is_none(), "without a record the rules hold");
    }

    #[test]
    fn a_manifest_that_someone_changed_or_of_another_job_is_not_used() {
        let began = Prepared::new(&job(&json!({}))).unwrap();
        let forged = manifest(&began).replace("numLayers: 2", "numLayers: 3");
        assert!(rlt_api::validate(&forged).is_ok());
        assert!(began_with(&job(&json!({})), &forged, Some(&began.accepted)).is_none());
        let mut other = job(&json!({}));
        other.metadata.name = Some("other".into());
        assert!(began_with(&other, &manifest(&began), Some(&began.accepted)).is_none());
    }

    #[test]
    fn the_manifest_of_an_unedited_job_is_made_again_whatever_is_allowed_now() {
        let template = json!({"podTemplate": {"spec": {"containers": [], "hostNetwork": true}}});
        let privileged = with(job(&json!({})), "workers", template);
        let began = Prepared::new(&privileged).unwrap();
        let pods = PodSettings::default();
        assert!(Prepared::in_cluster(&privileged, &pods, None).is_err(), "it is not allowed any more");
        let again = |job: &Job| Prepared::recorded_manifest(job, &began.accepted, &pods, None);
        assert_eq!(again(&privileged), Some(manifest(&began)));
        let suspended = with(privileged.clone(), "runPolicy", json!({"suspend": true}));
        assert_eq!(again(&suspended), Some(manifest(&began)));
        assert_eq!(again(&with(privileged, "training", json!({"steps": 7}))), None);
        assert_eq!(again(&with(job(&json!({})), "training", json!({"steps": -1}))), None);
    }

    #[test]
    fn without_a_record_the_privileges_of_today_hold() {
        let began = Prepared::new(&job(&json!({}))).unwrap();
        assert!(began_with(&job(&json!({})), &manifest(&began), None).is_some());
        let mut workers = began.job.spec().workers.clone();
        workers.pod_template = Some(json!({"spec": {"containers": [], "hostNetwork": true}}));
        let privileged = began.job.clone().with_workers(workers).to_yaml().unwrap();
        assert!(rlt_api::validate(&privileged).is_ok());
        assert!(began_with(&job(&json!({})), &privileged, None).is_none());
    }

    /// Returns a job of an earlier release, whose model has a mirror that this release refuses, and its
    /// manifest.
    fn with_password() -> (Job, String) {
        let mirror = |address: &str| json!({"hub": {"repo": "owner/name", "endpoint": address}});
        let plain = Prepared::new(&with(job(&json!({})), "model", mirror("https://mirror"))).unwrap();
        let address = "https://user:word@mirror";
        let job = with(job(&json!({})), "model", mirror(address));
        assert!(Prepared::new(&job).is_err());
        (job, manifest(&plain).replace("https://mirror", address))
    }

    #[test]
    fn a_job_of_an_earlier_release_continues_though_its_training_breaks_a_rule_of_this_one() {
        let (job, text) = with_password();
        let read = began_with(&job, &text, None).unwrap();
        let again = manifest(&read);
        assert!(again.contains("https://user:word@mirror"), "{again}");
        assert!(began_with(&job, &again, Some(&read.accepted)).is_some(), "it has a record now");
    }

    #[test]
    fn a_broken_rule_is_no_way_around_the_rules_of_pods_or_to_another_training() {
        let (job, text) = with_password();
        let samples = text.replace("samplesPerPrompt: 16", "samplesPerPrompt: 8");
        let workers = |section: Value| {
            let mut forged: Value = serde_saphyr::from_str(&text).unwrap();
            forged["spec"]["workers"] = section;
            forged.to_string()
        };
        let privileged = workers(json!({"podTemplate": {"spec": {"containers": [], "hostNetwork": true}}}));
        let wrong = workers(json!({"podTemplate": {"spec": {"containers": [], "notOne": true}}}));
        for forged in [samples, privileged, wrong, workers(json!({"count": -1}))] {
            assert_ne!(forged, text);
            assert!(began_with(&job, &forged, None).is_none(), "{forged}");
        }
        assert!(
            began_with(&job, &workers(json!({"threads": 3})), None).is_some(),
            "workers have other defaults"
        );
    }

    #[test]
    fn a_release_with_other_defaults_keeps_what_the_training_computes_and_takes_the_workers() {
        let began = Prepared::new(&job(&json!({}))).unwrap();
        let mut present = Prepared::new(&with(job(&json!({})), "training", json!({"steps": 7}))).unwrap();
        let workers = WorkersSpec { device: Device::Cpu, threads: Some(3), ..WorkersSpec::default() };
        present.job = present.job.with_workers(workers.clone());
        let (job, pods) = (job(&json!({})), PodSettings::default());
        let text = manifest(&began);
        let read = Prepared::began_with(&job, &text, Some(&began.accepted), Some(&present), &pods).unwrap();
        assert_eq!(read.job.spec().training, began.job.spec().training);
        assert_eq!(read.job.spec().workers, workers);
        assert_ne!(present.accepted.training_digest, began.accepted.training_digest);
    }

    #[test]
    fn a_manifest_with_other_workers_than_the_record_counts_if_the_present_ones_replace_them() {
        let began = Prepared::new(&job(&json!({}))).unwrap();
        let present = Prepared::new(&with(job(&json!({})), "training", json!({"steps": 7}))).unwrap();
        let (job, pods) = (job(&json!({})), PodSettings::default());
        let read = |text: &str, present: Option<&Prepared>| {
            Prepared::began_with(&job, text, Some(&began.accepted), present, &pods)
        };
        let workers = WorkersSpec { threads: Some(3), ..began.job.spec().workers.clone() };
        let written = began.job.clone().with_workers(workers).to_yaml().unwrap();
        let continued = read(&written, Some(&present)).unwrap();
        assert_eq!(continued.accepted.training_digest, began.accepted.training_digest);
        assert_eq!(continued.job.spec().workers, present.job.spec().workers);
        assert!(read(&written, None).is_none(), "its workers would run");
        assert!(read(&manifest(&present), Some(&present)).is_none(), "another training");
    }

    #[test]
    fn a_manifest_of_a_later_release_is_read_without_the_fields_that_only_that_release_knows() {
        let began = Prepared::new(&with(job(&json!({})), "training", json!({"steps": 7}))).unwrap();
        let mut later: Value = serde_saphyr::from_str(&manifest(&began)).unwrap();
        later["spec"]["aLaterSection"] = json!({"on": true});
        later["spec"]["training"]["aLaterField"] = json!([{"any": 1}]);
        let text = later.to_string();
        assert!(rlt_api::read_accepted(&text).is_err());
        let digest_of_later = digest([text.as_str()]);
        let recorded = AcceptedStatus { manifest_digest: digest_of_later, ..began.accepted.clone() };
        let read = began_with(&job(&json!({})), &text, Some(&recorded)).unwrap();
        assert_eq!(read.job.spec().training, began.job.spec().training);
        later["spec"]["training"]["steps"] = json!(8);
        let forged = later.to_string();
        assert!(began_with(&job(&json!({})), &forged, Some(&recorded)).is_none(), "by its record alone");
    }

    #[test]
    fn a_manifest_in_the_form_of_another_release_counts_if_it_is_the_recorded_one_as_this_release_writes_it()
    {
        let began = Prepared::new(&with(job(&json!({})), "training", json!({"steps": 7}))).unwrap();
        let text = format!("# written by an earlier release\n{}", manifest(&began));
        let read = began_with(&job(&json!({})), &text, Some(&began.accepted)).unwrap();
        assert_eq!(read.job.spec(), began.job.spec());
        let forged = text.replace("numLayers: 2", "numLayers: 3");
        assert!(began_with(&job(&json!({})), &forged, Some(&began.accepted)).is_none());
    }

    #[test]
    fn a_run_policy_may_change_and_anything_else_is_an_edit() {
        let began = Prepared::new(&job(&json!({}))).unwrap();
        let suspended = with(job(&json!({})), "runPolicy", json!({"suspend": true}));
        assert!(Prepared::is_unedited(&suspended, &began.accepted));
        let edited = with(job(&json!({})), "training", json!({"steps": 7}));
        assert!(!Prepared::is_unedited(&edited, &began.accepted));
    }
}
