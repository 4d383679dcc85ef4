//! Validation: turns the text of a manifest into a valid job, or into the list of all its problems.
//!
//! ```text
//! text --source--> value with places --schema--> problems of single fields, repaired value
//!                                    --rules---> problems between fields --resolve--> ValidatedJob
//! ```

mod names;
mod patterns;
mod problem;
mod schema;
mod source;

use serde::Serialize;
use serde_json::{Map, Value, json};

pub use problem::Problem;
#[cfg(feature = "kube")]
pub(crate) use schema::allowed_range;

use crate::conflicts::Facts;
use crate::manifest::{API_VERSION, KIND, MAX_NAME_LEN, Metadata, NAME_NOT_A_LABEL, NAME_TOO_LONG};
use crate::resolved::{Choices, ResolvedSpec};
use crate::rules;
use crate::spec::{Device, RLTrainingJobSpec, RunPolicySpec, WorkersSpec};
use crate::variables;
use crate::warnings::Warning;
use schema::Checker;
use source::Source;

/// A job whose manifest satisfies every rule, with all defaults filled in. [`validate`] creates it;
/// [`read_accepted`] creates it from a manifest that satisfied the rules when it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidatedJob {
    metadata: Metadata,
    spec: ResolvedSpec,
}

impl ValidatedJob {
    /// Name of the job.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// Name, namespace, labels, annotations.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The specification with every default filled in.
    pub fn spec(&self) -> &ResolvedSpec {
        &self.spec
    }

    /// Fills in the values that were chosen for the device.
    #[must_use]
    pub fn with(self, choices: &Choices) -> Self {
        let spec = choices.made_in(&self.spec);
        Self { spec, ..self }
    }

    /// Sets the device of the job, in place of `Auto`. Defaults that depend on the device are computed from
    /// this job.
    #[must_use]
    pub fn on_device(mut self, device: Device) -> Self {
        self.spec.workers.device = device;
        self
    }

    /// Returns the job with another run policy.
    #[must_use]
    pub fn with_run_policy(mut self, run_policy: RunPolicySpec) -> Self {
        self.spec.run_policy = run_policy;
        self
    }

    /// Returns the job with other workers.
    #[must_use]
    pub fn with_workers(mut self, workers: WorkersSpec) -> Self {
        self.spec.workers = workers;
        self
    }

    /// Returns the paths of the fields that are set but have an effect only on a cluster, so that a local run
    /// can report them.
    pub fn cluster_only_fields(&self) -> Vec<String> {
        crate::cluster_only::cluster_only_fields(&self.spec)
    }

    /// Returns the warnings of the job, such as the loss of its result.
    pub fn warnings(&self) -> Vec<Warning> {
        crate::warnings::warnings(&self.spec)
    }

    /// Formats the job as a manifest in which every default is written out. Validating that manifest gives an
    /// equal job.
    ///
    /// # Errors
    /// When the job has no YAML form, which would be a bug of this crate.
    pub fn to_yaml(&self) -> Result<String, serde_saphyr::SerializeError> {
        self.to_yaml_with(&self.spec)
    }

    /// Formats the job like [`Self::to_yaml`], for files that others may read: the values of the workers'
    /// variables and of headers are masked.
    ///
    /// # Errors
    /// Those of [`Self::to_yaml`].
    pub fn to_masked_yaml(&self) -> Result<String, serde_saphyr::SerializeError> {
        self.to_yaml_with(&variables::masked(&self.spec))
    }

    /// Formats the job like [`Self::to_yaml`], for its own ranks: the values of the workers' variables are
    /// masked, because a trainer reads its variables from its environment. Headers are kept, because the
    /// ranks send them.
    ///
    /// # Errors
    /// Those of [`Self::to_yaml`].
    pub fn to_rank_yaml(&self) -> Result<String, serde_saphyr::SerializeError> {
        self.to_yaml_with(&variables::with_masked_variables(&self.spec))
    }

    fn to_yaml_with(&self, spec: &ResolvedSpec) -> Result<String, serde_saphyr::SerializeError> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Manifest<'a> {
            api_version: &'a str,
            kind: &'a str,
            metadata: &'a Metadata,
            spec: &'a ResolvedSpec,
        }
        serde_saphyr::to_string(&Manifest {
            api_version: API_VERSION,
            kind: KIND,
            metadata: &self.metadata,
            spec,
        })
    }
}

