//! `rlctl`: runs, plans and validates RLTrainingJob manifests in a terminal, and inspects jobs on a cluster.
//! It does not depend on tensors: `rlt-trainer` trains, `rlt-api` has the rules and `rlt-plan` the plans, and
//! `rlt-objects` builds the objects of a cluster.

mod args;
mod cluster;
mod completion;
mod convert;
mod document;
#[cfg(test)]
mod documented_commands;
mod events;
mod invocation;
mod logs;
mod manifest;
mod measure;
mod plan;
mod run;
mod status;
mod track;
mod validate;
mod why;

use std::error::Error;
use std::io::{self, Write as _};
use std::{env, process};

use clap::FromArgMatches as _;
use rlt_api::ExitCode;

use args::{Args, Command};
use invocation::Invocation;

fn main() -> process::ExitCode {
    rlt_terminal::escape_panics();
    let invocation = Invocation::of(env::args_os().next().as_deref());
    let outcome = match invocation {
        Invocation::Completer => complete(),
        Invocation::Itself | Invocation::Plugin => {
            let matches = invocation.command().get_matches();
            let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
            act(args.command)
        }
    };
    match outcome {
        Ok(exit) => exit.into(),
        // The reader closed the pipe, as `head` does; that is not an error.
        Err(error) if is_broken_pipe(&error) => ExitCode::Success.into(),
        Err(error) => {
            let _ = writeln!(rlt_terminal::messages(), "rlctl: {error:#}");
            ExitCode::Failure.into()
        }
    }
}

fn act(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Data(args) => run::show_data(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Validate(args) => validate::validate(&args),
        Command::Export(args) => run::export(&args),
        Command::Track(args) => track::track(&args),
        Command::Convert(args) => convert::convert(&args),
        Command::Status(args) => status::status(&args),
        Command::Why(args) => why::why(&args),
        Command::Logs(args) => logs::logs(&args),
        Command::Events(args) => events::events(&args),
        Command::Completion(args) => completion::completion(&args),
    }
}

fn complete() -> anyhow::Result<ExitCode> {
    let words: Vec<String> = env::args().skip(1).collect();
    rlt_terminal::document().write_all(invocation::completions(&words).as_bytes())?;
    Ok(ExitCode::Success)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn Error + 'static)| {
        let written = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        written.or_else(|| cause.downcast_ref::<serde_json::Error>()?.io_error_kind())
    };
    error.chain().any(|cause| kind(cause) == Some(io::ErrorKind::BrokenPipe))
}
