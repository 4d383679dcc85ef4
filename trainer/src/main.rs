//! Binary of the trainer.

use std::process::ExitCode;

fn main() -> ExitCode {
    rlt_trainer::commands::main(rlt_trainer::recipes::of)
}
