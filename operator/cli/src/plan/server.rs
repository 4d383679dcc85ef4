//! The answer of a cluster to a job and its objects: every call is a server-side dry run.

use std::io::{self, Write as _};

use anyhow::Context as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Container};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, TypeMeta};
use rlt_api::{ExitCode, ValidatedJob};
use rlt_objects::args::{Args, CHANNEL_PORT};
use rlt_objects::build::{self, Settings};
use rlt_objects::job::Job;
use rlt_objects::labels;
use rlt_objects::prepare::Prepared;
use rlt_plan::Models;
use serde_json::Value;

use super::comparison::{Outcome, PlanCheck, compare};
use super::{nodes, objects, origins};
use crate::args::{DocumentFormat, PlanArgs};
use crate::cluster::{Connection, block_on};
use crate::document;
use crate::status::status_of;

/// Field manager that the API server records for the dry run.
const FIELD_MANAGER: &str = "rlctl";

pub(super) fn ask(
    args: &PlanArgs,
    wanted: Value,
    job: &ValidatedJob,
    models: &Models,
) -> anyhow::Result<ExitCode> {
    let checks = block_on(async {
        let mut connection = Connection::open(&args.cluster).await?;
        if let (None, Some(own)) = (&args.cluster.namespace, wanted["metadata"]["namespace"].as_str()) {
            own.clone_into(&mut connection.namespace);
        }
        let mut checks = checks(&connection, args, wanted).await?;
        checks.extend(nodes::ask(&connection, job, models).await?);
        Ok(checks)
    })?;
    let mut out = args.output.output();
    match args.output {
        DocumentFormat::Json => document::write_json(&mut out, &checks)?,
        DocumentFormat::Yaml => document::write_yaml(&mut out, &checks)?,
        DocumentFormat::Text => {
            checks.iter().try_for_each(|check| out.write_all(check.render().as_bytes()))?;
        }
    }
    let is_refused = checks.iter().any(PlanCheck::is_refusal);
    Ok(if is_refused { ExitCode::Failure } else { ExitCode::Success })
}

async fn checks(
    connection: &Connection,
    args: &PlanArgs,
    mut wanted: Value,
) -> anyhow::Result<Vec<PlanCheck>> {
    wanted["metadata"]["namespace"] = connection.namespace.clone().into();
    let (check, job) = ask_about_job(connection, &wanted).await?;
    let Some(job) = job else { return Ok(vec![check]) };
    let mut settings = installed(connection).await?.unwrap_or_else(|| objects::defaults(&args.installation));
    take_authority(connection, &job, &mut settings).await;
    let attempt = status_of(&job).attempt.unwrap_or(1);
    let namespace = origins::of_namespace(connection).await?;
    let mut checks = vec![check];
    let objects = match Prepared::in_cluster(&job, &settings.pods, namespace.as_ref()) {
        Ok(prepared) => {
            for warning in prepared.job.warnings() {
                writeln!(rlt_terminal::messages(), "warning: {}", warning.message)?;
            }
            objects::of_attempt(&job, &prepared, &settings, attempt)?
        }
        Err(invalid) => {
            checks.push(self::check(&wanted, Outcome::Refused { message: invalid.to_string() }));
            return Ok(checks);
        }
    };
    let values = origins::of(&job, &settings.pods, namespace.as_ref());
    checks.push(self::check(&wanted, Outcome::Values { values }));
    for object in objects {
        checks.push(ask_about_object(connection, &object).await?);
    }
    Ok(checks)
}

/// Tries the job on the cluster. Returns the result, and the job as the cluster would store it, with its
/// existing or a new UID.
async fn ask_about_job(connection: &Connection, wanted: &Value) -> anyhow::Result<(PlanCheck, Option<Job>)> {
    let (api, name) = api_of(connection, wanted)?;
    let is = api.get_opt(&name).await.map_err(|error| connection.explain(read(wanted), &name, error))?;
    // Server-side apply works for a new and for an existing job, as with `kubectl apply --server-side`.
    let params = PatchParams::apply(FIELD_MANAGER).force().dry_run();
    let would_be = match api.patch(&name, &params, &Patch::Apply(wanted)).await {
        Ok(would_be) => serde_json::to_value(would_be)?,
        Err(error) => return Ok((refusal(connection, wanted, &name, error)?, None)),
    };
    let outcome = match is {
        Some(is) => compare(serde_json::to_value(is)?, would_be.clone())?,
        None => Outcome::Made,
    };
    let job = serde_json::from_value(would_be).context("read the job as the cluster would have it")?;
    Ok((check(wanted, outcome), Some(job)))
}

/// Tries what the operator would do with an object: it keeps existing objects, except for a changed manifest.
async fn ask_about_object(connection: &Connection, wanted: &Value) -> anyhow::Result<PlanCheck> {
    let (api, name) = api_of(connection, wanted)?;
    let is = api.get_opt(&name).await.map_err(|error| connection.explain(read(wanted), &name, error))?;
    let Some(is) = is else {
        let params = PostParams { dry_run: true, field_manager: Some(labels::OPERATOR.into()) };
        let mut tried = wanted.clone();
        // A dry run does not create the job's service account, so the pod is tried with the default account,
        // which every namespace has.
        if let Some(spec) =
            tried.get_mut("spec").filter(|_| wanted["kind"] == "Pod").and_then(Value::as_object_mut)
        {
            spec.remove("serviceAccountName");
        }
        let object = serde_json::from_value(tried).context("read an object of the job")?;
        return match api.create(&params, &object).await {
            Ok(_) => Ok(check(wanted, Outcome::Made)),
            Err(error) => refusal(connection, wanted, &name, error),
        };
    };
    // The operator never changes a pod, and the address in an EndpointSlice follows its pod.
    if wanted["kind"] == "Pod" || wanted["kind"] == "EndpointSlice" {
        return Ok(check(wanted, Outcome::Kept));
    }
    let params = PatchParams::apply(labels::OPERATOR).force().dry_run();
    match api.patch(&name, &params, &Patch::Apply(wanted)).await {
        Ok(would_be) => {
            let outcome = compare(serde_json::to_value(is)?, serde_json::to_value(would_be)?)?;
            Ok(check(wanted, outcome))
        }
        Err(error) => refusal(connection, wanted, &name, error),
    }
}

