//! The requests of each protocol, and the verdicts of its answers.

use std::sync::Mutex;

use rlt_core::reward::{Given, Settings};
use rlt_core::types::RewardStatus::{Infra, Ok as Fine, Timeout, Wrong};
use serde_json::json;

use super::server::{Server, lengths};
use super::*;

#[test]
fn verdicts_do_not_depend_on_batches_concurrency_or_the_order_of_completions() {
    let texts: Vec<String> = (0..23).map(|idx| "x".repeat(idx)).collect();
    let server = Server::answering(lengths);
    let judged = |max_batch: usize, max_concurrent: usize, order: &[usize]| {
        let spec = json!({"url": server.url, "maxBatch": max_batch, "maxConcurrent": max_concurrent});
        let functions = functions("Server", spec, json!({})).unwrap();
        let mut judging = functions.begin().unwrap();
        for idx in order {
            judging.submit(sample_id(idx / 4, idx % 4), &prompt(json!(null)), &completion(&texts[*idx]));
        }
        judging.finish(&|| false)
    };
    let in_order: Vec<usize> = (0..texts.len()).collect();
    let mixed: Vec<usize> = in_order.iter().map(|idx| idx * 7 % texts.len()).collect();
    let alone = judged(1, 1, &in_order);
    assert_eq!(alone[&sample_id(5, 2)]["f"], Verdict::ok(22.0));
    for (max_batch, max_concurrent, order) in [(5, 1, &in_order), (1, 8, &mixed), (7, 3, &mixed)] {
        assert_eq!(judged(max_batch, max_concurrent, order), alone, "{max_batch} {max_concurrent}");
    }
}

