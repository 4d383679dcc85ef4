//! `rlctl completion`: a shell's completion script.

use std::io::Write as _;

use rlt_api::ExitCode;

use crate::args::CompletionArgs;
use crate::invocation::Invocation;

pub(crate) fn completion(args: &CompletionArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Invocation::Itself.command(), "rlctl", &mut script);
    rlt_terminal::document().write_all(&script)?;
    Ok(ExitCode::Success)
}