fn read(object: &Value) -> String {
    format!("read {} `{}`", word(object, "/kind"), word(object, "/metadata/name"))
}

fn check(object: &Value, outcome: Outcome) -> PlanCheck {
    PlanCheck { kind: word(object, "/kind"), name: word(object, "/metadata/name"), outcome }
}

/// Returns the check of an object that the cluster refuses. A cluster that does not answer is an error.
fn refusal(
    connection: &Connection,
    object: &Value,
    name: &str,
    error: kube::Error,
) -> anyhow::Result<PlanCheck> {
    match error {
        kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 404 => {
            Ok(check(object, Outcome::Refused { message: status.message.clone() }))
        }
        error => {
            Err(connection.explain(format!("try {} `{name}`", word(object, "/kind")), name, error).into())
        }
    }
}

fn word(object: &Value, path: &str) -> String {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn api_of(connection: &Connection, object: &Value) -> anyhow::Result<(Api<DynamicObject>, String)> {
    let types = TypeMeta { api_version: word(object, "/apiVersion"), kind: word(object, "/kind") };
    let kind = GroupVersionKind::try_from(&types).context("read the kind of an object")?;
    let resource = ApiResource::from_gvk(&kind);
    let api = Api::namespaced_with(connection.client.clone(), &connection.namespace, &resource);
    Ok((api, word(object, "/metadata/name")))
}

/// Reads the pod settings of this cluster's operator from its Deployment; `None` if the user can read none.
async fn installed(connection: &Connection) -> io::Result<Option<Settings>> {
    let by_label = ListParams::default().labels("app.kubernetes.io/name=rl-operator");
    let mut deployments = Api::<Deployment>::all(connection.client.clone()).list(&by_label).await;
    if is_forbidden(&deployments) {
        // A user with access to one namespace only may still see an operator that is installed in it.
        let own = Api::<Deployment>::namespaced(connection.client.clone(), &connection.namespace);
        deployments = own.list(&by_label).await;
    }
    let why = if is_forbidden(&deployments) {
        "you may not read the operator's Deployment"
    } else {
        "no operator is to be seen here"
    };
    let settings = deployments.ok().and_then(|list| list.items.iter().find_map(settings));
    if settings.is_none() {
        let messages = &mut rlt_terminal::messages();
        writeln!(messages, "note: {why}; objects are as the chart's defaults would make them")?;
    }
    Ok(settings)
}

fn is_forbidden<T>(answer: &Result<T, kube::Error>) -> bool {
    matches!(answer, Err(kube::Error::Api(status)) if status.code == 403)
}

fn settings(deployment: &Deployment) -> Option<Settings> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let container = pod.containers.iter().find(|container| container.name == "operator")?;
    let args = arguments(container)?;
    let namespace = deployment.metadata.namespace.as_deref()?;
    let channel = args.process.channel_service.as_ref().map(|service| build::ChannelAccess {
        address: format!("https://{service}.{namespace}.svc:{}", CHANNEL_PORT),
        authority: build::Authority::default(),
    });
    let pods = args.pods();
    Some(Settings {
        trainer_image: args.trainer_image,
        trainer_cuda_image: args.trainer_cuda_image,
        pull_policy: args.trainer_image_pull_policy,
        channel,
        pods,
        // The trace id derives from the UID, which a job only gets on the cluster.
        traces: Vec::new(),
    })
}

/// Parses the arguments of the operator's container as the operator does.
fn arguments(container: &Container) -> Option<Args> {
    let value = |name: &str| {
        let variable = container.env.iter().flatten().find(|variable| variable.name == name);
        variable.and_then(|variable| variable.value.clone())
    };
    let image = value("RLT_TRAINER_IMAGE").map(|image| format!("--trainer-image={image}"));
    let cuda_image = value("RLT_TRAINER_CUDA_IMAGE").map(|image| format!("--trainer-cuda-image={image}"));
    let policy =
        value("RLT_TRAINER_IMAGE_PULL_POLICY").map(|policy| format!("--trainer-image-pull-policy={policy}"));
    let privileges = value("RLT_POD_PRIVILEGES").map(|yaml| format!("--pod-privileges={yaml}"));
    let defaults = value("RLT_POD_DEFAULTS").map(|yaml| format!("--pod-defaults={yaml}"));
    let of_pods = privileges.into_iter().chain(defaults);
    let own = container.args.iter().flatten().cloned();
    let words = ["rlt-operator".to_owned()]
        .into_iter()
        .chain(image)
        .chain(cuda_image)
        .chain(policy)
        .chain(of_pods)
        .chain(own);
    clap::Parser::try_parse_from(words).ok()
}

/// Reads the authority of the operator's certificate from the job's ConfigMap, into `settings`.
async fn take_authority(connection: &Connection, job: &Job, settings: &mut Settings) {
    let Some(channel) = &mut settings.channel else { return };
    let maps = Api::<ConfigMap>::namespaced(connection.client.clone(), &connection.namespace);
    let map = maps.get_opt(&build::config_map_name(job.name())).await.ok().flatten();
    let authority = map.and_then(|map| map.data?.remove(rlt_channel::environment::CA_KEY));
    channel.authority = authority.unwrap_or_default().as_str().into();
}
