//! Rule of files that manifests, models and data sets name: `rlt-files` opens them. A direct read would wait
//! for the writer of a pipe, or read a device until the memory is full.

use rlt_rules::rust_sources;

/// Code that reads no file which users, models or data sets name: the operator, and links to libraries.
const EXEMPT: [&str; 7] = [
    "crds/files/src/",
    "crds/channel/src/",
    "operator/src/",
    "operator/cli/src/documented_commands.rs",
    "trainer/torch/src/",
    "trainer/src/commands/gpu_check/",
    "examples/",
];
/// Readers of files that the run itself or the kernel has written, each with the files that it reads.
const OWN: [(&str, &str); 14] = [
    ("trainer/engine/src/memory.rs", "limits of the control group"),
    ("trainer/hub/src/push.rs", "the exported folder"),
    ("trainer/hub/src/push/large.rs", "the exported folder"),
    ("trainer/src/commands/launch/children.rs", "the last words of a rank"),
    ("trainer/src/commands/worker.rs", "the manifest and result of the run folder"),
    ("trainer/src/observe/report/run.rs", "what the kernel says of the machine"),
    ("trainer/src/roles/reference/log_prob_cache.rs", "cached log-probs of the reference"),
    ("trainer/src/run/prefetch.rs", "libraries of this process"),
    ("trainer/src/run/setup/hub_models.rs", "records of commits in the run folder"),
    ("trainer/storage/src/checkpoint/remote/", "checkpoints of the run, which are copied"),
    ("trainer/storage/src/checkpoint/storage.rs", "folders that are synced"),
    ("trainer/storage/src/run_folder.rs", "the run folder"),
    ("trainer/tracking/src/append_file.rs", "logs that are cut and appended to"),
    ("trainer/tracking/src/tensorboard.rs", "logs that are appended to"),
];
/// Calls that open a file of any kind.
const DIRECT: [&str; 5] =
    ["File::open(", "fs::read(", "fs::read_to_string(", "io::read_to_string(", "tokio::fs::"];

/// Calls that give a finished file or folder its final name. A loss of power may undo them until the folder
/// that contains the name is synced.
const RENAMES: [&str; 2] = [".persist(", "fs::rename("];
/// The file system of checkpoints. Its callers sync folders, which tests of power losses prove.
const RENAMES_FOR_OTHERS: &str = "trainer/storage/src/checkpoint/storage.rs";
/// Maximum number of lines between a rename and the sync of its folder.
const LINES_TO_SYNC: usize = 4;

/// Calls that sync the content of a file. Without them a file may have its name, but no content, after a loss
/// of power.
const SYNCS: [&str; 2] = [".sync_all()", "file.sync()?"];
/// File that renames a folder whose files are synced when they are fetched.
const RENAMES_SYNCED_FOLDERS: &str = "trainer/storage/src/checkpoint/remote/fetch.rs";
/// Maximum number of lines between the sync of the content and the rename.
const LINES_FROM_SYNC: usize = 2;

/// Returns the lines that rename a file and for which `is_synced` is false, with their numbers.
fn renames_without(code: &str, is_synced: impl Fn(&[&str], usize) -> bool) -> Vec<(usize, &str)> {
    let lines: Vec<&str> = code.lines().collect();
    let is_rename =
        |line: &str| !line.trim_start().starts_with("//") && RENAMES.iter().any(|call| line.contains(call));
    let unsynced = lines.iter().enumerate().filter(|(idx, line)| is_rename(line) && !is_synced(&lines, *idx));
    unsynced.map(|(idx, line)| (idx + 1, line.trim())).collect()
}

/// Returns the lines that rename a file without syncing its folder, with their numbers.
fn unsynced_renames(code: &str) -> Vec<(usize, &str)> {
    renames_without(code, |lines, idx| {
        lines.iter().skip(idx).take(LINES_TO_SYNC + 1).any(|line| line.contains("rlt_files::sync_folder("))
    })
}

/// Returns the lines that rename a file whose content is not synced, with their numbers.
fn renames_of_unsynced_files(code: &str) -> Vec<(usize, &str)> {
    renames_without(code, |lines, idx| {
        let before = &lines[idx.saturating_sub(LINES_FROM_SYNC)..idx];
        before.iter().any(|line| SYNCS.iter().any(|call| line.contains(call)))
    })
}

