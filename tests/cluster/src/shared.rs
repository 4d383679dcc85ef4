//! One cluster for all tests of a file, and the rule for machines where none can run.

use std::sync::OnceLock;

use crate::cluster::Cluster;
use crate::options::Options;

/// A cluster for a `static`: started by the first test that asks, ended with the process.
#[derive(Debug)]
pub struct Shared {
    options: fn() -> Options,
    cluster: OnceLock<Result<Cluster, String>>,
}

impl Shared {
    /// Nothing is started yet.
    pub const fn new(options: fn() -> Options) -> Self {
        Self { options, cluster: OnceLock::new() }
    }

    /// The cluster, or `None` where the machine can not run one: then the test says so and returns.
    ///
    /// # Panics
    /// When the cluster should run but does not; and under continuous integration where it can not.
    #[expect(clippy::panic, reason = "a test whose cluster does not start has failed")]
    pub fn get(&self) -> Option<&Cluster> {
        let options = (self.options)();
        if !can_run(&options) {
            return None;
        }
        let started = self.cluster.get_or_init(|| Cluster::start(&options).map_err(|error| chain(&error)));
        match started {
            Ok(cluster) => Some(cluster),
            Err(reason) => panic!("the cluster does not start: {reason}"),
        }
    }
}

/// A cluster for one test alone, or `None` where the machine can not run one: then the test says so and
/// returns.
///
/// # Panics
/// As [`Shared::get`].
#[expect(clippy::panic, reason = "a test whose cluster does not start has failed")]
pub fn own_cluster(options: &Options) -> Option<Cluster> {
    if !can_run(options) {
        return None;
    }
    match Cluster::start(options) {
        Ok(cluster) => Some(cluster),
        Err(error) => panic!("the cluster does not start: {}", chain(&error)),
    }
}

/// Whether the machine can run such a cluster; where it can not, says that the test is skipped.
///
/// # Panics
/// Under continuous integration where it can not.
pub fn can_run(options: &Options) -> bool {
    let reason = options.unavailable();
    if let Some(reason) = &reason {
        rlt_skipped::skip(reason);
    }
    reason.is_none()
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(&format!(": {source}"));
        cause = source.source();
    }
    text
}
