//! Reward functions that are computed elsewhere: the samples that each judges, and its verdicts.
//!
//! ```text
//! rollout --finished completion--> PendingRewards::submit -> requests of a full batch -> verdicts
//! rewards role -------------------------------> PendingRewards::finish (the rest, then missing verdicts)
//! ```
//! A completion is sent as soon as it is sampled, so that servers judge while the rest of the batch is still
//! being generated. Verdicts are stored by sample, so their order does not matter. [`PendingRewards::finish`]
//! returns in bounded time with a verdict for every submitted sample; a missing verdict counts as a timeout.
//! The pool applies limits and weights, as for all functions.

mod batch_end;
mod batches;
mod code;
mod endpoint;
mod error;
mod event_loop;
mod judge;
mod limits;
mod module;
mod permits;
mod python;
mod sample;
mod status;
#[cfg(test)]
mod tests;
mod unit_tests;
mod wasm;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rlt_api::spec::{RewardFunctionSpec, RewardKind, RewardsSpec};
use rlt_core::reward::{Verdict, Verdicts};
use rlt_core::types::{Completion, Prompt};

use super::functions::{RewardSetupError, judges};
use batch_end::BatchGuard;
pub use endpoint::EndpointError;
pub use error::ExternalError;
use event_loop::EventLoop;
pub use module::ModuleError;
use sample::ExternalSample;
pub use sample::SampleId;

/// Interval at which a wait checks whether the run is to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// All functions of a manifest that are computed elsewhere.
#[derive(Clone)]
pub struct ExternalFunctions {
    functions: Arc<[Arc<ExternalFunction>]>,
    /// Event loop of the requests; `None` if no function is computed elsewhere.
    event_loop: Option<Arc<EventLoop>>,
    batch_timeout: Duration,
}

struct ExternalFunction {
    name: String,
    data_sources: Vec<String>,
    /// Largest number of samples in one request.
    max_batch: usize,
    backend: Backend,
}

enum Backend {
    Batches(batches::BatchServer),
    OpenRlhf(batches::OpenRlhfServer),
    Code(code::CodeServer),
    Judge(Box<judge::JudgeServer>),
    Python(python::PythonFunction),
    UnitTests(unit_tests::SandboxedTests),
    Wasm(wasm::WasmFunction),
}

impl ExternalFunctions {
    /// Sets up the functions of a manifest that are computed elsewhere.
    ///
    /// # Errors
    /// [`RewardSetupError::External`].
    pub fn new(spec: &RewardsSpec) -> Result<Self, RewardSetupError> {
        let failed = |name: &str, source| RewardSetupError::External { name: name.to_owned(), source };
        let mut named = spec.functions.iter().filter(|function| is_external(function.kind)).peekable();
        let start = |function: &&RewardFunctionSpec| {
            EventLoop::start().map_err(|source| failed(&function.name, ExternalError::Thread(source)))
        };
        let event_loop = named.peek().map(start).transpose()?.map(Arc::new);
        let mut functions = Vec::new();
        for (function, event_loop) in named.zip(event_loop.iter().cycle()) {
            let made = ExternalFunction::of(function, event_loop);
            functions.push(Arc::new(made.map_err(|source| failed(&function.name, source))?));
        }
        let functions = functions.into();
        let batch_timeout = Duration::from_secs_f64(spec.batch_timeout_seconds);
        Ok(Self { functions, event_loop, batch_timeout })
    }

    /// Begins to judge a batch; `None` if no function is computed elsewhere.
    pub fn begin(&self) -> Option<PendingRewards> {
        let event_loop = self.event_loop.clone()?;
        let (sender, receiver) = channel();
        let queue = || Queue { samples: Vec::new(), budget: Arc::default() };
        Some(PendingRewards {
            queues: self.functions.iter().map(|_| queue()).collect(),
            functions: Arc::clone(&self.functions),
            event_loop,
            batch_timeout: self.batch_timeout,
            verdicts: BTreeMap::new(),
            num_waiting: 0,
            batch: BatchGuard::new(),
            sender,
            receiver,
        })
    }
}

/// Whether functions of this kind are computed elsewhere, by a server or in a sandbox.
fn is_external(kind: RewardKind) -> bool {
    use RewardKind::{Code, Judge, OpenRlhf, Python, Server, Wasm};
    matches!(kind, Code | Judge | OpenRlhf | Python | Server | Wasm)
}

impl ExternalFunction {
    fn of(spec: &RewardFunctionSpec, event_loop: &EventLoop) -> Result<Self, ExternalError> {
        let missing = |field| ExternalError::MissingField { kind: spec.kind, field };
        let module = || spec.wasm.as_ref().ok_or_else(|| missing("wasm"));
        let server = || spec.server.as_ref().ok_or_else(|| missing("server"));
        let endpoint = || Ok::<_, ExternalError>(endpoint::Endpoint::new(server()?)?);
        let batch = || Ok::<_, ExternalError>(server()?.max_batch as usize);
        let (max_batch, backend) = match spec.kind {
            RewardKind::Server => (batch()?, Backend::Batches(batches::BatchServer(endpoint()?))),
            RewardKind::OpenRlhf => (batch()?, Backend::OpenRlhf(batches::OpenRlhfServer(endpoint()?))),
            RewardKind::Code => {
                let options = spec.code.clone().unwrap_or_default();
                match &spec.wasm {
                    Some(wasm) => {
                        (1, Backend::UnitTests(unit_tests::SandboxedTests::new(options, wasm, event_loop)?))
                    }
                    None => (1, Backend::Code(code::CodeServer { endpoint: endpoint()?, options })),
                }
            }
            RewardKind::Judge => {
                let judge = spec.judge.as_ref().ok_or_else(|| missing("judge"))?;
                (1, Backend::Judge(Box::new(judge::JudgeServer::new(endpoint()?, judge)?)))
            }
            RewardKind::Wasm => (1, Backend::Wasm(wasm::WasmFunction::new(module()?, event_loop)?)),
            RewardKind::Python => {
                let python = spec.python.as_ref().ok_or_else(|| missing("python"))?;
                (1, Backend::Python(python::PythonFunction::new(python, module()?, event_loop)?))
            }
            kind => return Err(ExternalError::MissingField { kind, field: "no server" }),
        };
        let (name, data_sources) = (spec.name.clone(), spec.data_sources.clone());
        Ok(Self { name, data_sources, max_batch, backend })
    }