/// Reads a manifest, checks everything that can be checked without looking at files, and fills in its
/// defaults.
///
/// # Errors
/// All problems, in the order of the text. Consequences of another problem are left out.
pub fn validate(yaml: &str) -> Result<ValidatedJob, Vec<Problem>> {
    validate_with(yaml, |_| Vec::new())
}

/// Reads a manifest that [`ValidatedJob::to_yaml`] wrote, perhaps in an earlier release, without checking the
/// rules: a job that has begun continues even if this release would not accept it.
///
/// # Errors
/// What this release cannot read.
pub fn read_accepted(yaml: &str) -> Result<ValidatedJob, Box<Problem>> {
    read(yaml, |spec| spec)
}

/// Reads a manifest as [`read_accepted`] does, without the fields that only a later release knows: a job that
/// has begun continues after a rollback.
///
/// # Errors
/// Those of [`read_accepted`].
pub fn read_known_fields(yaml: &str) -> Result<ValidatedJob, Box<Problem>> {
    read(yaml, |spec| schema::known_fields(&spec))
}

/// Reads a manifest after `prepare` has changed its specification.
fn read(yaml: &str, prepare: impl FnOnce(Value) -> Value) -> Result<ValidatedJob, Box<Problem>> {
    let source = Source::parse(yaml)?;
    let field = |name: &str| source.value.get(name).cloned().unwrap_or_default();
    let cannot_read = |field: &str, error| Box::new(Problem::new(field, format!("cannot be read: {error}")));
    let metadata = serde_json::from_value::<Metadata>(field("metadata"))
        .map_err(|error| cannot_read("metadata", error))?;
    let spec = serde_json::from_value::<RLTrainingJobSpec>(prepare(field("spec")))
        .map_err(|error| cannot_read("spec", error))?;
    let spec = ResolvedSpec::resolve(&spec);
    let spec = spec.ok_or_else(|| Box::new(Problem::new("spec", "cannot be resolved by this release")))?;
    Ok(ValidatedJob { metadata, spec })
}

/// Validates like [`validate`]. `check` finds additional problems in a job without any.
///
/// # Errors
/// As [`validate`].
pub fn validate_with(
    yaml: &str,
    check: impl FnOnce(&ValidatedJob) -> Vec<Problem>,
) -> Result<ValidatedJob, Vec<Problem>> {
    let source = Source::parse(yaml).map_err(|problem| vec![*problem])?;
    let mut checker = Checker::default();
    if !source.value.is_object() {
        let mut problem = Problem::new("", "must be a map with apiVersion, kind, metadata and spec");
        source.locate(&mut problem);
        return Err(vec![problem]);
    }
    check_envelope(&source.value, &mut checker);
    let metadata = check_metadata(source.value.get("metadata"), &mut checker);
    let spec = check_spec(source.value.get("spec"), &mut checker);
    let resolved = spec.as_ref().and_then(ResolvedSpec::resolve);
    let mut problems = checker.problems;
    match resolved {
        Some(spec) if problems.is_empty() => {
            let job = ValidatedJob { metadata, spec };
            problems = patterns::problems(&job.spec);
            problems.extend(check(&job));
            if problems.is_empty() {
                return Ok(job);
            }
        }
        None if problems.is_empty() => {
            problems.push(Problem::new("spec", "cannot be resolved although no rule forbids it"));
        }
        _ => {}
    }
    problems.iter_mut().for_each(|problem| source.locate(problem));
    problems.sort_by_key(|problem| (problem.line, problem.column));
    Err(problems)
}

/// Checks a value of the manifest against a schema of another API, such as that of a Kubernetes type.
pub fn check_schema(path: &str, schema: &Value, value: &Value) -> Vec<Problem> {
    let mut checker = Checker::default();
    checker.check_at(path, schema, value);
    checker.problems
}

