//! `rlt-trainer data`: shows the first rows of a job's data as the training reads them, rendered by the chat
//! template, counted in tokens, and with the reason for each row that is left out. `rlctl data` executes it.

use std::io::Write;
use std::path::{Path, PathBuf};

use rlt_api::ExitCode;
use rlt_api::resolved::{ModelSource, ResolvedSpec};
use rlt_api::spec::{DataSpec, DatasetSpec};
use rlt_core::preferences::PreferenceExample;
use rlt_core::types::Prompt;
use rlt_data::preview::{Preview, RowOutcome, demonstrations, preferences, prompts, shown};
use rlt_data::tokenizer::Tokenizer;
use rlt_data::{Demonstration, RowLocation, Split};
use rlt_decoder::read_config;

use crate::commands::worker::read_manifest;
use crate::roles::reward::RewardFunctions;
use crate::run::error::TrainError;
use crate::run::setup::datasets::{
    DownloadedData, context_of, max_demonstration_tokens, preference_rows, within_context,
};
use crate::run::setup::load_tokenizer;

/// Options of `data`.
#[derive(clap::Args, Clone, Debug)]
pub struct DataArgs {
    /// Manifest of the job; - for standard input
    #[arg(long, value_name = "FILE")]
    pub manifest: PathBuf,
    /// Number of rows to show, from the first: 1 to 100000
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rows: u32,
    /// Show held-out rows instead of training rows
    #[arg(long)]
    pub held_out: bool,
}

/// Numbers of rows by outcome.
#[derive(Debug, Default)]
struct Counts {
    kept: usize,
    truncated: usize,
    filtered: usize,
    broken: usize,
}

/// Shows rows; returns [`ExitCode::BadConfig`] if a training would end at one of them.
///
/// # Errors
/// [`TrainError`] if no row can be shown.
pub fn run(args: &DataArgs) -> Result<ExitCode, TrainError> {
    let job = read_manifest(&args.manifest)?;
    let spec = job.spec();
    let folder = model_folder(spec)?;
    let tokenizer = load_tokenizer(spec, folder.as_deref())?;
    let split = if args.held_out { Split::HeldOut } else { Split::Train };
    let num_rows = args.rows as usize;
    let downloaded = DownloadedData::find(&spec.data, None)?;
    let context = context(spec, folder.as_deref());
    let data = &within_context(&downloaded.spec, context);
    let headings = headings(&downloaded, args.held_out);
    let mut output = rlt_terminal::text();
    let is_supervised = spec.algorithm.policy_gradient.is_none() && split == Split::Train;
    let written = if let Some(format) = preference_rows(spec, split, context) {
        let rows = preferences(data, split, &tokenizer, num_rows, &format)?;
        write_sets(&mut output, &headings, &rows, |_, example| describe_preference(example, &tokenizer))
    } else if is_supervised {
        let max_tokens = max_demonstration_tokens(spec, context);
        let rows = demonstrations(data, split, &tokenizer, num_rows, max_tokens)?;
        let describe = |_: &_, example: &_| describe_demonstration(example, &tokenizer);
        write_sets(&mut output, &headings, &rows, describe)
    } else {
        let functions = RewardFunctions::new(&spec.rewards, spec.rollout.max_completion_tokens as usize)?;
        let rows = prompts(data, split, &tokenizer, num_rows)?;
        write_sets(&mut output, &headings, &rows, |location, prompt| {
            describe_prompt(location, prompt, &functions, spec)
        })
    };
    // A reader that closes the output early, such as `head`, is no error.
    let counts = written.unwrap_or_default();
    Ok(if counts.broken > 0 { ExitCode::BadConfig } else { ExitCode::Success })
}

/// Headings of the data sets; empty for plain files and tasks.
fn headings(downloaded: &DownloadedData, held_out: bool) -> Vec<String> {
    let DataSpec { datasets, .. } = &downloaded.spec;
    let sets: Vec<_> = datasets.iter().enumerate().filter(|(_, set)| set.held_out == held_out).collect();
    let total: f64 = sets.iter().filter_map(|(_, set)| set.weight).sum();
    let heading = |(idx, set): &(usize, &DatasetSpec)| {
        let source = match downloaded.pinned.iter().find(|pinned| pinned.idx == *idx) {
            Some(pinned) => {
                let config =
                    pinned.wanted.config.as_ref().map_or(String::new(), |config| format!(" config {config}"));
                let (wanted, commit) = (&pinned.wanted, &pinned.commit);
                format!("{}{config} split {} at commit {commit}", wanted.repo, wanted.split)
            }
            None => set.files.join(", "),
        };
        let share = set.weight.map_or(String::new(), |weight| {
            format!("; weight {weight}, {:.1} % of an epoch", 100.0 * weight / total)
        });
        format!("spec.data.datasets[{idx}]: {source}{share}")
    };
    sets.iter().map(heading).collect()
}

/// Returns the folder of the job's model; `None` for a model that is built from its architecture.
fn model_folder(spec: &ResolvedSpec) -> Result<Option<PathBuf>, TrainError> {
    Ok(match &spec.model.source {
        ModelSource::Path(path) => Some(path.into()),
        // The training would fetch the same files.
        ModelSource::Hub(source) => Some(rlt_hub::fetch(source, None)?.dir),
        ModelSource::Architecture(_) => None,
    })
}

