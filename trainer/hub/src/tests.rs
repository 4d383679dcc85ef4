//! Fetching from a server on this machine that answers as the hub does.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rlt_mutations::{cases, mutated};
use rlt_tests::hub_server::{COMMIT, HubServer, REPO};

use super::*;

fn spec(hub: &HubServer, revision: &str) -> HubSpec {
    let endpoint = Some(hub.endpoint().to_owned());
    HubSpec { repo: REPO.to_owned(), revision: revision.to_owned(), endpoint }
}

/// Files of a repository with a model, and two that are not the model's.
fn repository() -> BTreeMap<String, Vec<u8>> {
    let file = |name: &str, content: &[u8]| (name.to_owned(), content.to_vec());
    BTreeMap::from([
        file("config.json", br#"{"architectures": ["MistralForCausalLM"]}"#),
        file("model.safetensors", &[7; 4096]),
        file("modeling_tiny.py", b"not wanted"),
        file("pytorch_model.bin", b"not wanted"),
    ])
}

#[test]
fn a_branch_becomes_a_commit_and_the_files_of_its_model_are_fetched() {
    let files = repository();
    let hub = HubServer::start(files.clone()).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let fetched = fetch(&spec(&hub, "main"), Some(cache.path())).unwrap();
    assert_eq!(fetched.commit, COMMIT);
    for (name, content) in &files {
        let there = std::fs::read(fetched.dir.join(name)).ok();
        assert_eq!(there.as_ref(), is_of_model(name).then_some(content), "{name}");
    }
    let downloads = hub.downloads();
    assert_eq!(downloads.len(), 2, "{downloads:?}");
    assert!(downloads.iter().all(|line| line.contains(COMMIT)), "{downloads:?}");

    let again = fetch(&spec(&hub, COMMIT), Some(cache.path())).unwrap();
    assert_eq!(again, fetched);
    assert_eq!(hub.downloads(), downloads, "files that are there are not fetched again");
}

#[test]
fn a_commit_whose_files_are_all_in_the_cache_needs_no_hub() {
    let files = repository();
    let hub = HubServer::start(files).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let fetched = fetch(&spec(&hub, "main"), Some(cache.path())).unwrap();
    let closed = rlt_tests::HeldPort::new().unwrap();
    let endpoint = format!("http://127.0.0.1:{}", closed.number());
    let at = |revision: &str| HubSpec { endpoint: Some(endpoint.clone()), ..spec(&hub, revision) };
    assert_eq!(fetch(&at(COMMIT), Some(cache.path())).unwrap(), fetched);
    let error = fetch(&at("main"), Some(cache.path())).unwrap_err();
    assert!(matches!(error, HubError::Resolve { .. }), "a branch may have moved: {error:?}");
    std::fs::remove_file(fetched.dir.join("config.json")).unwrap();
    let error = fetch(&at(COMMIT), Some(cache.path())).unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::RetryableIo);
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("config.json"), "{error:?}");
    std::fs::write(fetched.dir.join(".listing.json"), r#"[{"name": "../config.json", "num_bytes": 1}]"#)
        .unwrap();
    let error = fetch(&at(COMMIT), Some(cache.path())).unwrap_err();
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("listing"), "{error:?}");
    // Pods of other users may write to a shared cache. Opening the pipe to read it would block until a writer
    // opens it.
    let listing = fetched.dir.join(".listing.json");
    std::fs::remove_file(&listing).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &listing, rustix::fs::Mode::RUSR).unwrap();
    assert_eq!(snapshot::kept_listing(&fetched.dir), None);
}

#[test]
fn caches_that_share_a_folder_get_whole_files_whoever_fetches_at_the_same_time() {
    let files = repository();
    let hub = HubServer::start(files.clone()).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let dirs: Vec<PathBuf> = std::thread::scope(|scope| {
        let fetch = || fetch(&spec(&hub, "main"), Some(cache.path())).unwrap().dir;
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(fetch)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (name, content) in files.iter().filter(|(name, _)| is_of_model(name)) {
        assert_eq!(&std::fs::read(dirs[0].join(name)).unwrap(), content, "{name}");
    }
    let unfinished = std::fs::read_dir(&dirs[0])
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".fetching-"));
    assert_eq!(unfinished.count(), 0);
}

