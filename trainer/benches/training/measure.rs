//! Protocol of benchmarks that alternate with peers: each line of standard input is answered by one JSON
//! object.

use std::io::{BufRead, Write};
use std::time::Instant;

use anyhow::Context;
use serde_json::{Value, json};

/// Whether an argument was given on the command line.
pub(crate) fn has(name: &str) -> bool {
    std::env::args().skip(1).any(|argument| argument == name)
}

/// Answers, with `--serve`, each line of standard input, which names one of `loads`. Otherwise runs a warm-up
/// and a measurement of each load that is named on the command line, or of all.
pub(crate) fn serve(
    loads: &[&str],
    mut answer: impl FnMut(&str) -> anyhow::Result<Value>,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    if has("--serve") {
        writeln!(out, "{}", json!({"ready": true, "loaded_rss_mb": rlt_torch::rss_bytes()? >> 20}))?;
        out.flush()?;
        for line in std::io::stdin().lock().lines() {
            writeln!(out, "{}", answer(line?.trim())?)?;
            out.flush()?;
        }
        return Ok(());
    }
    let is_named = loads.iter().any(|load| has(load));
    for load in loads.iter().filter(|load| !is_named || has(load)) {
        answer(load)?;
        writeln!(out, "{}", answer(load)?)?;
    }
    Ok(())
}

/// Runs `work` and adds its time, processor time and peak memory to the figures that it returns, which must
/// contain `tokens`.
pub(crate) fn measured(work: impl FnOnce() -> anyhow::Result<Value>) -> anyhow::Result<Value> {
    // Without the kernel's counter, the peak is that of the whole lifetime of the process.
    rlt_torch::reset_peak_rss().ok();
    let (started, cpu_before) = (Instant::now(), cpu_seconds()?);
    let mut result = work()?;
    let seconds = started.elapsed().as_secs_f64();
    let num_tokens = result["tokens"].as_f64().context("a measurement counts its tokens")?;
    result["seconds"] = json!(seconds);
    result["cpu_seconds"] = json!(cpu_seconds()? - cpu_before);
    result["tokens_per_second"] = json!(num_tokens / seconds);
    result["peak_rss_mb"] = json!(rlt_torch::peak_rss_bytes()? >> 20);
    Ok(result)
}

/// Processor time of all threads so far, in seconds; unlike elapsed time it stays comparable under other
/// load.
fn cpu_seconds() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("reading processor time")?;
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    // proc(5): utime and stime are the 12th and 13th fields after the name, in hundredths of a second.
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Ok(ticks.sum::<f64>() / 100.0)
}
