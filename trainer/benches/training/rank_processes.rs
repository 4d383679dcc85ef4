//! Ranks of a benchmark: the first process, and the processes that it starts for the other ranks.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use rlt_parallel::{RankEnvironment, Ranks};
use rlt_torch::collectives::{Store, serve_store};
use serde_json::{Value, json};

use crate::measure;

/// Maximum time that a rank waits for another one.
const PATIENCE: Duration = Duration::from_secs(300);

/// Ranks of a benchmark, from the perspective of one of them.
pub(crate) struct RankProcesses {
    pub(crate) ranks: Ranks,
    /// Processes of the other ranks, which this one has started.
    others: Vec<RankProcess>,
    _store: Option<Store>,
}

/// A rank in a separate process.
struct RankProcess {
    child: Child,
    asked: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl RankProcesses {
    /// Starts the other ranks, or joins the ranks of the process that has started this one.
    pub(crate) fn start(size: usize) -> anyhow::Result<Self> {
        if let Some(environment) = RankEnvironment::of_process()? {
            let ranks = Ranks::join(&environment, PATIENCE)?;
            return Ok(Self { ranks, others: Vec::new(), _store: None });
        }
        let store = serve_store(0, 1, size)?;
        let first = RankEnvironment {
            rank: 0,
            world_size: size,
            local_world_size: size,
            master_address: "localhost".to_owned(),
            master_port: store.port(),
            attempt: 1,
            key: None,
        };
        let others =
            (1..size).map(|rank| RankProcess::start(first.variables(rank))).collect::<Result<_, _>>()?;
        let ranks = Ranks::join(&first, PATIENCE)?;
        Ok(Self { ranks, others, _store: Some(store) })
    }

    /// Runs `load` on all ranks; `work` is the share of this one. Returns the total processor time, the
    /// highest peak memory of any rank, and this rank's other figures.
    pub(crate) fn measured(
        &mut self,
        load: &str,
        work: impl FnOnce() -> anyhow::Result<Value>,
    ) -> anyhow::Result<Value> {
        for process in &mut self.others {
            process.ask(load)?;
        }
        let mut result = measure::measured(work)?;
        for process in &mut self.others {
            let other = process.answer()?;
            let both = |key: &str| [&result, &other].map(|one| one[key].as_f64().unwrap_or_default());
            let (cpu, peak) = (both("cpu_seconds"), both("peak_rss_mb"));
            result["cpu_seconds"] = json!(cpu[0] + cpu[1]);
            result["peak_rss_mb"] = json!(peak[0].max(peak[1]));
        }
        Ok(result)
    }
}

impl Drop for RankProcesses {
    fn drop(&mut self) {
        for process in &mut self.others {
            // The process ends when its input ends.
            process.asked = None;
            process.child.wait().ok();
        }
    }
}

impl RankProcess {
    fn start(variables: impl IntoIterator<Item = (&'static str, String)>) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe().context("finding this benchmark")?);
        command.args(std::env::args().skip(1).filter(|argument| argument != "--serve")).arg("--serve");
        command.envs(variables).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting a rank")?;
        let asked = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("reading what a rank answers")?);
        Ok(Self { child, asked, answers })
    }

    fn ask(&mut self, load: &str) -> anyhow::Result<()> {
        writeln!(self.asked.as_mut().context("a rank that has ended")?, "{load}")?;
        Ok(())
    }

    /// Reads the next measurement of the rank.
    fn answer(&mut self) -> anyhow::Result<Value> {
        loop {
            let mut line = String::new();
            anyhow::ensure!(self.answers.read_line(&mut line)? > 0, "a rank ended before it answered");
            let value: Value = serde_json::from_str(&line)?;
            if value["tokens"].is_number() {
                return Ok(value);
            }
        }
    }
}