#[test]
fn a_server_that_lists_files_elsewhere_gets_nothing_written_and_nothing_removed() {
    for name in
        ["chat_template/../../../../precious", "../../../../precious", "/tmp/precious", "chat_template/.."]
    {
        let mut files = repository();
        files.insert(name.to_owned(), b"hostile".to_vec());
        let hub = HubServer::start(files).unwrap();
        let outer = tempfile::tempdir().unwrap();
        let cache = outer.path().join("cache");
        std::fs::write(outer.path().join("precious"), "of another owner").unwrap();
        let error = fetch(&spec(&hub, "main"), Some(&cache)).unwrap_err();
        assert_eq!(error.exit_code(), ExitCode::BadConfig);
        assert!(std::error::Error::source(&error).unwrap().to_string().contains(name), "{error:?}");
        assert_eq!(std::fs::read_to_string(outer.path().join("precious")).unwrap(), "of another owner");
        assert!(!cache.exists() && hub.downloads().is_empty(), "{name}");
    }
}

/// Variable with the mirror from which a process of the test below fetches.
const MIRROR: &str = "RLT_TEST_MIRROR";

#[test]
fn the_users_token_is_sent_to_their_own_mirror_but_not_to_that_of_a_manifest() {
    if let Ok(endpoint) = std::env::var(MIRROR) {
        let revision = "main".to_owned();
        let spec = HubSpec { repo: REPO.to_owned(), revision, endpoint: Some(endpoint) };
        let cache = tempfile::tempdir().unwrap();
        fetch(&spec, Some(cache.path())).unwrap();
        return;
    }
    let login = tempfile::tempdir().unwrap();
    std::fs::write(login.path().join("token"), "hf_of_the_user").unwrap();
    let authorizations = |variable: &str, value: &std::ffi::OsStr, is_own_mirror: bool| {
        let hub = HubServer::start(repository()).unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let test = "tests::the_users_token_is_sent_to_their_own_mirror_but_not_to_that_of_a_manifest";
        child.args([test, "--exact"]).env(MIRROR, hub.endpoint());
        for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "HF_HUB_DISABLE_IMPLICIT_TOKEN"] {
            child.env_remove(name);
        }
        if is_own_mirror {
            child.env("HF_ENDPOINT", hub.endpoint());
        }
        let output = child.env(variable, value).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let received = hub.authorizations();
        assert!(!received.is_empty(), "the process has fetched nothing");
        received
    };
    let expected = Some("Bearer hf_of_the_user".to_owned());
    for (variable, value) in [("HF_TOKEN", "hf_of_the_user".as_ref()), ("HF_HOME", login.path().as_os_str())]
    {
        let received = authorizations(variable, value, false);
        assert!(received.iter().all(Option::is_none), "{variable}: {received:?}");
        let received = authorizations(variable, value, true);
        assert!(received.contains(&expected), "{variable}: {received:?}");
    }
}

#[test]
fn an_unavailable_repository_or_revision_is_named() {
    let files = repository();
    let hub = HubServer::start(files).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let refusal = |spec: &HubSpec| fetch(spec, Some(cache.path())).unwrap_err().to_string();
    assert_eq!(refusal(&spec(&hub, "gone")), "resolving revision \"gone\" of owner/tiny to a commit");
    assert_eq!(
        refusal(&spec(&hub, "odd")),
        "resolving revision \"odd\" of owner/tiny: expected a commit of 40 hexadecimal digits, got \"main\""
    );
    let elsewhere = HubSpec { repo: "owner/other".to_owned(), ..spec(&hub, "main") };
    assert!(refusal(&elsewhere).contains("owner/other"));
    let invalid = HubSpec { endpoint: Some("not an address".to_owned()), ..spec(&hub, "main") };
    assert!(refusal(&invalid).contains("connecting to the hub"));
}