/// Returns the model's context length in tokens; unlimited if the configuration is missing or invalid, which
/// the training reports.
fn context(spec: &ResolvedSpec, folder: Option<&Path>) -> usize {
    match (&spec.model.source, folder) {
        (ModelSource::Architecture(model), _) => model.max_position_embeddings as usize,
        (_, Some(folder)) => read_config(folder).map_or(usize::MAX, |config| context_of(&config)),
        (_, None) => usize::MAX,
    }
}

/// One-line description of an item, its text, and its problem, if any.
struct Description {
    line: String,
    text: String,
    problem: Option<String>,
}

fn describe_prompt(
    location: &RowLocation,
    prompt: &Prompt,
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

fn describe_preference(example: &PreferenceExample, tokenizer: &Tokenizer) -> Description {
    if !example.step_ends.is_empty() {
        return describe_steps(example, tokenizer);
    }
    let (mut lengths, mut text) = (Vec::new(), example.prompt.text.clone());
    for (tokens, is_good) in example.completions.iter().zip(&example.labels) {
        let word = if *is_good { "chosen" } else { "rejected" };
        lengths.push(format!("{} {word}", tokens.len()));
        let completion = tokenizer.decode_verbatim(tokens);
        let completion = completion.unwrap_or_else(|error| error.to_string());
        text.push_str(&format!("\n[{word}] {completion}"));
    }
    let line = format!("{} tokens of the prompt, {}", example.prompt.tokens.len(), lengths.join(", "));
    Description { line, text, problem: None }
}

/// Describes a completion of several steps, each with its label. If only the last step has a label, the text
/// before it is shown as a part of it.
fn describe_steps(example: &PreferenceExample, tokenizer: &Tokenizer) -> Description {
    let (tokens, mut text) = (example.completions.concat(), example.prompt.text.clone());
    let mut start = 0;
    for (end, is_right) in example.step_ends.iter().zip(&example.labels) {
        let word = if *is_right { "right" } else { "wrong" };
        let step = tokenizer.decode_verbatim(&tokens[start..*end]);
        let step = step.unwrap_or_else(|error| error.to_string());
        text.push_str(&format!("\n[{word}] {step}"));
        start = *end;
    }
    let (num_prompt, num_steps) = (example.prompt.tokens.len(), example.step_ends.len());
    let num_right = example.labels.iter().filter(|is_right| **is_right).count();
    let line = format!(
        "{num_prompt} tokens of the prompt, {} of {num_steps} labelled steps, {num_right} of them right",
        tokens.len()
    );
    Description { line, text, problem: None }
}

/// Writes the rows of each data set, and the numbers of all rows by outcome.
fn write_sets<T>(
    output: &mut impl Write,
    headings: &[String],
    sets: &[Vec<Preview<T>>],
    describe: impl Fn(&RowLocation, &T) -> Description,
) -> std::io::Result<Counts> {
    let mut total = Counts::default();
    for (idx, rows) in sets.iter().enumerate() {
        if let Some(heading) = headings.get(idx) {
            writeln!(output, "{heading}\n")?;
        }
        let counts = write_all(output, rows, &describe)?;
        total.kept += counts.kept;
        total.truncated += counts.truncated;
        total.filtered += counts.filtered;
        total.broken += counts.broken;
    }
    let Counts { kept, truncated, filtered, broken } = total;
    let num_rows: usize = sets.iter().map(Vec::len).sum();
    writeln!(output, "{num_rows} rows: {kept} kept, {truncated} cut, {filtered} left out, {broken} wrong")?;
    Ok(total)
}

fn write_all<T>(
    output: &mut impl Write,
    rows: &[Preview<T>],
    describe: impl Fn(&RowLocation, &T) -> Description,
) -> std::io::Result<Counts> {
    let mut counts = Counts::default();
    for Preview { location, outcome } in rows {
        let (word, item) = match outcome {
            RowOutcome::Kept(item) => ("kept", item),
            RowOutcome::Truncated(item) => ("cut to the allowed length", item),
            RowOutcome::Filtered { num_tokens, max_tokens } => {
                counts.filtered += 1;
                writeln!(output, "{location}: left out: {num_tokens} tokens, at most {max_tokens}\n")?;
                continue;
            }
            RowOutcome::Broken(error) => {
                counts.broken += 1;
                writeln!(output, "{location}: wrong: {}\n", causes(error))?;
                continue;
            }
        };
        let Description { line, text, problem } = describe(location, item);
        match (&problem, outcome) {
            (Some(_), _) => counts.broken += 1,
            (None, RowOutcome::Truncated(_)) => counts.truncated += 1,
            (None, _) => counts.kept += 1,
        }
        let word = problem.map_or_else(|| word.to_owned(), |problem| format!("wrong: {problem}"));
        writeln!(output, "{location}: {word}; {line}")?;
        text.lines().try_for_each(|line| writeln!(output, "  | {line}"))?;
        writeln!(output)?;
    }
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