/// Reads defaults of a cluster or a namespace, and returns the section `workers`.
pub(crate) fn check_defaults(yaml: &str) -> Result<Map<String, Value>, Vec<Problem>> {
    let source = Source::parse(yaml).map_err(|problem| vec![*problem])?;
    let mut checker = Checker::default();
    match &source.value {
        // The text has only comments.
        Value::Null => return Ok(Map::new()),
        value @ Value::Object(_) => checker.check_defaults(value, &crate::defaults::FIELDS),
        _ => checker.problems.push(Problem::new("", "must be a map with the one section workers")),
    }
    let mut problems = checker.problems;
    if !problems.is_empty() {
        problems.iter_mut().for_each(|problem| source.locate(problem));
        problems.sort_by_key(|problem| (problem.line, problem.column));
        return Err(problems);
    }
    Ok(source.value.get("workers").and_then(Value::as_object).cloned().unwrap_or_default())
}

fn check_envelope(manifest: &Value, checker: &mut Checker) {
    let fields: Vec<_> = manifest.as_object().into_iter().flatten().collect();
    for (field, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match manifest.get(field) {
            Some(Value::String(found)) if found == expected => {}
            found => checker.problems.push(Problem {
                value: found.cloned(),
                allowed: Some(expected.into()),
                ..Problem::new(field, if found.is_some() { "is not one that is known" } else { "is missing" })
            }),
        }
    }
    let known =
        json!({"properties": {"apiVersion": {}, "kind": {}, "metadata": {}, "spec": {}, "status": {}}});
    for (field, value) in
        fields.into_iter().filter(|(field, _)| known["properties"].get(field.as_str()).is_none())
    {
        checker.unknown_field("", &known, field, value);
    }
}

/// Checks a manifest's metadata. The name must be a DNS label, because pods and services are named after it;
/// so is the run folder.
fn check_metadata(metadata: Option<&Value>, checker: &mut Checker) -> Metadata {
    let read = metadata.map(|metadata| serde_json::from_value::<Metadata>(metadata.clone()));
    let metadata = match read {
        Some(Ok(metadata)) => metadata,
        Some(Err(error)) => {
            checker.problems.push(Problem::new("metadata", format!("cannot be read: {error}")));
            return Metadata::default();
        }
        None => Metadata::default(),
    };
    let name = &metadata.name;
    let allowed =
        "lower-case letters, digits and '-', beginning with a letter and ending with a letter or digit";
    let problem = |message: &str, allowed: &str| Problem {
        value: (!name.is_empty()).then(|| name.clone().into()),
        allowed: Some(allowed.into()),
        ..Problem::new("metadata.name", message)
    };
    if name.is_empty() {
        checker.problems.push(problem("is missing", allowed));
    } else if !is_dns_label(name) {
        checker.problems.push(problem(NAME_NOT_A_LABEL, allowed));
    }
    if name.chars().count() > MAX_NAME_LEN {
        checker.problems.push(problem(NAME_TOO_LONG, "1 to 52 characters"));
    }
    checker.problems.extend(names::of_metadata(&metadata));
    metadata
}

fn is_dns_label(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.ends_with(|last: char| last.is_ascii_lowercase() || last.is_ascii_digit())
        && name.chars().all(|each| each.is_ascii_lowercase() || each.is_ascii_digit() || each == '-')
}

/// Whether a value is, or contains, an address with a user and perhaps a password, which must not appear in
/// messages or the status.
fn has_password(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains("://") && text.contains('@'),
        Value::Array(values) => values.iter().any(has_password),
        Value::Object(fields) => fields.values().any(has_password),
        _ => false,
    }
}

fn check_spec(spec: Option<&Value>, checker: &mut Checker) -> Option<RLTrainingJobSpec> {
    let Some(value) = spec else {
        checker.problems.push(Problem::new("spec", "is missing"));
        return None;
    };
    let repaired = checker.check_spec(value);
    let spec = match serde_json::from_value::<RLTrainingJobSpec>(repaired) {
        Ok(spec) => spec,
        Err(error) => {
            checker.problems.push(Problem::new("spec", format!("cannot be read: {error}")));
            return None;
        }
    };
    let blocked = checker.blocked_paths();
    let facts = Facts::of_manifest(&spec);
    for rule in rules::all().filter(|rule| !blocked.iter().any(|path| rule.reads(path))) {
        for path in rule.broken_at(&spec, &facts) {
            checker.push(Problem {
                value: source::value_at(value, &path).filter(|value| !has_password(value)).cloned(),
                allowed: rule.allowed_in(&spec),
                ..Problem::new(path, rule.message)
            });
        }
    }
    checker.problems.extend(names::of_pods(&spec));
    Some(spec)
}