#[test]
fn requests_that_the_hub_rejects_permanently_are_not_retried() {
    let files = repository();
    let hub = HubServer::start(files).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let code = |spec: &HubSpec| fetch(spec, Some(cache.path())).unwrap_err().exit_code();
    assert_eq!(code(&spec(&hub, "gone")), ExitCode::BadConfig);
    assert_eq!(code(&spec(&hub, &"f".repeat(40))), ExitCode::BadConfig);
    assert_eq!(code(&HubSpec { repo: "owner/other".to_owned(), ..spec(&hub, "main") }), ExitCode::BadConfig);
    for (status, expected) in [
        ("401 Unauthorized", ExitCode::BadConfig),
        ("403 Forbidden", ExitCode::BadConfig),
        ("404 Not Found", ExitCode::BadConfig),
        ("500 Internal Server Error", ExitCode::RetryableIo),
        ("503 Service Unavailable", ExitCode::RetryableIo),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Some(format!("http://{}", listener.local_addr().unwrap()));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut lines = std::io::BufRead::lines(std::io::BufReader::new(&stream));
                while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                let _ = std::io::Write::write_all(&mut &stream, answer.as_bytes());
            }
        });
        assert_eq!(code(&HubSpec { endpoint, ..spec(&hub, "main") }), expected, "{status}");
    }
}

#[test]
fn a_cached_file_that_is_cut_off_is_fetched_again() {
    let files = repository();
    let hub = HubServer::start(files.clone()).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let fetched = fetch(&spec(&hub, "main"), Some(cache.path())).unwrap();
    let num_downloads = hub.downloads().len();
    let weights = fetched.dir.join("model.safetensors");
    std::fs::write(&weights, &files["model.safetensors"][..100]).unwrap();
    fetch(&spec(&hub, "main"), Some(cache.path())).unwrap();
    assert_eq!(&std::fs::read(&weights).unwrap(), &files["model.safetensors"]);
    assert_eq!(hub.downloads().len(), num_downloads + 1, "whole files are not fetched again");
}

#[test]
fn files_for_which_the_disk_has_no_space_are_not_fetched() {
    let files = repository();
    let edits = |path: &str, body: Vec<u8>| {
        if path.contains("/tree/") {
            br#"[{"type": "file", "size": 4611686018427387904, "path": "config.json"}]"#.to_vec()
        } else {
            body
        }
    };
    let hub = HubServer::start_with(files, BTreeMap::new(), edits).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let error = fetch(&spec(&hub, "main"), Some(cache.path())).unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::RetryableIo);
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(reason.contains("the missing files need 4611686018427387904"), "{reason}");
    assert!(reason.contains(&cache.path().display().to_string()), "{reason}");
    assert!(hub.downloads().is_empty());
}

#[test]
fn a_file_longer_than_the_server_lists_is_not_kept() {
    let files = repository();
    let edits = |path: &str, body: Vec<u8>| {
        if path.ends_with("/config.json") { [body, vec![b' '; 8 << 20]].concat() } else { body }
    };
    let hub = HubServer::start_with(files, BTreeMap::new(), edits).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let error = fetch(&spec(&hub, "main"), Some(cache.path())).unwrap_err();
    assert!(matches!(&error, HubError::Fetch { source: SnapshotError::TooLong { .. }, .. }), "{error:?}");
    let dir = cache.path().join("models--owner--tiny/snapshots").join(COMMIT);
    let names = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    assert!(!names.iter().any(|name| name == "config.json" || name.starts_with(".fetching-")), "{names:?}");
}

fn dataset(hub: &HubServer, config: Option<&str>, split: &str) -> HubDatasetSpec {
    let (config, endpoint) = (config.map(str::to_owned), Some(hub.endpoint().to_owned()));
    let (repo, revision) = (REPO.to_owned(), "main".to_owned());
    HubDatasetSpec { repo, revision, endpoint, config, split: split.to_owned() }
}

fn dataset_files() -> BTreeMap<String, Vec<u8>> {
    let readme = "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n  \
                  - split: test\n    path: main/test.jsonl\n---\n# Tiny\n";
    let file = |name: &str, content: &str| (name.to_owned(), content.as_bytes().to_vec());
    BTreeMap::from([
        file("README.md", readme),
        file("load.py", "not wanted"),
        file("main/train-b.jsonl", "{\"prompt\": \"b\"}\n"),
        file("main/train-a.jsonl", "{\"prompt\": \"a\"}\n"),
        file("main/test.jsonl", "{\"prompt\": \"c\"}\n"),
    ])
}

