//! Reward functions in a sandbox: a WebAssembly module without imports, run by an interpreter that bounds its
//! instructions, memory and time. The same module gives the same verdict on the same sample everywhere.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rlt_api::spec::WasmSpec;
use rlt_core::reward::Verdict;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use wasmi::{
    Config, Engine, Error, ExternType, Instance, Linker, Module, Store, StoreLimits, StoreLimitsBuilder,
    TrapCode, TypedResumableCall, ValType, WasmParams, WasmResults,
};

use super::ExternalSample;
use super::batches::sample_json;
use super::event_loop::EventLoop;

/// Longest module in bytes.
const MAX_MODULE_BYTES: u64 = 64 << 20;

/// Longest time to fetch a module.
const FETCH_TIMEOUT: Duration = Duration::from_secs(120);

/// Fuel between two looks at the clock: some ten milliseconds.
const SLICE: u64 = 5_000_000;

/// Entries of a module's tables.
const MAX_TABLE_ELEMENTS: usize = 1 << 20;

/// A module and its bounds.
pub(super) struct Sandbox {
    engine: Engine,
    module: Module,
    fuel: u64,
    max_memory_bytes: usize,
    timeout: Duration,
}

/// A sandbox whose calls share the processors.
pub(super) struct WasmFunction {
    sandbox: Arc<Sandbox>,
    permits: Arc<Semaphore>,
}

