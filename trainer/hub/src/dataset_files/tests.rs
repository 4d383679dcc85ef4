//! Repositories as they are on the hub, by the names of their files and the heads of their READMEs.

use super::*;

fn head(configs: &str) -> String {
    format!("---\nlicense: mit\nconfigs:\n{configs}---\n# A data set\n---\nconfigs: none\n")
}

fn found(names: &[&str], readme: Option<&str>, config: Option<&str>, split: &str) -> Vec<String> {
    find(names, readme, config, split).unwrap()
}

fn refusal(names: &[&str], readme: Option<&str>, config: Option<&str>, split: &str) -> String {
    find(names, readme, config, split).unwrap_err().to_string()
}

#[test]
fn configs_of_a_readme_name_the_files_of_each_split() {
    let names = [
        ".gitattributes",
        "README.md",
        "main/test-00000-of-00001.parquet",
        "main/train-00001-of-00002.parquet",
        "main/train-00000-of-00002.parquet",
        "socratic/train-00000-of-00001.parquet",
    ];
    let readme = head(
        "- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n  - split: test\n    \
         path: main/test-*\n- config_name: socratic\n  data_files:\n  - split: train\n    path:\n    - \
         socratic/train-*\n",
    );
    let readme = Some(readme.as_str());
    let shards = ["main/train-00000-of-00002.parquet", "main/train-00001-of-00002.parquet"];
    assert_eq!(found(&names, readme, Some("main"), "train"), shards);
    assert_eq!(found(&names, readme, Some("main"), "test"), [names[2]]);
    assert_eq!(found(&names, readme, Some("socratic"), "train"), [names[5]]);
    let all = r#"["main", "socratic"]"#;
    assert!(refusal(&names, readme, None, "train").contains(all));
    assert!(refusal(&names, readme, Some("other"), "train").contains(all));
    assert!(refusal(&names, readme, Some("socratic"), "test").contains(r#"["train"]"#));
}

#[test]
fn a_configuration_is_the_default_by_its_name_its_mark_or_by_being_alone() {
    let names = ["a.jsonl", "b.jsonl"];
    let two = |more: &str, name: &str| {
        head(&format!(
            "- config_name: a\n  data_files: a.jsonl\n- config_name: {name}\n  data_files: b.jsonl\n{more}"
        ))
    };
    assert_eq!(found(&names, Some(&two("", "default")), None, "train"), ["b.jsonl"]);
    assert_eq!(found(&names, Some(&two("  default: true\n", "b")), None, "train"), ["b.jsonl"]);
    assert_eq!(
        found(&names, Some(&head("- config_name: a\n  data_files: [a.jsonl]\n")), None, "train"),
        ["a.jsonl"]
    );
    let by_split = head("- data_files:\n    train: a.jsonl\n    test: [b.jsonl]\n");
    assert_eq!(found(&names, Some(&by_split), None, "test"), ["b.jsonl"]);
}

#[test]
fn a_folder_of_a_configuration_stands_before_its_names() {
    let names = ["english/train.jsonl", "english/dev.jsonl", "german/train.jsonl", "train.jsonl"];
    let readme =
        head("- config_name: german\n  data_dir: german\n- config_name: english\n  data_dir: ./english/\n");
    assert_eq!(found(&names, Some(&readme), Some("german"), "train"), ["german/train.jsonl"]);
    assert_eq!(found(&names, Some(&readme), Some("english"), "validation"), ["english/dev.jsonl"]);
}

#[test]
fn without_configs_names_tell_the_split() {
    let shards = ["data/train-00000-of-00001.parquet", "data/rare-00000-of-00001-3f.parquet", "test.jsonl"];
    assert_eq!(found(&shards, None, None, "train"), [shards[0]]);
    assert_eq!(found(&shards, Some("# No head"), Some("default"), "rare"), [shards[1]]);
    assert!(refusal(&shards, None, None, "test").contains(r#"["rare", "train"]"#));

    let folders = ["a/training/1.jsonl", "a/my-eval_set/b/2.jsonl", "train.jsonl", "__x__/train/3.jsonl"];
    assert_eq!(found(&folders, None, None, "train"), [folders[0]]);
    assert_eq!(found(&folders, None, None, "test"), [folders[1]]);

    let files =
        ["gsm8k_train.jsonl", "train-2.jsonl", "dev.jsonl", "retrain.jsonl", ".train.jsonl", "config.json"];
    assert_eq!(found(&files, None, None, "train"), ["train-2.jsonl", "gsm8k_train.jsonl"]);
    assert_eq!(found(&files, None, None, "validation"), ["dev.jsonl"]);

    let untold = ["b.jsonl", "a/c.jsonl", "README.md", "dataset_infos.json"];
    assert_eq!(found(&untold, None, None, "train"), ["a/c.jsonl", "b.jsonl"]);
    assert!(refusal(&untold, None, Some("other"), "train").contains(r#"["default"]"#));
}

#[test]
fn one_format_is_read_and_others_are_named() {
    let mixed = ["train/a.parquet", "train/b.jsonl", "train/c.jsonl", "train/d.csv"];
    assert_eq!(found(&mixed, None, None, "train"), [mixed[1], mixed[2]]);
    assert_eq!(found(&mixed[..2], None, None, "train"), [mixed[0]]);
    assert!(refusal(&["train.csv", "a.txt"], None, None, "train").contains(r#"["a.txt", "train.csv"]"#));
}

#[test]
fn a_head_that_is_no_yaml_and_a_pattern_that_is_none_are_refused() {
    assert!(refusal(&["a.jsonl"], Some("---\nconfigs: [\n---\n"), None, "train").contains("README.md"));
    let readme = head("- data_files: 'a[.jsonl'\n");
    assert!(refusal(&["a.jsonl"], Some(&readme), None, "train").contains("a[.jsonl"));
    // Paths and URLs outside of the repository match no file.
    for path in ["/etc/passwd", "../a.jsonl", "hf://datasets/other/a.jsonl", "https://a/b.jsonl"] {
        let readme = head(&format!("- data_files: '{path}'\n"));
        assert!(refusal(&["a.jsonl"], Some(&readme), None, "train").contains("found"), "{path}");
    }
}

#[test]
fn patterns_are_those_of_python() {
    let finds = |pattern: &str, name: &str| Glob::new(pattern).unwrap().finds(name);
    for (pattern, name) in [
        ("*.jsonl", "a.jsonl"),
        ("**", "a/b/c"),
        ("**/c", "c"),
        ("**/c", "a/b/c"),
        ("a/**/c", "a/c"),
        ("a?c", "abc"),
        ("[!a]b", "cb"),
        ("[]a]b", "]b"),
        ("[a-c^&&~[]x", "^x"),
        ("a+(b)", "a+(b)"),
        (".*/a", ".b/a"),
        ("__*/a", "__b/a"),
    ] {
        assert!(finds(pattern, name), "{pattern} {name}");
    }
    for (pattern, name) in [
        ("*.jsonl", "a/b.jsonl"),
        ("a?c", "a/c"),
        ("[!a]b", "ab"),
        ("a.b", "axb"),
        ("**", ".a"),
        ("**", "__a/b"),
        ("*", "ab/c"),
    ] {
        assert!(!finds(pattern, name), "{pattern} {name}");
    }
}