#[test]
fn only_the_files_of_one_split_of_a_data_set_are_fetched_and_cached() {
    let hub = HubServer::start_dataset(dataset_files()).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let fetched = fetch_dataset(&dataset(&hub, Some("main"), "train"), Some(cache.path())).unwrap();
    assert_eq!(fetched.commit, COMMIT);
    let dir = cache.path().join("datasets--owner--tiny/snapshots").join(COMMIT);
    let files = ["main/train-a.jsonl", "main/train-b.jsonl"].map(|name| dir.join(name));
    assert_eq!(fetched.files, files);
    assert_eq!(std::fs::read_to_string(&files[1]).unwrap(), "{\"prompt\": \"b\"}\n");
    let downloads = hub.downloads();
    assert_eq!(downloads.len(), 3, "README and two files: {downloads:?}");
    assert!(downloads.iter().all(|line| line.contains(&format!("/datasets/{REPO}/resolve/{COMMIT}/"))));
    let again = fetch_dataset(&dataset(&hub, None, "train"), Some(cache.path())).unwrap();
    assert_eq!((again, hub.downloads().len()), (fetched, 3));
    let left: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let is_hidden = |name: &&std::ffi::OsString| name.to_string_lossy().starts_with('.');
    let hidden: Vec<_> = left.iter().filter(is_hidden).collect();
    assert_eq!(hidden, [".listing.json"], "nothing half fetched is left");
}

#[test]
fn a_data_set_names_the_configuration_and_split_that_it_lacks() {
    let hub = HubServer::start_dataset(dataset_files()).unwrap();
    let cache = tempfile::tempdir().unwrap();
    for (config, split, words) in [
        (Some("other"), "train", "config: \"other\" is unknown, expected one of [\"main\"]"),
        (None, "dev", "split: unknown, expected one of [\"train\", \"test\"]"),
    ] {
        let error = fetch_dataset(&dataset(&hub, config, split), Some(cache.path())).unwrap_err();
        assert_eq!(error.exit_code(), ExitCode::BadConfig);
        assert!(error.to_string().contains(REPO) && error.to_string().contains(COMMIT), "{error}");
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), words);
    }
    assert_eq!(hub.downloads().len(), 1, "the README alone");
}

#[test]
fn a_data_set_whose_names_lead_elsewhere_gets_nothing_written() {
    for name in ["main/../../../precious.jsonl", "/tmp/precious.jsonl"] {
        let mut files = dataset_files();
        files.insert(name.to_owned(), b"{}".to_vec());
        let hub = HubServer::start_dataset(files).unwrap();
        let outer = tempfile::tempdir().unwrap();
        let cache = outer.path().join("cache");
        let error = fetch_dataset(&dataset(&hub, None, "train"), Some(&cache)).unwrap_err();
        assert_eq!(error.exit_code(), ExitCode::BadConfig);
        assert!(!cache.exists() && hub.downloads().is_empty(), "{name}");
    }
}

proptest! {
    #![proptest_config(cases(30))]

    /// Answers of a mirror: the list of files, or the description of the commit.
    #[test]
    fn an_answer_of_any_bytes_makes_a_snapshot_below_the_cache_or_is_refused(
        list in mutated(vec![br#"[{"type": "file", "oid": "a", "size": 2, "path": "config.json"}, {"type":
            "directory", "oid": "b", "size": 0, "path": "sub/folder"}, {"type": "file", "oid": "c", "size": 2,
            "path": "model.safetensors"}]"#.to_vec()]),
        commit in mutated(vec![format!(r#"{{"id": "{REPO}", "_id": "1", "sha": "{COMMIT}"}}"#).into_bytes()]),
        is_list in any::<bool>(),
    ) {
        let files = ["config.json", "model.safetensors"].map(|name| (name.to_owned(), b"{}".to_vec()));
        let edits = move |path: &str, body| match (path.contains("/tree/"), path.contains("/revision/")) {
            (true, _) if is_list => list.to_vec(),
            (_, true) if !is_list => commit.to_vec(),
            _ => body,
        };
        let hub = HubServer::start_with(files.into(), BTreeMap::new(), edits).unwrap();
        let outer = tempfile::tempdir().unwrap();
        match fetch(&spec(&hub, "main"), Some(&outer.path().join("cache"))) {
            Ok(fetched) => prop_assert!(fetched.dir.starts_with(outer.path().join("cache"))),
            Err(error) => prop_assert!(error.to_string().contains(REPO), "{error}"),
        }
        let beside = std::fs::read_dir(outer.path()).unwrap().map(|entry| entry.unwrap().file_name());
        prop_assert!(beside.into_iter().all(|name| name == "cache"));
    }
}
