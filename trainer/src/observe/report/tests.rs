//! The page shows the files of a run, also of an incomplete one.

use std::fs;
use std::path::Path;

use rlt_core::metrics::Metrics;
use rlt_storage::run_folder::WARNINGS;

use super::*;
use crate::observe::tracking::{Stage, StepMetrics};

fn folder_with(steps: &[StepMetrics], manifest: &str, completions: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let lines: Vec<String> = steps.iter().map(|step| serde_json::to_string(step).unwrap() + "\n").collect();
    fs::write(dir.path().join("metrics.jsonl"), lines.concat()).unwrap();
    fs::write(dir.path().join("manifest.yaml"), manifest).unwrap();
    fs::write(dir.path().join("completions.jsonl"), completions).unwrap();
    dir
}

fn page(folder: &Path) -> String {
    fs::read_to_string(render(folder).unwrap()).unwrap()
}

fn step(step: u64, values: &[(&str, f64)]) -> StepMetrics {
    let values: Metrics = values.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    StepMetrics::new(Stage::Training, step, values)
}

fn completion(step: u64, prompt: &str, completion: &str) -> String {
    let record = serde_json::json!({
        "step": step, "data_source": "test", "prompt": prompt, "completion": completion, "ground_truth": "4",
        "reward": 1.0, "reward_parts": {"exact": 1.0}, "reward_status": "ok", "finish_reason": "stop",
        "num_tokens": 3,
    });
    format!("{record}\n")
}

#[test]
fn a_warning_of_the_run_is_shown_first() {
    let dir = folder_with(&[], "metadata: {name: demo}", "");
    assert!(!page(dir.path()).contains("role=\"alert\""));
    fs::write(dir.path().join(WARNINGS), r#"["COMPUTES ON THE CPU: <libcudnn.so.9> does not load"]"#)
        .unwrap();
    let page = page(dir.path());
    let warning = page.find("COMPUTES ON THE CPU: &lt;libcudnn.so.9&gt;").unwrap();
    assert!(warning < page.find("<h1>").unwrap());
}

#[test]
fn rows_that_were_left_out_are_reported() {
    let dir = folder_with(&[], "metadata: {name: demo}", "");
    let result = serde_json::json!({"data_warnings": ["leaves out 3 of 8 training prompts"]});
    fs::write(dir.path().join("result.json"), result.to_string()).unwrap();
    assert!(page(dir.path()).contains("This run leaves out 3 of 8 training prompts"));
}

#[test]
fn a_completion_is_shown_with_the_limit_that_cut_it() {
    for (reason, shown) in [
        ("stop", "3 tokens, ended by itself"),
        ("length", "3 tokens, cut off<"),
        ("context", "3 tokens, cut off by the model's context<"),
    ] {
        let completions = completion(1, "2+2=", "4").replace("\"stop\"", &format!("\"{reason}\""));
        let page = page(folder_with(&[step(1, &[])], "", &completions).path());
        assert!(page.contains(shown), "{reason}: {page}");
    }
}

#[test]
fn the_page_of_an_empty_folder_reports_that_it_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let page = page(dir.path());
    assert!(page.contains("No step is finished yet.") && !page.contains("<figure"), "{page}");
}

#[test]
fn one_step_makes_plots_of_one_point() {
    let values = [("critic/rewards/mean", 0.5), ("timing_s/step", 2.0), ("timing_s/gen", 1.5)];
    let dir = folder_with(&[step(1, &values)], "", "");
    let page = page(dir.path());
    assert_eq!(page.matches("<figure").count(), 2, "{page}");
    assert!(page.contains("class=\"dot c0\"") && page.contains("class=\"layer c0\""), "{page}");
    assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
}

#[test]
fn the_headline_compares_held_out_reward_before_and_after() {
    let metric = "val-core/arithmetic/reward/mean@1";
    let steps =
        [step(0, &[(metric, 0.2)]), step(1, &[("critic/rewards/mean", 0.3)]), step(2, &[(metric, 0.5)])];
    let manifest =
        "metadata: {name: my-job}\nspec: {algorithm: {kind: GRPO}, model: {hub: {repo: org/model}}}";
    let page = page(folder_with(&steps, manifest, "").path());
    let sentence =
        "After 2 steps the mean reward on held-out problems rose from 0.2 to 0.5, 2.5 times what it was.";
    for expected in [sentence, "<h1>my-job</h1>", "GRPO · org/model", ">held-out <b>0.5</b>"] {
        assert!(page.contains(expected), "{expected:?} is not in\n{page}");
    }
}

#[test]
fn text_of_a_model_stays_text() {
    let evil = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>";
    let completions = completion(1, evil, evil) + &completion(9, evil, "fine");
    let manifest = format!("metadata: {{name: \"{evil}\"}}\nspec: {{data: {{promptKey: \"{evil}\"}}}}");
    let metric = format!("val-core/{evil}/reward/mean@1");
    let page = page(folder_with(&[step(1, &[(&metric, 0.5)])], &manifest, &completions).path());
    assert_eq!(page.matches("<script").count(), 1, "only our own");
    assert!(!page.contains("<img"), "{page}");
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;"), "{page}");
}