    /// Judges samples, and returns one verdict for each, in order.
    async fn judge(&self, samples: &[ExternalSample], budget: &judge::JudgeUsage) -> Vec<Verdict> {
        match &self.backend {
            Backend::Batches(server) => return server.judge(samples).await,
            Backend::OpenRlhf(server) => return server.judge(samples).await,
            _ => {}
        }
        let mut verdicts = Vec::with_capacity(samples.len());
        for sample in samples {
            verdicts.push(self.judge_one(sample, budget).await);
        }
        verdicts
    }

    async fn judge_one(&self, sample: &ExternalSample, budget: &judge::JudgeUsage) -> Verdict {
        match &self.backend {
            Backend::Code(server) => server.judge(sample).await,
            Backend::Judge(server) => server.judge(sample, budget).await,
            Backend::Python(function) => function.judge(sample).await,
            Backend::UnitTests(tests) => tests.judge(sample).await,
            Backend::Wasm(function) => function.judge(sample).await,
            Backend::Batches(_) | Backend::OpenRlhf(_) => Verdict::infra("the sample was not sent"),
        }
    }
}

/// Samples of one batch that are being judged.
pub struct PendingRewards {
    functions: Arc<[Arc<ExternalFunction>]>,
    event_loop: Arc<EventLoop>,
    batch_timeout: Duration,
    /// Samples to send, for each function.
    queues: Vec<Queue>,
    verdicts: BTreeMap<SampleId, Verdicts>,
    /// Number of verdicts that are missing.
    num_waiting: usize,
    /// Ends the tasks that are left when no more verdicts are awaited.
    batch: BatchGuard,
    /// Channel of the answers: at most one for each request of the batch.
    sender: Sender<Answered>,
    receiver: Receiver<Answered>,
}

/// Samples of one function that wait until a request is full.
struct Queue {
    samples: Vec<ExternalSample>,
    budget: Arc<judge::JudgeUsage>,
}

/// Verdicts of one request, with the index of the function.
type Answered = (usize, Vec<(SampleId, Verdict)>);

impl std::fmt::Debug for PendingRewards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PendingRewards with {} verdicts to come", self.num_waiting)
    }
}

impl PendingRewards {
    /// Sends a sample to every function that judges its data source.
    pub fn submit(&mut self, id: SampleId, prompt: &Arc<Prompt>, completion: &Completion) {
        for idx in 0..self.functions.len() {
            let function = &self.functions[idx];
            if !judges(&function.data_sources, &prompt.data_source) {
                continue;
            }
            let (completion, num_tokens) = (completion.text.clone(), completion.tokens.len());
            self.queues[idx].samples.push(ExternalSample {
                id,
                prompt: prompt.clone(),
                completion,
                num_tokens,
            });
            self.num_waiting += 1;
            if self.queues[idx].samples.len() >= function.max_batch {
                self.send(idx);
            }
        }
    }

    /// Waits for the verdicts on all submitted samples, at most for the batch's time limit, and returns them
    /// by sample and function. If `is_stopping`, missing verdicts become timeouts at once.
    pub fn finish(mut self, is_stopping: &dyn Fn() -> bool) -> BTreeMap<SampleId, Verdicts> {
        (0..self.functions.len()).for_each(|idx| self.send(idx));
        // Drops this sender, so that the channel closes when every request has ended, even by a panic.
        self.sender = channel().0;
        let deadline = Instant::now() + self.batch_timeout;
        while self.num_waiting > 0 && !is_stopping() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            match self.receiver.recv_timeout(left.min(POLL_INTERVAL)) {
                Ok((idx, answered)) => self.take(idx, answered),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        std::mem::take(&mut self.verdicts)
    }

    fn send(&mut self, idx: usize) {
        let samples = std::mem::take(&mut self.queues[idx].samples);
        if samples.is_empty() {
            return;
        }
        let (function, timeout) = (Arc::clone(&self.functions[idx]), self.batch_timeout);
        for sample in &samples {
            let missing = Verdict::timeout(format!("no verdict within {timeout:?} of the last completion"));
            self.verdicts.entry(sample.id).or_default().insert(function.name.clone(), missing);
        }
        let (sender, budget) = (self.sender.clone(), Arc::clone(&self.queues[idx].budget));
        let end = self.batch.end();
        self.event_loop.handle().spawn(async move {
            let judged = end.or_end(function.judge(&samples, &budget)).await;
            let Some(verdicts) = judged else { return };
            let answered = samples.iter().map(|sample| sample.id).zip(verdicts).collect();
            // The receiver is closed if the batch was abandoned.
            let _ = sender.send((idx, answered));
        });
    }

    fn take(&mut self, idx: usize, answered: Vec<(SampleId, Verdict)>) {
        let name = &self.functions[idx].name;
        for (id, verdict) in answered {
            self.num_waiting -= 1;
            self.verdicts.entry(id).or_default().insert(name.clone(), verdict);
        }
    }
}
