//! Benchmark of how many of the projects' public scripts are converted completely, as a Markdown table.
//!
//! Run it by `CONVERT_SCRIPTS="verl:/checkouts/verl/examples trl:.." cargo bench --package rlt-convert`;
//! nothing of the scripts is stored. A script counts if it starts a known trainer; of several starts the
//! first counts. Instead of a folder, a Markdown page may be given: each block that starts a trainer is a
//! script, and gets a model and a data set by additional flags, which such blocks omit. Settings files that a
//! script names are read if a folder above it has them.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use rlt_convert::{ConvertError, Fate, Launch, convert, launches, launches_of_markdown};

/// Results for the scripts of one project.
#[derive(Default)]
struct Tally {
    scripts: usize,
    elsewhere: usize,
    failed: Vec<String>,
    /// Manifests that are invalid, with their problems.
    invalid: Vec<String>,
    /// Scripts that start no known trainer.
    silent: Vec<String>,
    whole: usize,
    valid: usize,
    settings: usize,
    lost: BTreeMap<String, usize>,
}

fn main() {
    let Ok(folders) = env::var("CONVERT_SCRIPTS") else {
        println!("CONVERT_SCRIPTS is not set: nothing to convert");
        return;
    };
    println!(
        "| project | scripts | that start its trainers | manifests that are valid | whole | settings | without an equal |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let mut details = String::new();
    for folder in folders.split_whitespace() {
        let Some((name, path)) = folder.split_once(':') else { continue };
        let tally = tally(Path::new(path));
        let launched = tally.scripts - tally.elsewhere;
        let lost: usize = tally.lost.values().sum();
        println!(
            "| {name} | {} | {launched} | {} | {} | {} | {lost} |",
            tally.scripts, tally.valid, tally.whole, tally.settings
        );
        details += &format!("\n## Without an equal: {name}\n\n");
        let mut lost: Vec<_> = tally.lost.into_iter().collect();
        lost.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        lost.iter().take(20).for_each(|(reason, count)| details += &format!("- {count}: {reason}\n"));
        tally.failed.iter().for_each(|failure| details += &format!("- not converted: {failure}\n"));
        tally.invalid.iter().for_each(|invalid| details += &format!("- not valid: {invalid}\n"));
        tally.silent.iter().for_each(|path| details += &format!("- starts none: {path}\n"));
    }
    println!("{details}");
}

fn tally(folder: &Path) -> Tally {
    let mut tally = Tally::default();
    let environment = BTreeMap::from([("HOME".to_owned(), "/home/me".to_owned())]);
    if folder.extension().is_some_and(|extension| extension == "md") {
        tally.add_page(folder, &fs::read_to_string(folder).unwrap_or_default());
        return tally;
    }
    for path in scripts(folder) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let is_script = path.extension().is_some_and(|extension| extension == "sh");
        let commands = if is_script { vec![text] } else { commands(&text) };
        for text in commands {
            tally.add(&path, &text, &environment);
        }
    }
    tally
}

/// Returns the fenced blocks of commands in a text, such as the head of a Python example.
fn commands(text: &str) -> Vec<String> {
    let blocks = text.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    let is_shell = |language: &str| matches!(language.trim(), "" | "bash" | "sh" | "shell" | "console");
    let commands = blocks.filter(|(language, _)| is_shell(language)).map(|(_, commands)| commands.to_owned());
    commands
        .filter(|text| ["python ", "accelerate ", "trl "].iter().any(|program| text.contains(program)))
        .collect()
}

impl Tally {
    fn add(&mut self, path: &Path, text: &str, environment: &BTreeMap<String, String>) {
        let tally = self;
        tally.scripts += 1;
        match launches(text, environment, &[]) {
            Err(ConvertError::NoLaunch) => {
                tally.elsewhere += 1;
                tally.silent.push(path.display().to_string());
            }
            Err(error) => tally.failed.push(format!("{}: {error}", path.display())),
            Ok((launches, _)) => tally.convert(path, &launches[0]),
        }
    }

    fn add_page(&mut self, path: &Path, text: &str) {
        let flags = ["--model_name_or_path", "org/base", "--dataset_name", "org/data"].map(str::to_owned);
        let Ok((launches, _)) = launches_of_markdown(text, &BTreeMap::new(), &flags) else { return };
        for launch in launches {
            self.scripts += 1;
            self.convert(path, &launch);
        }
    }

    fn convert(&mut self, path: &Path, launch: &Launch) {
        let tally = self;
        let files: Vec<String> = launch.files.iter().filter_map(|name| settings_file(path, name)).collect();
        match convert(launch, &files, "test") {
            Err(error) => tally.failed.push(format!("{}: {error}", path.display())),
            Ok(conversion) => {
                tally.settings += conversion.outcomes.len();
                tally.whole += usize::from(conversion.is_whole());
                let problems = rlt_api::validate(&conversion.manifest).err().unwrap_or_default();
                tally.valid += usize::from(problems.is_empty());
                for problem in &problems {
                    tally.invalid.push(format!("{}: {problem}", path.display()));
                }
                for outcome in conversion.lost() {
                    if let Fate::Absent(reason) | Fate::Unknown(reason) = &outcome.fate {
                        let key = if matches!(outcome.fate, Fate::Unknown(_)) { &outcome.key } else { "" };
                        *tally.lost.entry(format!("{key} {reason}").trim().to_owned()).or_default() += 1;
                    }
                }
            }
        }
    }
}

/// Reads a settings file, relative to any of the folders above a script.
fn settings_file(script: &Path, name: &str) -> Option<String> {
    script.ancestors().find_map(|folder| fs::read_to_string(folder.join(name)).ok())
}

/// Finds all shell and Python scripts below a folder, sorted by name.
fn scripts(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|extension| extension == "sh" || extension == "py") => {
                    found.push(path)
                }
                false => {}
            }
        }
    }
    found.sort();
    found
}