#[test]
fn a_full_request_leaves_while_others_are_still_being_sampled() {
    let server = Server::answering(lengths);
    let functions = functions("Server", json!({"url": server.url, "maxBatch": 2}), json!({})).unwrap();
    let mut judging = functions.begin().unwrap();
    for idx in 0..3 {
        judging.submit(sample_id(0, idx), &prompt(json!(null)), &completion("x"));
    }
    let started = Instant::now();
    while server.num_requests() == 0 {
        assert!(
            started.elapsed() < Duration::from_secs(100),
            "nothing was sent before the batch was complete"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    judging.submit(sample_id(0, 3), &prompt(json!(null)), &completion("x"));
    assert_eq!(values(&of_f(judging.finish(&|| false))), [1.0; 4]);
    assert_eq!(server.num_requests(), 2, "the third waits for the fourth");
}

#[test]
fn an_answer_of_any_json_is_a_failure_in_words() {
    let answers = [
        (json!([1, 0]), "got a list"),
        (json!(null), "got null"),
        (json!("ok"), "got a string"),
        (json!(1.5), "got a number"),
        (json!({}), "got an object without it"),
        (json!({"verdicts": {"0.0": 1}}), "got an object in which it is an object"),
        (json!({"verdicts": [7]}), "expected an object with an `id`, got a number"),
    ];
    for kind in ["Server", "OpenRlhf"] {
        for (answer, words) in answers.clone() {
            let server = Server::answering(move |_| answer.clone());
            let functions = functions(kind, json!({"url": server.url, "retries": 0}), json!({})).unwrap();
            let [verdict] = &judge(&functions, json!("truth"), &["x"])[..] else { panic!("one verdict") };
            assert_eq!(verdict.status, Infra, "{kind}: {verdict:?}");
            let words = if kind == "Server" { words } else { "expected an object with `rewards`" };
            assert!(verdict.message.as_ref().unwrap().contains(words), "{kind}: {verdict:?}");
        }
    }
}

#[test]
fn a_server_gets_all_fields_of_a_sample_and_returns_a_verdict() {
    let server = Server::answering(|request| {
        let [sample] = &request.body["samples"].as_array().unwrap()[..] else { panic!("{}", request.body) };
        let expected = json!({
            "id": "0.0", "prompt": "question ", "completion": sample["completion"], "num_tokens": sample["num_tokens"],
            "data_source": "a", "ground_truth": "truth", "extra_info": {"level": 3},
        });
        assert_eq!(*sample, expected);
        let mut verdict: Value = serde_json::from_str(sample["completion"].as_str().unwrap()).unwrap();
        verdict["id"] = "0.0".into();
        json!({"verdicts": [verdict]})
    });
    let functions = functions("Server", json!({"url": server.url, "retries": 0}), json!({})).unwrap();
    for (said, status, value, message) in [
        (json!({"value": 0.5}), Fine, 0.5, None),
        (json!({"status": "wrong", "message": "no proof"}), Wrong, 0.0, Some("no proof")),
        (json!({"status": "wrong", "value": -1}), Wrong, -1.0, Some("the server says so")),
        (json!({"status": "timeout"}), Timeout, 0.0, Some("the server ran out of time")),
        (json!({"status": "infra", "message": "disk full"}), Infra, 0.0, Some("disk full")),
    ] {
        let expected = Verdict { status, value, message: message.map(str::to_owned) };
        assert_eq!(judge(&functions, json!("truth"), &[&said.to_string()]), [expected], "{said}");
    }
    for said in [json!({}), json!({"value": "1"}), json!({"status": "fine", "value": 1})] {
        assert_eq!(statuses(&judge(&functions, json!("truth"), &[&said.to_string()])), [Infra], "{said}");
    }
}

#[test]
fn servers_of_openrlhf_are_asked_in_their_words() {
    let server = Server::answering(|request| {
        assert_eq!(request.body["prompts"], json!(["question ", "question "]));
        assert_eq!(request.body["labels"], json!(["[1,2]", "[1,2]"]));
        let rewards: Vec<_> =
            request.body["query"].as_array().unwrap().iter().map(|q| q.as_str().unwrap().len()).collect();
        json!({"rewards": [rewards[0], [rewards[1]]], "scores": null, "extra_logs": {}})
    });
    let functions_of =
        |server: &Server| functions("OpenRlhf", json!({"url": server.url, "retries": 0}), json!({}));
    assert_eq!(values(&judge(&functions_of(&server).unwrap(), json!([1, 2]), &["a", "bb"])), [10.0, 11.0]);
    for answer in [json!({"rewards": [1.0]}), json!({"rewards": [1.0, null]}), json!({})] {
        let server = Server::answering(move |_| answer.clone());
        assert_eq!(statuses(&judge(&functions_of(&server).unwrap(), json!(null), &["a", "b"])), [Infra; 2]);
    }
}

#[test]
fn secrets_come_from_the_environment_and_are_in_no_message() {
    let seen = Arc::new(Mutex::new(String::new()));
    let head = seen.clone();
    let server = Server::start(move |request, stream| {
        *head.lock().unwrap() = request.head;
        super::server::reply(stream, 403, "no");
    });
    // Every test process has this variable.
    let variable = "PATH";
    let headers = json!([{"name": "X-Key", "env": variable}, {"name": "X-Plain", "value": "yes"}]);
    let with = |headers: &Value| {
        let url = format!("{}?key=secret", server.url);
        functions("Server", json!({"url": url, "headers": headers}), json!({}))
    };
    let verdicts = judge(&with(&headers).unwrap(), json!(null), &["a"]);
    let head = seen.lock().unwrap().clone();
    let secret = std::env::var(variable).unwrap();
    assert!(
        head.contains(&format!("x-key: {}", secret.to_lowercase())) && head.contains("x-plain: yes"),
        "{head}"
    );
    let message = verdicts[0].message.clone().unwrap();
    assert!(!message.contains(&secret) && !message.contains("secret"), "{message}");
    let error = with(&json!([{"name": "X-Key", "env": "NOT_SET_ANYWHERE"}])).err().unwrap();
    let source = std::error::Error::source(&error).unwrap();
    let cause = std::error::Error::source(source).unwrap().to_string();
    assert!(cause.contains("\"X-Key\"") && cause.contains("\"NOT_SET_ANYWHERE\""), "{cause}");
}

#[test]
fn a_secret_that_a_server_repeats_is_in_no_message() {
    // Every test process has this variable.
    let secret = std::env::var("PATH").unwrap();
    for kind in ["Server", "OpenRlhf"] {
        for (status, answer) in [
            (401, format!("wrong key: {secret}")),
            (401, json!({"headers": {"x-key": secret}}).to_string()),
            (200, format!("no JSON: {secret}")),
            (200, json!({secret.as_str(): secret}).to_string()),
            (200, json!({"verdicts": [{"id": "0.0", "status": "infra", "message": secret}]}).to_string()),
            (200, json!({"verdicts": [{"id": "0.0", "status": "wrong", "message": secret}]}).to_string()),
            (200, json!({"verdicts": secret}).to_string().replace('/', "\\/")),
            (200, json!({"verdicts": [{"id": "0.0", "status": secret}]}).to_string()),
        ] {
            let said = answer.clone();
            let server = Server::start(move |_, stream| super::server::reply(stream, status, &said));
            let headers = json!([{"name": "X-Key", "env": "PATH"}]);
            let spec = json!({"url": server.url, "retries": 0, "headers": headers});
            let functions = functions(kind, spec, json!({})).unwrap();
            let [verdict] = &judge(&functions, json!("truth"), &["x"])[..] else { panic!("one verdict") };
            let message = verdict.message.clone().unwrap_or_default();
            let beginning = &secret[..secret.len().min(12)];
            assert!(!message.contains(beginning), "{answer}: {message}");
        }
    }
}

#[test]
fn a_key_that_stands_in_the_manifest_is_in_no_message_and_other_values_are() {
    let said = "wrong key: Bearer key-of-the-manifest, tenant-of-the-manifest";
    let server = Server::start(move |_, stream| super::server::reply(stream, 401, said));
    let headers = json!([
        {"name": "Authorization", "value": "Bearer key-of-the-manifest"},
        {"name": "X-Tenant", "value": "tenant-of-the-manifest"},
    ]);
    let spec = json!({"url": server.url, "retries": 0, "headers": headers});
    let functions = functions("Server", spec, json!({})).unwrap();
    let [verdict] = &judge(&functions, json!("truth"), &["x"])[..] else { panic!("one verdict") };
    let message = verdict.message.clone().unwrap_or_default();
    assert!(!message.contains("key-of-the-manifest"), "{message}");
    assert!(message.contains("tenant-of-the-manifest"), "{message}");
}

/// Starts a sandbox that reads the outcome from the code: the text after `#` in its first line.
fn sandbox() -> Server {
    Server::answering(|request| {
        let code = request.body["code"].as_str().unwrap();
        let finished = |stdout: &str| json!({"status": "Finished", "return_code": 0, "stdout": stdout});
        let failed = |status: &str| json!({"status": status, "return_code": 1, "stderr": "Traceback: boom"});
        match code.lines().next().unwrap().trim_start_matches('#') {
            "echo" => {
                json!({"status": "Success", "run_result": finished(request.body["stdin"].as_str().unwrap())})
            }
            "syntax" => json!({"status": "Failed", "compile_result": failed("Error"), "run_result": null}),
            "crash" => json!({"status": "Failed", "compile_result": null, "run_result": failed("Finished")}),
            "slow" => {
                json!({"status": "Failed", "run_result": {"status": "TimeLimitExceeded", "return_code": null}})
            }
            _ => json!({"status": "SandboxError", "message": "no room"}),
        }
    })
}

#[test]
fn code_is_worth_the_tests_that_it_passes() {
    let server = sandbox();
    let of = |scoring: &str| {
        let server = json!({"url": server.url, "retries": 1});
        functions("Code", server, json!({"code": {"scoring": scoring}})).unwrap()
    };
    let tests = json!({"inputs": ["1\n", "2", "3", "4"], "outputs": ["1", "2\n", "9", "4"]});
    let texts = ["```python\n#echo\n```", "#syntax", "#crash", "#slow", "```\n```", "#full"];
    let shares = judge(&of("Fraction"), tests.clone(), &texts);
    assert_eq!(statuses(&shares), [Wrong, Wrong, Wrong, Wrong, Wrong, Infra], "{shares:?}");
    assert_eq!(values(&shares), [0.75, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let messages: Vec<&str> = shares.iter().map(|verdict| verdict.message.as_deref().unwrap()).collect();
    assert_eq!(messages[0], "test 3 of 4: expected \"9\", got \"3\"");
    assert_eq!(messages[1], "does not compile: exit code 1: Traceback: boom");
    assert_eq!(messages[3], "test 1 of 4: it ran out of time");
    assert_eq!(messages[4], "the completion has no code");
    assert!(
        messages[5].contains("the sandbox failed") && messages[5].contains("attempt 2"),
        "{}",
        messages[5]
    );
    assert_eq!(values(&judge(&of("All"), tests, &texts[..1])), [0.0]);
    let right = json!({"inputs": ["1"], "outputs": ["1"]});
    assert_eq!(judge(&of("All"), right, &texts[..1]), [Verdict::ok(1.0)]);
    assert_eq!(judge(&of("All"), json!(["assert True"]), &["#echo"]), [Verdict::ok(1.0)]);
    let given = Given { name: "f", settings: &Settings::default(), max_completion_tokens: 1 };
    let function = RewardKind::Code.build(&given).unwrap();
    let check = |truth: Value| function.check_ground_truth(&truth);
    assert!(check(json!(null)).is_err() && check(json!(["assert 1"])).is_ok());
}

/// Starts a model that repeats the completion between two remarks, and reports a usage of 10 tokens.
fn model() -> Server {
    Server::answering(|request| {
        let content = request.body["messages"][0]["content"].as_str().unwrap().to_owned();
        let text = format!("I think {content}, in short.");
        json!({"choices": [{"message": {"content": text}}], "usage": {"total_tokens": 10}})
    })
}

fn judge_of(server: &Server, settings: Value) -> Result<ExternalFunctions, RewardSetupError> {
    let mut judge = json!({"model": "m", "rubric": "{{ completion }} for {{ prompt }}{{ ground_truth }}"});
    judge.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    functions("Judge", json!({"url": server.url, "retries": 1, "maxConcurrent": 1}), json!({"judge": judge}))
}

#[test]
fn a_judges_score_is_read_from_its_answer() {
    let server = model();
    let verdicts =
        judge(&judge_of(&server, json!({})).unwrap(), json!("42"), &["[[3]] no, [[7.5]]", "[[11]]", "seven"]);
    assert_eq!(statuses(&verdicts), [Fine, Infra, Infra]);
    assert_eq!(verdicts[0].value, 7.5);
    let message = verdicts[2].message.as_ref().unwrap();
    assert!(
        message.contains("expected a score of 0 to 10") && message.contains("seven for question 42"),
        "{message}"
    );
    assert_eq!(server.num_requests(), 5, "an answer that cannot be read is asked for again");
    let own = judge_of(&server, json!({"pattern": "score (?<score>-?[0-9]+)", "minScore": -5})).unwrap();
    assert_eq!(values(&judge(&own, json!(null), &["score -3"])), [-3.0]);
}

#[test]
fn a_judge_stays_within_the_budget_of_a_batch() {
    for (settings, num_fine) in
        [(json!({"maxRequestsPerBatch": 3}), 3), (json!({"maxTokensPerBatch": 11}), 2), (json!({}), 6)]
    {
        let server = model();
        let functions = judge_of(&server, settings).unwrap();
        for _ in 0..2 {
            let verdicts = judge(&functions, json!(null), &["[[1]]"; 6]);
            let fine = verdicts.iter().filter(|verdict| verdict.status == Fine).count();
            assert_eq!(fine, num_fine, "{verdicts:?}");
            let rest = verdicts.iter().filter(|verdict| verdict.status == Infra);
            assert!(rest.clone().all(|verdict| verdict.message.as_ref().unwrap().contains("has spent its")));
        }
        assert_eq!(server.num_requests(), 2 * num_fine);
    }
}

#[test]
fn a_rubric_and_a_pattern_that_cannot_work_are_refused() {
    let server = model();
    for settings in [json!({"rubric": "{{ prompt"}), json!({"pattern": "("}), json!({"pattern": "no group"})]
    {
        let error = judge_of(&server, settings).err().unwrap();
        assert!(error.to_string().contains("\"f\""), "{error}");
    }
    let verdicts =
        judge(&judge_of(&server, json!({"rubric": "{{ nothing }}"})).unwrap(), json!(null), &["a"]);
    assert!(verdicts[0].message.as_ref().unwrap().contains("render judge.rubric"), "{verdicts:?}");
}
