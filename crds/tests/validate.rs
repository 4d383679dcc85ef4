//! Tests of invalid manifests: one answer lists every problem, with its position, its value and the allowed
//! values.

#![expect(clippy::expect_used, reason = "a broken fixture should end the test")]

use proptest::prelude::*;
use rlt_api::{Problem, Reason, validate};
use serde_json::json;

const ARITHMETIC: &str = include_str!("fixtures/arithmetic.yaml");

fn problems(yaml: &str) -> Vec<Problem> {
    validate(yaml).expect_err("the manifest should be refused")
}

fn shown(yaml: &str) -> String {
    problems(yaml).iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

fn arithmetic_with(from: &str, to: &str) -> String {
    assert!(ARITHMETIC.contains(from), "{from}");
    ARITHMETIC.replacen(from, to, 1)
}

#[test]
fn all_problems_are_in_one_answer() {
    insta::assert_snapshot!(shown(
        r#"
apiVersion: rltraining.dev/v1
kind: RLTrainingJob
metadata:
  name: Not_A_Name
spec:
  model:
    architecture:
      family: llama
      hiddenSize: 100
      intermediateSize: 256
      numLayers: 0
      numHeads: 8
      numKvHeads: 3
      layers: 4
    tokenizer:
      characters: "0123456789"
  data:
    train: [a.csv]
    max_prompt_tokens: 12
  rewards:
    functions:
      - name: answer
        kind: Regex
      - name: answer
        kind: Exact
        wieght: 2
  algorithm:
    kind: GRP
    coldStart:
      batchSize: many
  rollout:
    topP: 1.5
    temperature: 0
    samplesPerPrompt: 1
  training:
    learningRate: 1e-5
    promptsPerStep: 32
    promptsPerUpdate: 5
    maxTokensPerMicroBatch: 8
    optimizer:
      betas: [0.9]
    evaluateEvery: -1
    steps:
  rollouts: 5
"#
    ));
}

#[test]
fn an_unknown_field_is_refused_at_any_depth_and_answered_with_the_one_that_was_meant() {
    let cases = [
        ("    samplesPerPrompt", "    samples_per_prompt", "spec.rollout.samplesPerPrompt"),
        ("      learningRate: 3", "      lerningRate: 3", "spec.training.optimizer.learningRate"),
        ("  rollout:", "  roll_out:", "spec.rollout"),
        ("  training:\n", "  training:\n    topP: 0.9\n", "spec.rollout.topP"),
        ("        kind: Exact", "        kind: Exact\n        weigth: 2", "spec.rewards.functions[0].weight"),
        ("metadata:", "meta:", "metadata"),
    ];
    for (from, to, meant) in cases {
        let problems = problems(&arithmetic_with(from, to));
        assert_eq!(
            problems.iter().filter(|problem| problem.message == "is not a field").count(),
            1,
            "{problems:?}"
        );
        assert!(
            problems.iter().any(|problem| problem.did_you_mean.as_deref() == Some(meant)),
            "{problems:?}"
        );
    }
}

#[test]
fn a_manifest_of_any_size_costs_a_bounded_number_of_problems() {
    let fields: String = (0..20_000).map(|idx| format!("  field{idx}: {{a: 1}}\n")).collect();
    let found = problems(&format!("spec:\n{fields}"));
    assert_eq!(found.len(), 101, "the last one says that there are more");
    assert!(found.iter().any(|problem| problem.message.contains("the first 100 are listed")));
    let long = format!("spec: {{? {} : 1}}\n", "a".repeat(500_000));
    assert!(problems(&long).iter().all(|problem| problem.to_string().len() < 4096));
}

#[test]
fn text_that_is_not_yaml_is_answered_with_line_and_column() {
    let broken = arithmetic_with("  rollout:\n", "  rollout: {\n");
    let answer = problems(&broken);
    assert_eq!(answer.len(), 1);
    assert!(answer[0].line.is_some_and(|line| line > 40) && answer[0].column.is_some(), "{answer:?}");
    let twice =
        arithmetic_with("    samplesPerPrompt: 16\n", "    samplesPerPrompt: 16\n    samplesPerPrompt: 16\n");
    insta::assert_snapshot!(
        [
            shown("spec: [1, 2"),
            shown("\tspec: 1"),
            shown(""),
            shown("- 1"),
            shown("a: 1\n---\nb: 2"),
            shown(&twice)
        ]
        .join("\n")
    );
}

#[test]
fn a_manifest_may_have_as_many_comments_as_people_write() {
    let comments = "# A field that is explained at length.\n".repeat(500);
    assert!(validate(&arithmetic_with("spec:\n", &format!("{comments}spec:\n{comments}"))).is_ok());
}

/// Tools that concatenate manifests end each with the separator of the next document.
#[test]
fn a_manifest_may_end_with_the_beginning_of_another_document() {
    assert!(validate(&format!("---\n{}---\n", arithmetic_with("spec:\n", "spec:\n"))).is_ok());
}

#[test]
fn each_type_of_value_is_distinguished() {
    for wrong in ["[1]", "{a: 1}", "true", "text", "1.5", "", "-1", "99999999999999999999"] {
        let answer =
            problems(&arithmetic_with("samplesPerPrompt: 16", &format!("samplesPerPrompt: {wrong}")));
        assert_eq!(answer.len(), 1, "{wrong}: {answer:?}");
        assert_eq!(answer[0].path, "spec.rollout.samplesPerPrompt", "{wrong}");
        assert_eq!(answer[0].allowed.as_deref(), Some("1 to 4096"), "{wrong}");
    }
}

#[test]
fn a_failure_rule_that_cannot_be_meant_is_answered_with_its_field_value_and_range() {
    let rule = |rule: &str| {
        let policy = format!("spec:\n  runPolicy: {{failurePolicy: {{rules: [{rule}]}}}}");
        let answer = problems(&arithmetic_with("spec:", &policy)).remove(0);
        (answer.path.replacen("spec.runPolicy.failurePolicy.rules", "", 1), answer.value, answer.allowed)
    };
    let codes =
        |values: &str| rule(&format!("{{action: Ignore, onExitCodes: {{operator: In, values: {values}}}}}"));
    let path = "[0].onExitCodes.values".to_owned();
    for wrong in [256, -1, 0] {
        let expected = (format!("{path}[0]"), Some(json!(wrong)), Some("1 to 255".into()));
        assert_eq!(codes(&format!("[{wrong}]")), expected);
    }
    assert_eq!(codes("[]"), (path, Some(json!([])), Some("1 to 255 items".into())));
    let (field, value, allowed) = rule("{action: Ignore, onReasons: [OutOfMemory]}");
    assert_eq!((field.as_str(), value), ("[0].onReasons[0]", Some(json!("OutOfMemory"))));
    assert!(allowed.unwrap().contains("OOMKilled"));
    assert_eq!(rule("{action: Ignore, onCauses: [Bug]}").0, "[0].onCauses[0]");
    assert_eq!(rule("{onCauses: [Diverged]}").0, "[0].action");
    assert_eq!(
        rule("{action: Restarts, onCauses: [Diverged]}").2.as_deref(),
        Some("Restart, Ignore, FailJob")
    );
}

#[test]
fn a_problem_has_the_position_of_its_field() {
    let answer = problems(&arithmetic_with("samplesPerPrompt: 16", "samplesPerPrompt: 1"));
    let line = ARITHMETIC.lines().position(|line| line.contains("samplesPerPrompt")).unwrap() as u64 + 1;
    assert_eq!((answer[0].line, answer[0].column), (Some(line), Some(5)));
    assert_eq!(answer[0].value, Some(json!(1)));
}

#[test]
fn numbers_are_read_as_people_write_them() {
    for (text, number) in [("1e-6", 1e-6), ("1E-6", 1e-6), ("1.0e-6", 1e-6), ("1", 1.0), ("0.000001", 1e-6)] {
        let job =
            validate(&arithmetic_with("learningRate: 3.0e-4", &format!("learningRate: {text}"))).unwrap();
        assert_eq!(job.spec().training.optimizer.learning_rate, number, "{text}");
    }
}

#[test]
fn fields_added_by_kubernetes_are_accepted() {
    let stored = arithmetic_with(
        "  name: arithmetic\n",
        "  name: arithmetic\n  uid: 0b1\n  generation: 2\n  managedFields: [{manager: kubectl}]\n",
    ) + "status: {observedGeneration: 2}\n";
    assert_eq!(validate(&stored).unwrap().name(), "arithmetic");
}

#[test]
fn a_resolved_manifest_resolves_to_itself() {
    let kinds =
        ["GRPO", "DrGRPO", "DAPO", "RLOO", "ReinforcePlusPlus", "ReMax", "GSPO", "CISPO", "VAPO", "PFPPO"];
    for kind in kinds {
        let job = validate(&arithmetic_with("kind: GRPO", &format!("kind: {kind}"))).unwrap();
        assert_eq!(validate(&job.to_yaml().unwrap()).as_ref(), Ok(&job), "{kind}");
    }
}

#[test]
fn texts_that_look_like_something_else_survive_resolution() {
    let texts = [
        "0123456789",
        "1e5",
        "null",
        "~",
        "true",
        "[a]",
        "{a}",
        "# no",
        "- a",
        "a: b",
        " a ",
        "\"'",
        "\t",
        "ü😀",
    ];
    for text in texts {
        let line = format!("    stop: [{}]\n    samplesPerPrompt", json!(text));
        let job = validate(&arithmetic_with("    samplesPerPrompt", &line)).unwrap();
        let again = validate(&job.to_yaml().unwrap()).unwrap();
        assert_eq!(again.spec().rollout.stop, [text]);
    }
}

/// Returns the arithmetic job with a variable in each field that can hold one.
fn with_variables(name: &str, value: &str) -> String {
    format!(
        "{ARITHMETIC}  workers:\n    env: [{{name: {name}, value: {value}}}, {{name: A_TOKEN, secret: {{name: s, key: k}}}}]\n    \
         podTemplate: {{spec: {{containers: [{{name: trainer, env: [{{name: {name}, value: {value}}}]}}]}}}}\n"
    )
}

#[test]
fn values_of_variables_are_masked_in_copies_for_others_and_all_else_is_there() {
    let job = validate(&with_variables("SOME_NAME", "some-value")).unwrap();
    let (full, masked) = (job.to_yaml().unwrap(), job.to_masked_yaml().unwrap());
    assert_eq!((full.matches("some-value").count(), masked.matches("some-value").count()), (2, 0));
    assert_eq!(full.replace("some-value", "(masked)"), masked);
    let again = validate(&masked).unwrap();
    assert_eq!(again.to_masked_yaml().unwrap(), masked, "a copy is a manifest");
}

/// Returns the arithmetic job with a reward server that gets this header.
fn with_header(name: &str, value: &str) -> String {
    let headers = format!("[{{name: {name}, value: {value}}}, {{name: X-Key, env: JUDGE_KEY}}]");
    let server = format!("{{url: 'https://judge', headers: {headers}}}");
    let function = format!("      - {{name: far, kind: Server, server: {server}}}\n      - name: correct");
    arithmetic_with("      - name: correct", &function)
}

#[test]
fn values_of_headers_are_masked_in_copies_for_others_and_reach_the_ranks() {
    let job = validate(&with_header("X-Tenant", "some-value")).unwrap();
    let full = job.to_yaml().unwrap();
    assert_eq!(full.matches("some-value").count(), 1, "{full}");
    let masked = job.to_masked_yaml().unwrap();
    assert_eq!(full.replace("some-value", "(masked)"), masked);
    assert_eq!(validate(&masked).unwrap().to_masked_yaml().unwrap(), masked, "a copy is a manifest");
    assert_eq!(job.to_rank_yaml().unwrap(), full);
    let variables = validate(&with_variables("SOME_NAME", "some-value")).unwrap();
    assert_eq!(variables.to_rank_yaml().unwrap(), variables.to_masked_yaml().unwrap());
}

#[test]
fn a_password_in_an_address_is_refused_and_not_repeated() {
    let hub = "model: {hub: {repo: a/b, endpoint: 'https://user:pass-word@mirror'}}";
    let server =
        "rewards: {functions: [{name: a, kind: Server, server: {url: 'https://user:pass-word@judge'}}]}";
    let wasm =
        "rewards: {functions: [{name: a, kind: Wasm, wasm: {url: 'https://user:pass-word@modules/a.wasm'}}]}";
    let copies = "checkpoint: {uri: 's3://user:pass-word@bucket/prefix'}";
    let data = "data: {datasets: [{hub: {repo: a/b, endpoint: 'https://user:pass-word@mirror'}}]}";
    let mlflow = "tracking: {mlflow: {url: 'https://user:pass-word@mlflow'}}";
    let trackio = "tracking: {trackio: {url: 'https://user:pass-word@trackio'}}";
    for section in [hub, server, wasm, copies, data, mlflow, trackio] {
        let envelope = "apiVersion: rltraining.dev/v1alpha1\nkind: RLTrainingJob\nmetadata: {name: a}";
        let manifest = format!("{envelope}\nspec:\n  {section}\n");
        let document = json!(problems(&manifest)).to_string();
        assert!(!document.contains("pass-word"), "{document}");
        let shown = shown(&manifest);
        assert!(shown.contains("no password (`@`)"), "{shown}");
        assert!(!shown.contains("pass-word"), "{shown}");
    }
}

#[test]
fn a_secret_in_the_manifest_is_warned_of_and_other_values_are_not() {
    let is_warned_of = |manifest: &str| {
        let job = validate(manifest).unwrap();
        job.warnings()
            .iter()
            .any(|warning| warning.reason == Reason::OpenSecret && warning.message.contains("from a Secret"))
    };
    assert!(is_warned_of(&with_variables("WANDB_API_KEY", "abc")));
    assert!(!is_warned_of(&with_variables("HF_HOME", "/models")));
    assert!(!is_warned_of(ARITHMETIC));
    let template_alone =
        with_variables("MY_PASSWORD", "abc").replace("{name: MY_PASSWORD, value: abc}, ", "");
    assert!(is_warned_of(&template_alone));
    assert!(is_warned_of(&with_header("Authorization", "abc")));
    assert!(!is_warned_of(&with_header("X-Tenant", "abc")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Validates a manifest in which arbitrary text replaces a line: the result is a job or problems, never a
    /// panic.
    #[test]
    fn no_line_however_changed_makes_validation_panic(line in 0usize..80, text in "[ -~]{0,24}", indent in 0usize..8) {
        let mut lines: Vec<String> = ARITHMETIC.lines().map(str::to_owned).collect();
        let line = line % lines.len();
        lines[line] = format!("{}{text}", " ".repeat(indent));
        if let Err(problems) = validate(&lines.join("\n")) {
            prop_assert!(!problems.is_empty());
        }
    }
}
