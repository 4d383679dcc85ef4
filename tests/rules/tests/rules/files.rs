//! Files that manifests, models and data sets name are opened by `rlt-files`: a direct read would wait for
//! the writer of a pipe, or read a device until the memory is full.

use rlt_rules::rust_sources;

/// Code that reads no file which others name: the operator, links to libraries, logs that the trainer writes.
const EXEMPT: [&str; 9] = [
    "crds/files/src/",
    "crds/channel/src/",
    "operator/src/",
    "operator/cli/src/documented_commands.rs",
    "trainer/torch/src/",
    "trainer/tracking/src/",
    "trainer/src/commands/gpu_check/",
    "trainer/src/observe/report/",
    "examples/",
];
/// Readers of files that the run itself wrote, or the kernel, with what they read.
const OWN: [(&str, &str); 13] = [
    ("operator/cli/src/why/local.rs", "the lock of a run folder"),
    ("trainer/src/commands/launch/children.rs", "the last words of a rank"),
    ("trainer/src/commands/worker.rs", "the manifest and result of the run folder"),
    ("trainer/src/model/hub/push.rs", "the exported folder"),
    ("trainer/src/model/hub/push/large.rs", "the exported folder"),
    ("trainer/src/model/hub/snapshot.rs", "the cache of the hub, whose listing it wrote"),
    ("trainer/src/roles/reference/kept.rs", "kept log-probs of the reference"),
    ("trainer/src/roles/rollout/memory.rs", "limits of the control group"),
    ("trainer/src/run/prefetch.rs", "libraries of this process"),
    ("trainer/src/run/setup/hub_models.rs", "records of commits in the run folder"),
    ("trainer/storage/src/checkpoint/copies/", "checkpoints of the run, which are copied"),
    ("trainer/storage/src/checkpoint/storage.rs", "folders that are synced"),
    ("trainer/storage/src/run_folder.rs", "the run folder"),
];
/// Calls that open a file whatever it is.
const DIRECT: [&str; 5] =
    ["File::open(", "fs::read(", "fs::read_to_string(", "io::read_to_string(", "tokio::fs::"];

/// The lines that open a file directly, with their numbers.
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