#[test]
fn early_and_late_completions_of_one_prompt_are_shown_side_by_side() {
    let completions = completion(1, "2+2=", "5")
        + &completion(1, "1+1=", "7")
        + &completion(50, "in between", "x")
        + &completion(99, "3+3=", "6")
        + &completion(99, "2+2=", "4");
    let page = page(folder_with(&[step(1, &[])], "", &completions).path());
    let pair = page.split("<article").nth(1).unwrap();
    let places: Vec<_> = ["<pre>2+2=</pre>", "Step 1<", "<pre>5</pre>", "Step 99<", "<pre>4</pre>"]
        .map(|part| pair.find(part).unwrap_or_else(|| panic!("{part:?} is not in {pair}")))
        .into();
    assert!(places.is_sorted(), "{pair}");
    assert!(!page.contains("in between"));
}

#[test]
fn every_leaf_of_the_settings_is_listed() {
    let manifest = "spec: {rewards: {functions: [{name: a, weight: 0.5}]}, rollout: {stopTokenIds: [], stop: [end, halt], topP: null}}";
    let page = page(folder_with(&[], manifest, "").path());
    for (path, value) in
        [("functions[0].weight", "0.5"), ("stop", "end, halt"), ("stopTokenIds", "none"), ("topP", "not set")]
    {
        let row = format!("<th scope=\"row\">{path}</th><td>{value}</td>");
        let page = page.replace("<wbr>", "");
        assert!(page.contains(&row), "{row} is not in\n{page}");
    }
}

#[test]
fn a_trend_reaches_both_ends_without_a_hook() {
    let steps: Vec<_> = (1..=101)
        .map(|idx| {
            let noise = if idx % 2 == 0 { 0.3 } else { -0.3 };
            step(idx, &[("critic/rewards/mean", idx as f64 / 100.0 + noise)])
        })
        .collect();
    let page = page(folder_with(&steps, "", "").path());
    let trend = page.split("<path class=\"line c0\" d=\"M").nth(1).unwrap().split('"').next().unwrap();
    let heights: Vec<f64> =
        trend.split('L').map(|point| point.split(',').nth(1).unwrap().parse().unwrap()).collect();
    assert_eq!(heights.len(), 101);
    // The true trend falls by 99 % of the drawing's height per 1.5 units of reward; the noise by itself is
    // 400.
    let straight = |idx: usize| heights[0] + (heights[100] - heights[0]) * idx as f64 / 100.0;
    let worst =
        heights.iter().enumerate().map(|(idx, height)| (height - straight(idx)).abs()).fold(0.0, f64::max);
    assert!(worst < 40.0, "the trend strays by {worst} of 1000");
}

#[test]
fn a_page_that_fails_panics_or_never_ends_is_given_up_with_the_reason() {
    let folder = folder_with(&[], "", "");
    let path = folder.path().to_path_buf();
    assert_eq!(with_timeout(TIMEOUT, move || render(&path).map(drop)), Ok(()));
    let log = folder.path().join("completions.jsonl");
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    let path = folder.path().to_path_buf();
    let failed = with_timeout(TIMEOUT, move || render(&path).map(drop)).unwrap_err();
    assert!(failed.contains("completions.jsonl"), "{failed}");
    assert_eq!(with_timeout(TIMEOUT, || panic!("no page")), Err("it panicked".to_owned()));
    let (sender, never) = sync_channel::<()>(0);
    let slow = with_timeout(Duration::ZERO, move || {
        // The call returns when the test ends, which drops the sender.
        let _ = never.recv();
        Ok(())
    });
    assert_eq!(slow, Err("it takes longer than 0 s".to_owned()));
    drop(sender);
}

#[test]
fn long_runs_make_small_pages() {
    let steps: Vec<_> = (1..=20_000)
        .map(|idx| {
            let values = [("critic/rewards/mean", 0.5), ("timing_s/gen", 1.0), ("timing_s/step", 1.5)];
            step(idx, &values)
        })
        .collect();
    let page = page(folder_with(&steps, "", "").path());
    assert!(page.len() < 200_000, "{} bytes", page.len());
}

/// The time of smoothing is quadratic in the number of points.
#[test]
fn a_long_noisy_line_is_thinned_before_it_is_smoothed() {
    use super::plot::{Mark, Plot, Series};
    let points = (0..100_000).map(|step| (f64::from(step), f64::from(step % 2))).collect();
    let series = Series { label: "reward".to_owned(), points, mark: Mark::Line, color: 0 };
    let html = Plot::new("Reward", "mean", vec![series]).to_html().unwrap();
    for class in ["line faint c0", "line c0"] {
        let line = html.split(&format!("<path class=\"{class}\" d=\"M")).nth(1).unwrap();
        let num_points = line.split('"').next().unwrap().split('L').count();
        assert!((500..=600).contains(&num_points), "{class}: {num_points} points");
    }
}

#[test]
fn only_completions_of_the_first_and_the_last_step_are_in_memory() {
    use super::completions::Ends;
    let mut ends = Ends::default();
    for step in 1..=1000 {
        for sample in 0..8 {
            let prompt = format!("{step} at {sample}");
            let record = crate::observe::tracking::CompletionRecord {
                step,
                sample,
                held_out: step % 2 == 0,
                prompt,
                ..Default::default()
            };
            (0..100).for_each(|_| ends.take(record.clone()));
        }
    }
    assert_eq!(ends.num_kept(), 4 * 64);
}
