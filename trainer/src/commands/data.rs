//! `rlt-trainer data`: the first rows of a job's data as the training will see them: rendered by the chat
//! template, counted in tokens, with what is left out and why. `rlctl data` becomes this.

use std::io::Write;
use std::path::PathBuf;

use rlt_api::ExitCode;
use rlt_api::resolved::{ModelSource, ResolvedSpec};
use rlt_core::types::Prompt;

use crate::commands::worker::read_manifest;
use crate::data::preview::{Fate, Preview, demonstrations, prompts, shown};
use crate::data::tokenizer::Tokenizer;
use crate::data::{Demonstration, RowLocation, Split};
use crate::model::hub;
use crate::roles::reward::RewardFunctions;
use crate::run::error::TrainError;
use crate::run::setup::load_tokenizer;

/// What is shown.
#[derive(clap::Args, Clone, Debug)]
pub struct DataArgs {
    /// The manifest; - for standard input
    #[arg(long, value_name = "FILE")]
    pub manifest: PathBuf,
    /// Rows to show, from the first
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rows: u32,
    /// Show held-out rows instead of those to train on
    #[arg(long)]
    pub held_out: bool,
}

/// How many rows came to what.
#[derive(Debug, Default)]
struct Counts {
    kept: usize,
    truncated: usize,
    filtered: usize,
    broken: usize,
}

/// Shows rows; [`ExitCode::BadConfig`] where a training would end at one of them.
///
/// # Errors
/// [`TrainError`] where no row can be shown.
pub fn run(args: &DataArgs) -> Result<ExitCode, TrainError> {
    let job = read_manifest(&args.manifest)?;
    let spec = job.spec();
    let tokenizer = tokenizer(spec)?;
    let split = if args.held_out { Split::HeldOut } else { Split::Train };
    let num_rows = args.rows as usize;
    let mut output = std::io::stdout().lock();
    let is_supervised = spec.algorithm.policy_gradient.is_none() && split == Split::Train;
    let written = if is_supervised {
        let max_tokens = spec.training.max_tokens_per_micro_batch as usize * spec.workers.mesh.sp as usize;
        let rows = demonstrations(&spec.data, split, &tokenizer, (num_rows, max_tokens))?;
        write_all(&mut output, &rows, |_, demonstration| describe_demonstration(demonstration, &tokenizer))
    } else {
        let functions = RewardFunctions::new(&spec.rewards, spec.rollout.max_completion_tokens as usize)?;
        let rows = prompts(&spec.data, split, &tokenizer, num_rows)?;
        write_all(&mut output, &rows, |location, prompt| {
            describe_prompt((location, prompt), &functions, spec)
        })
    };
    // A reader that has seen enough, such as `head`, is no error.
    let counts = written.unwrap_or_default();
    Ok(if counts.broken > 0 { ExitCode::BadConfig } else { ExitCode::Success })
}

fn tokenizer(spec: &ResolvedSpec) -> Result<Tokenizer, TrainError> {
    let dir = match &spec.model.source {
        ModelSource::Path(path) => Some(path.into()),
        // What the training would fetch, too.
        ModelSource::Hub(source) => Some(hub::fetch(source, None)?.dir),
        ModelSource::Architecture(_) => None,
    };
    load_tokenizer(spec, dir.as_deref())
}

/// A line about an item, its text, and what is wrong with it.
struct Description {
    line: String,
    text: String,
    problem: Option<String>,
}

fn describe_prompt(
    (location, prompt): (&RowLocation, &Prompt),
    functions: &RewardFunctions,
    spec: &ResolvedSpec,
) -> Description {
    let judged =
        if spec.rewards.functions.is_empty() { Ok(()) } else { functions.check_prompt(prompt, location) };
    Description {
        line: format!(
            "{} tokens, data_source {:?}, ground truth {:?}",
            prompt.tokens.len(),
            prompt.data_source,
            shown(&prompt.ground_truth)
        ),
        text: prompt.text.clone(),
        problem: judged.err().map(|error| causes(&error)),
    }
}

fn describe_demonstration(demonstration: &Demonstration, tokenizer: &Tokenizer) -> Description {
    let num_learned = demonstration.loss_mask.iter().filter(|learned| **learned).count();
    let text = tokenizer.decode_verbatim(&demonstration.tokens);
    Description {
        line: format!("{} tokens, of which {num_learned} are learned", demonstration.tokens.len()),
        text: text.unwrap_or_else(|error| error.to_string()),
        problem: None,
    }
}

fn write_all<T>(
    output: &mut impl Write,
    rows: &[Preview<T>],
    describe: impl Fn(&RowLocation, &T) -> Description,
) -> std::io::Result<Counts> {
    let mut counts = Counts::default();
    for Preview { location, fate } in rows {
        let (word, item) = match fate {
            Fate::Kept(item) => ("kept", item),
            Fate::Truncated(item) => ("cut to the allowed length", item),
            Fate::Filtered { num_tokens, max_tokens } => {
                counts.filtered += 1;
                writeln!(output, "{location}: left out: {num_tokens} tokens, at most {max_tokens}\n")?;
                continue;
            }
            Fate::Broken(error) => {
                counts.broken += 1;
                writeln!(output, "{location}: wrong: {}\n", causes(error))?;
                continue;
            }
        };
        let Description { line, text, problem } = describe(location, item);
        match (&problem, fate) {
            (Some(_), _) => counts.broken += 1,
            (None, Fate::Truncated(_)) => counts.truncated += 1,
            (None, _) => counts.kept += 1,
        }
        let word = problem.map_or_else(|| word.to_owned(), |problem| format!("wrong: {problem}"));
        writeln!(output, "{location}: {word}; {line}")?;
        text.lines().try_for_each(|line| writeln!(output, "  | {}", escaped(line)))?;
        writeln!(output)?;
    }
    let Counts { kept, truncated, filtered, broken } = counts;
    let num_rows = rows.len();
    writeln!(output, "{num_rows} rows: {kept} kept, {truncated} cut, {filtered} left out, {broken} wrong")?;
    Ok(counts)
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        words = format!("{words}: {source}");
        cause = source.source();
    }
    words
}

/// Without what a terminal would obey.
fn escaped(line: &str) -> String {
    line.chars()
        .map(|c| if c.is_control() && c != '\t' { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}
