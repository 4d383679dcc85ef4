//! Runs a command on emulated devices: `on-devices COMMAND [ARGUMENT ...]`. The environment may set further
//! variables, which the crate's documentation lists.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rlt_devices::StandIn;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(command) = arguments.next() else { return refuse("usage: on-devices COMMAND [ARGUMENT ...]") };
    match StandIn::build() {
        // Executes the command in this process; this returns only on failure.
        Ok(stand_in) => {
            let error = Command::new(&command).args(arguments).envs(stand_in.env()).exec();
            refuse(&format!("starting {}: {error}", command.display()))
        }
        Err(error) => refuse(&error.to_string()),
    }
}

#[expect(clippy::print_stderr, reason = "the one place where this program prints its final error")]
fn refuse(cause: &str) -> ExitCode {
    eprintln!("on-devices: {cause}");
    ExitCode::from(2)
}