/// Why a module cannot judge.
#[derive(Debug, thiserror::Error)]
pub enum WasmError {
    /// The file is unreadable.
    #[error("read wasm.path {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The address gives no module.
    #[error("fetch wasm.url {url:?}")]
    Fetch {
        /// As written in the manifest.
        url: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// It is longer than any module may be.
    #[error("the module has more than {MAX_MODULE_BYTES} bytes")]
    TooLong,
    /// It is another module than the manifest means.
    #[error("the module's SHA-256 is {got}, wasm.sha256 says {expected}")]
    Digest {
        /// As written in the manifest.
        expected: String,
        /// The module's.
        got: String,
    },
    /// It is no module, or uses what is not supported.
    #[error("compile the module")]
    Module(#[source] Error),
    /// It asks for something from outside.
    #[error("the module imports {module:?} {name:?}; a sandbox gives nothing, so it must import nothing")]
    Import {
        /// The import's module.
        module: String,
        /// The import's name.
        name: String,
    },
    /// It lacks a function or its memory.
    #[error("the module exports no {expected}")]
    Export {
        /// What it has to export.
        expected: &'static str,
    },
}

impl WasmFunction {
    pub(super) fn new(spec: &WasmSpec, event_loop: &EventLoop) -> Result<Self, WasmError> {
        let bytes = match (&spec.path, &spec.url) {
            (Some(path), _) => read(path.as_ref())?,
            (None, Some(url)) => fetch(url, event_loop)?,
            (None, None) => return Err(WasmError::Export { expected: "module: path and url are missing" }),
        };
        check_digest(spec, &bytes)?;
        let num_processors = std::thread::available_parallelism().map_or(1, usize::from);
        let sandbox = Arc::new(Sandbox::new(spec, &bytes)?);
        Ok(Self { sandbox, permits: Arc::new(Semaphore::new(num_processors)) })
    }

    pub(super) async fn judge(&self, sample: &ExternalSample) -> Verdict {
        let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else {
            return Verdict::infra("the queue of calls is closed");
        };
        let (sandbox, input) = (Arc::clone(&self.sandbox), sample_json(sample).to_string());
        let judged = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            sandbox.judge(input.as_bytes())
        });
        judged.await.unwrap_or_else(|error| Verdict::infra(format!("the interpreter failed: {error}")))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, WasmError> {
    let failed = |source| WasmError::Read { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(failed)?.len() > MAX_MODULE_BYTES {
        return Err(WasmError::TooLong);
    }
    std::fs::read(path).map_err(failed)
}

fn fetch(url: &str, event_loop: &EventLoop) -> Result<Vec<u8>, WasmError> {
    let failed =
        |source: reqwest::Error| WasmError::Fetch { url: url.to_owned(), source: source.without_url() };
    event_loop.handle().block_on(async {
        let client = reqwest::Client::builder().timeout(FETCH_TIMEOUT).build().map_err(failed)?;
        let sent = client.get(url).send().await.and_then(reqwest::Response::error_for_status);
        let mut response = sent.map_err(failed)?;
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() as u64 > MAX_MODULE_BYTES {
                return Err(WasmError::TooLong);
            }
        }
        Ok(bytes)
    })
}

fn check_digest(spec: &WasmSpec, bytes: &[u8]) -> Result<(), WasmError> {
    let Some(expected) = &spec.sha256 else { return Ok(()) };
    let got: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if got == expected.to_lowercase() {
        return Ok(());
    }
    Err(WasmError::Digest { expected: expected.clone(), got })
}

impl Sandbox {
    /// Compiles a module and checks that it asks for nothing and offers what is called.
    pub(super) fn new(spec: &WasmSpec, bytes: &[u8]) -> Result<Self, WasmError> {
        let mut config = Config::default();
        config.consume_fuel(true).allow_start_fn(false).compilation_mode(wasmi::CompilationMode::Eager);
        let engine = Engine::new(&config);
        let module = Module::new(&engine, bytes).map_err(WasmError::Module)?;
        if let Some(import) = module.imports().next() {
            let (module, name) = (import.module().to_owned(), import.name().to_owned());
            return Err(WasmError::Import { module, name });
        }
        let takes = |name: &str, parameters: &[ValType], result: ValType| {
            let export = module.get_export(name);
            let function = export.as_ref().and_then(ExternType::func);
            function.is_some_and(|function| function.params() == parameters && function.results() == [result])
        };
        let has_memory = module.get_export("memory").is_some_and(|export| export.memory().is_some());
        for (expected, is_there) in [
            ("memory `memory`", has_memory),
            ("function `alloc`: (i32) -> i32", takes("alloc", &[ValType::I32], ValType::I32)),
            ("function `judge`: (i32, i32) -> f64", takes("judge", &[ValType::I32; 2], ValType::F64)),
        ] {
            if !is_there {
                return Err(WasmError::Export { expected });
            }
        }
        Ok(Self {
            engine,
            module,
            fuel: spec.fuel,
            max_memory_bytes: (spec.memory_mib as usize) << 20,
            timeout: Duration::from_secs_f64(spec.timeout_seconds),
        })
    }

    /// The verdict on a sample, given as JSON. Every call has a fresh instance.
    pub(super) fn judge(&self, input: &[u8]) -> Verdict {
        match self.run(input) {
            Ok(value) if value.is_nan() => Verdict::infra("the module says that it cannot judge (NaN)"),
            Ok(value) if value.is_infinite() => Verdict::infra(format!("the module returned {value}")),
            Ok(value) => Verdict::ok(value),
            Err(Broken::Fuel) => Verdict::timeout(format!("used up its fuel of {}", self.fuel)),
            Err(Broken::Time) => Verdict::timeout(format!("took longer than {:?}", self.timeout)),
            Err(Broken::Wrong(message)) => Verdict::infra(message),
        }
    }

    fn run(&self, input: &[u8]) -> Result<f64, Broken> {
        let limits = StoreLimitsBuilder::new()
            .memory_size(self.max_memory_bytes)
            .table_elements(MAX_TABLE_ELEMENTS)
            .instances(1)
            .build();
        let mut call = Call {
            store: Store::new(&self.engine, limits),
            granted: SLICE.min(self.fuel),
            fuel: self.fuel,
            deadline: Instant::now() + self.timeout,
        };
        call.store.limiter(|limits| limits);
        call.store.set_fuel(call.granted)?;
        let instance = Linker::new(&self.engine).instantiate_and_start(&mut call.store, &self.module)?;
        let memory = instance.get_memory(&call.store, "memory").ok_or_else(|| missing("memory"))?;
        let len = i32::try_from(input.len()).map_err(|_| Broken::Wrong("the sample is too long".into()))?;
        let place: i32 = call.function(&instance, "alloc", len)?;
        memory
            .write(&mut call.store, place as u32 as usize, input)
            .map_err(|_| Broken::Wrong(format!("alloc({len}) returned {place}, which has no room")))?;
        call.function(&instance, "judge", (place, len))
    }
}

/// One judgement under way.
struct Call {
    store: Store<StoreLimits>,
    /// Fuel that was given so far.
    granted: u64,
    fuel: u64,
    deadline: Instant,
}

/// Why a judgement ended without a value.
enum Broken {
    Fuel,
    Time,
    Wrong(String),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        match error.as_trap_code() {
            Some(TrapCode::OutOfFuel) => Self::Fuel,
            _ => Self::Wrong(format!("the module trapped: {error}")),
        }
    }
}

fn missing(name: &str) -> Broken {
    Broken::Wrong(format!("the module exports no {name}"))
}

impl Call {
    /// Calls an exported function, a slice of fuel at a time.
    fn function<P: WasmParams, R: WasmResults>(
        &mut self,
        instance: &Instance,
        name: &str,
        parameters: P,
    ) -> Result<R, Broken> {
        let function = instance.get_typed_func::<P, R>(&self.store, name);
        let function = function.map_err(|error| Broken::Wrong(format!("call {name}: {error}")))?;
        let mut state = function.call_resumable(&mut self.store, parameters)?;
        loop {
            state = match state {
                TypedResumableCall::Finished(result) => return Ok(result),
                TypedResumableCall::HostTrap(_) => {
                    return Err(Broken::Wrong("a host function trapped".into()));
                }
                TypedResumableCall::OutOfFuel(stopped) => {
                    self.refuel(stopped.required_fuel())?;
                    stopped.resume(&mut self.store)?
                }
            };
        }
    }

    /// Gives the next slice, `required` at least.
    fn refuel(&mut self, required: u64) -> Result<(), Broken> {
        if Instant::now() > self.deadline {
            return Err(Broken::Time);
        }
        let left = self.store.get_fuel()?;
        let slice = required.saturating_sub(left).max(SLICE).min(self.fuel - self.granted);
        if left.saturating_add(slice) < required {
            return Err(Broken::Fuel);
        }
        self.granted += slice;
        Ok(self.store.set_fuel(left + slice)?)
    }
}
