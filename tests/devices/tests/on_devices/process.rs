//! Tests that compute on devices. Each test runs again in a process with devices, because libtorch detects
//! devices once per process.

use std::env;
use std::process::{Command, Output};

use rlt_devices::StandIn;

/// Variable that names the test whose body runs in this process.
const CHILD: &str = "RLT_TEST_ON_DEVICES";

/// Returns the variables of a process with `num_devices` devices, followed by further variables.
pub(crate) fn variables(num_devices: usize, others: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut all = StandIn::build().unwrap().with_devices(num_devices);
    all.extend(others.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    all
}

/// Returns the command that runs the test of this name in a separate process.
pub(crate) fn again(test: &str, variables: &[(String, String)]) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads", "1"]).env(CHILD, test);
    command.envs(variables.iter().cloned());
    command
}

/// Whether this is the process in which the body of `test` runs.
pub(crate) fn is_inside(test: &str) -> bool {
    // Before CUDA is loaded, so that the counts of devices are still written at the end.
    rlt_torch::skip_destructors_at_exit();
    env::var(CHILD).is_ok_and(|name| name == test)
}

/// Runs `body` in a process with one device, and fails if the process does.
pub(crate) fn on_device(test: &str, body: impl FnOnce()) {
    on_devices(test, 1, &[], body);
}

/// Runs `body` in a process with `num_devices` devices and further variables, and fails if the process does.
pub(crate) fn on_devices(test: &str, num_devices: usize, others: &[(&str, &str)], body: impl FnOnce()) {
    if is_inside(test) {
        assert_eq!(rlt_torch::missing_cuda().unwrap(), None);
        return body();
    }
    let output = again(test, &variables(num_devices, others)).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("1 passed"), "{}", text(&output));
}

/// All that a process wrote.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}
