//! Tests that the reward servers which `rlctl convert --reward-server` writes call functions as verl and TRL
//! do.

#![expect(clippy::unwrap_used, reason = "a broken fixture should end the test")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, process};

use serde_json::{Value, json};

/// A folder with a reward function in `own_rewards.py`, which ends with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, function: &str) -> Self {
        let path = env::temp_dir().join(format!("rlt-convert-{name}-{}", process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("own_rewards.py"), function).unwrap();
        Self(path)
    }

    /// Returns the results of a template's server for samples, without HTTP.
    fn verdicts(&self, template: &str, module: &str, function: &str, samples: &Value) -> Value {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/src/convert");
        let template = fs::read_to_string(folder.join(template)).unwrap();
        let server = template.replace("@MODULE@", &json!(module).to_string());
        let server = server.replace("@FUNCTION@", &json!(function).to_string());
        let answer = "json.dump([verdict(sample) for sample in json.load(sys.stdin)], sys.stdout)\n";
        fs::write(self.0.join("server.py"), server + answer).unwrap();
        let mut python = Command::new("python3");
        python.arg("-B").arg("server.py").current_dir(&self.0);
        let started = python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut process = started.unwrap();
        process.stdin.take().unwrap().write_all(samples.to_string().as_bytes()).unwrap();
        let output = process.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn sample(id: &str, completion: &str, extra_info: Value) -> Value {
    json!({
        "id": id, "prompt": "1 + 1?", "completion": completion, "num_tokens": 3, "data_source": "sums",
        "ground_truth": "2", "extra_info": extra_info,
    })
}

#[test]
fn a_score_of_verl_in_a_dictionary_is_the_value() {
    let function = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    \
        if solution_str == 'broken': raise ValueError('no answer')\n    \
        return {'score': float(solution_str == ground_truth) * extra_info['factor'], 'acc': True}\n";
    let folder = Folder::new("verl", function);
    let samples = json!([sample("0.0", "2", json!({"factor": 3})), sample("0.1", "broken", json!({}))]);
    let verdicts = folder.verdicts("verl_server.py", "own_rewards.py", "compute_score", &samples);
    assert_eq!(verdicts[0], json!({"id": "0.0", "value": 3.0}));
    assert_eq!((&verdicts[1]["status"], &verdicts[1]["id"]), (&json!("infra"), &json!("0.1")));
}

#[test]
fn a_function_of_trl_gets_texts_or_conversations_and_the_further_columns() {
    let function = "def of_texts(completions, solution, **kwargs):\n    \
        return [float(text == right) for text, right in zip(completions, solution)]\n\n\
        def of_messages(prompts, completions, ground_truth, level, **kwargs):\n    \
        texts = [completion[0]['content'] for completion in completions]\n    \
        assert prompts[0][-1]['role'] == 'user'\n    \
        return [level[0] if texts[0] == ground_truth[0] else None]\n";
    let folder = Folder::new("trl", function);
    let samples = json!([sample("0.0", "2", json!({"level": 5})), sample("0.1", "3", json!({"level": 5}))]);
    let values = |function: &str| {
        let verdicts = folder.verdicts("trl_server.py", "own_rewards", function, &samples);
        [verdicts[0]["value"].as_f64(), verdicts[1]["value"].as_f64()]
    };
    assert_eq!(values("of_texts"), [Some(1.0), Some(0.0)]);
    assert_eq!(values("of_messages"), [Some(5.0), Some(0.0)]);
}
