//! `rlctl`: run, plan and validate RLTrainingJob manifests from a terminal. No tensors and no cluster here: training
//! is `rlt-trainer`'s, rules and plans are `rlt-api`'s.

mod args;
mod completion;
mod manifest;
mod plan;
mod run;
mod validate;

use std::io::{self, Write as _};
use std::process;

use clap::Parser as _;
use rlt_api::ExitCode;

use args::{Args, Command};

fn main() -> process::ExitCode {
    let outcome = match Args::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Validate(args) => validate::validate(&args),
        Command::Completion(args) => completion::completion(&args),
    };
    match outcome {
        Ok(exit) => exit.into(),
        // The reader went away, as `head` does; that is no error of ours.
        Err(error) if is_broken_pipe(&error) => ExitCode::Success.into(),
        Err(error) => {
            let _ = writeln!(io::stderr(), "rlctl: {error:#}");
            ExitCode::Failure.into()
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<io::Error>();
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