#[test]
fn a_file_that_gets_its_name_has_it_after_a_power_loss_too() {
    let (mut found, mut num_renames) = (Vec::new(), 0);
    for file in rust_sources().unwrap() {
        let Some(code) = file.production_code().filter(|_| file.path.contains("/src/")) else { continue };
        if file.path.starts_with("tests/") || file.path == RENAMES_FOR_OTHERS {
            continue;
        }
        num_renames += RENAMES.iter().map(|call| code.matches(call).count()).sum::<usize>();
        let unsynced = unsynced_renames(code).into_iter();
        found.extend(unsynced.map(|(at, line)| format!("{}:{at}: {line}", file.path)));
    }
    assert!(found.is_empty(), "sync the folder by rlt_files::sync_folder:\n{}", found.join("\n"));
    assert!(num_renames > 5, "renames are found: {num_renames}");
}

#[test]
fn a_file_is_synced_before_it_gets_its_name() {
    let mut found = Vec::new();
    for file in rust_sources().unwrap() {
        let Some(code) = file.production_code().filter(|_| file.path.contains("/src/")) else { continue };
        if [RENAMES_FOR_OTHERS, RENAMES_SYNCED_FOLDERS].contains(&file.path.as_str()) {
            continue;
        }
        let unsynced = renames_of_unsynced_files(code).into_iter();
        found.extend(unsynced.map(|(at, line)| format!("{}:{at}: {line}", file.path)));
    }
    assert!(found.is_empty(), "sync the file before it is renamed:\n{}", found.join("\n"));
}

#[test]
fn a_rename_is_found_unless_the_file_is_synced_just_before_it() {
    let code = "file.as_file().sync_all()?;\n// It is complete.\nfile.persist(path)?;\n\n\n\
                std::fs::rename(a, b)?;\nfile.sync_all()?;\n";
    assert_eq!(renames_of_unsynced_files(code), [(6, "std::fs::rename(a, b)?;")]);
}

#[test]
fn a_rename_is_found_unless_the_folder_is_synced_soon_after_it() {
    let code = "file.persist(path)?;\nrlt_files::sync_folder(folder)\n}\n\n\n\n\
                // fs::rename(a, b)\nstd::fs::rename(a, b)?;\n\n\n\n\nrlt_files::sync_folder(folder)\n";
    assert_eq!(unsynced_renames(code), [(8, "std::fs::rename(a, b)?;")]);
}

/// Returns the lines that open a file directly, with their numbers.
fn direct_reads(code: &str) -> Vec<(usize, &str)> {
    let is_direct =
        |line: &str| !line.trim_start().starts_with("//") && DIRECT.iter().any(|call| line.contains(call));
    let lines = code.lines().enumerate().filter(|(_, line)| is_direct(line));
    lines.map(|(idx, line)| (idx + 1, line.trim())).collect()
}

#[test]
fn files_that_others_name_are_opened_by_one_package() {
    let (mut found, mut read) = (Vec::new(), Vec::new());
    let mut num_readers = 0;
    for file in rust_sources().unwrap() {
        let Some(code) = file.production_code().filter(|_| file.path.contains("/src/")) else { continue };
        if EXEMPT.iter().any(|folder| file.path.starts_with(folder)) {
            continue;
        }
        num_readers += code.matches("rlt_files::").count();
        let reads = direct_reads(code);
        match OWN.iter().find(|(path, _)| file.path.starts_with(path)) {
            Some((path, _)) if !reads.is_empty() => read.push(*path),
            Some(_) => {}
            None => found.extend(reads.iter().map(|(at, line)| format!("{}:{at}: {line}", file.path))),
        }
    }
    assert!(found.is_empty(), "use rlt_files::open, read or read_to_string:\n{}", found.join("\n"));
    assert!(num_readers > 20, "readers are found: {num_readers}");
    for (path, what) in OWN {
        assert!(read.contains(&path), "{path} no longer reads {what}: take it from the list");
    }
}

#[test]
fn a_direct_read_is_found_and_a_mention_or_another_call_is_not() {
    let code = "let file = File::open(path)?;\n// fs::read(path)\nstd::fs::read_to_string(path)\n\
                rlt_files::read(path, 3)\n\
                fs::read_dir(path)\nrlt_files::read_to_string(path, 3)\nstd::io::read_to_string(stdin())\n";
    let lines: Vec<_> = direct_reads(code).into_iter().map(|(number, _)| number).collect();
    assert_eq!(lines, [1, 3, 7]);
}
