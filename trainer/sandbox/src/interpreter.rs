//! Programs in the sandbox, run by an interpreter that is itself a WebAssembly module: CPython built for
//! WASI.
//!
//! ```text
//! Interpreter::new   boots once: `_start` -> driver.py loads what all samples need -> its memory is copied
//! Interpreter::start that memory in a fresh instance -> driver.py answers one message -> the process ends
//! ```
//! Starting CPython takes some hundred million instructions; copying its memory takes a few milliseconds. The
//! copy is taken while the interpreter reads a clock. The copy does not include the interpreter's native
//! stack, so a process resumes by calling a C function that calls `resume` of driver.py, as a callback would.
//! If that does not work, for example with another interpreter or another layout of objects, every process
//! boots on its own. This is slower but gives the same results, because limits count from the first message.

mod exports;
mod process;
mod wasi;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use wasmi::{Config, Engine, ExternType, Linker, Module, Ref, Store, Val};

use super::error::WasmError;
use super::limits::{Bounds, SandboxError};
pub use process::{Process, State};
use wasi::Host;

/// Source of the driver, which runs inside the interpreter.
const DRIVER: &str = include_str!("interpreter/driver.py");

/// Limits of nested calls in the module, and of bytes of their values.
const MAX_CALLS: usize = 30_000;
const MAX_STACK_BYTES: usize = 64 << 20;

/// Limits of fuel and time until the interpreter is ready. Only modules of its standard library run by then,
/// no code of samples.
const BOOT_FUEL: u64 = 100_000_000_000;
const BOOT_TIMEOUT: Duration = Duration::from_secs(300);

/// Number of bytes of a WebAssembly memory page.
const PAGE: usize = 65_536;

/// A booted interpreter, from which processes are started.
#[derive(Clone)]
pub struct Interpreter {
    linker: Linker<Host>,
    module: Module,
    bounds: Bounds,
    /// First message of every process: the imports and files that all samples need.
    preparation: Vec<u8>,
    snapshot: Option<Arc<Snapshot>>,
}

/// State of a booted interpreter, from which processes are restored.
struct Snapshot {
    num_pages: usize,
    /// Pages that are not all zero, by their index.
    pages: Vec<(usize, Box<[u8]>)>,
    globals: Vec<Val>,
    clock_ns: u64,
    /// Index in the table of the function by which a process resumes, and address of the object that it is a
    /// method of.
    function: u64,
    receiver: i32,
}

impl Interpreter {
    /// Compiles a module, boots it, and loads the imports and the file of reward functions that all samples
    /// need.
    ///
    /// # Errors
    /// The module is no interpreter, the interpreter does not start, or the file fails to load.
    pub fn new(bytes: &[u8], bounds: Bounds, preparation: &Value) -> Result<Self, WasmError> {
        Self::with_snapshots(bytes, bounds, preparation, true)
    }

    /// Compiles and boots a module as [`Self::new`] does. `is_copied` says whether processes are restored
    /// from a copy.
    pub(super) fn with_snapshots(
        bytes: &[u8],
        bounds: Bounds,
        preparation: &Value,
        is_copied: bool,
    ) -> Result<Self, WasmError> {
        let mut config = Config::default();
        config.consume_fuel(true).allow_start_fn(false).ignore_custom_sections(true);
        config.compilation_mode(wasmi::CompilationMode::Eager);
        config.set_max_recursion_depth(MAX_CALLS).set_max_stack_height(MAX_STACK_BYTES);
        let engine = Engine::new(&config);
        let exposed = exports::exposed(bytes).filter(|_| is_copied);
        let num_globals = exposed.as_ref().map_or(0, |exposed| exposed.num_globals);
        let module = exposed.as_ref().map_or(bytes, |exposed| exposed.module.as_slice());
        let module = Module::new(&engine, module).map_err(WasmError::Module)?;
        check_exports(&module)?;
        let linker = wasi::linker(&engine, &module)?;
        let mut own = Self { linker, module, bounds, preparation: line(preparation), snapshot: None };
        let failed = |broken| WasmError::Start { message: own.bounds.reason(broken) };
        let mut booted = own.boot().map_err(failed)?;
        let answer: Value = serde_json::from_slice(&booted.take_output()).unwrap_or_default();
        if let Some(message) = answer["failed"].as_str() {
            let path = preparation["path"].as_str().unwrap_or_default().to_owned();
            return Err(WasmError::Load { path, message: message.to_owned() });
        }
        if answer.get("resume").is_none() {
            let message = booted.errors();
            return Err(WasmError::Start { message: format!("it runs no Python: {message}") });
        }
        let snapshot = Snapshot::of(&booted, &answer["resume"], num_globals);
        own.snapshot = snapshot.filter(|_| exposed.is_some()).map(Arc::new);
        if own.snapshot.is_some() && own.ping().is_err() {
            own.snapshot = None;
            own.ping().map_err(|message| WasmError::Start { message })?;
        }
        if own.snapshot.is_none() && is_copied {
            tracing::warn!(
                "the interpreter's memory cannot be copied: every sample boots it anew, which is slower"
            );
        }
        Ok(own)
    }

    /// Starts a process on a message, and runs it until it waits for more input or ends. `stdin`, if given,
    /// is its complete standard input.
    ///
    /// # Errors
    /// The limit that the process exceeded, or what it did wrong.
    pub fn start(&self, message: &Value, stdin: Option<&str>) -> Result<(Process, State), SandboxError> {
        self.start_within(&self.bounds, message, stdin)
    }

    fn start_within(
        &self,
        bounds: &Bounds,
        message: &Value,
        stdin: Option<&str>,
    ) -> Result<(Process, State), SandboxError> {
        let message = line(message);
        let mut process = match &self.snapshot {
            Some(snapshot) => self.restored(snapshot)?,
            None => self.waiting()?,
        };
        let mut input = message.clone();
        input.extend(stdin.unwrap_or_default().as_bytes());
        process.begin(&input, bounds)?;
        process.push(message);
        if let Some(stdin) = stdin {
            process.push(stdin);
            process.close();
        }
        let state = match &self.snapshot {
            Some(snapshot) => snapshot.resume(&mut process)?,
            None => process.proceed()?,
        };
        Ok((process, state))
    }

    /// Limits of each process.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Returns the same booted interpreter with other limits of fuel and time.
    pub fn with_bounds(&self, fuel: u64, timeout: Duration) -> Self {
        Self { bounds: Bounds { fuel, timeout, ..self.bounds }, ..self.clone() }
    }

    /// Whether processes are restored from a copy.
    #[cfg(test)]
    pub(super) fn is_copied(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Checks that a process reads its first message and ends.
    fn ping(&self) -> Result<(), String> {
        let bounds = Bounds { timeout: BOOT_TIMEOUT, ..self.bounds };
        let state = self.start_within(&bounds, &json!({"run": "ping"}), None).map(|(_, state)| state);
        match state.map_err(|broken| self.bounds.reason(broken))? {
            State::Exited(0) => Ok(()),
            other => Err(format!("expected it to end, got {other:?}")),
        }
    }

    fn store(&self, bounds: &Bounds) -> Store<Host> {
        let arguments = ["python", "-I", "-S", "-B", "-c", DRIVER].map(str::to_owned).to_vec();
        let host = Host::new(self.bounds.limits(), arguments, bounds.fuel);
        let mut store = Store::new(self.linker.engine(), host);
        store.limiter(|host| &mut host.limits);
        store
    }

    /// Boots a process up to the point where its memory is copied, or to its end if it does not get there.
    fn boot(&self) -> Result<Process, SandboxError> {
        let bounds = Bounds { fuel: BOOT_FUEL, timeout: BOOT_TIMEOUT, ..self.bounds };
        let mut store = self.store(&bounds);
        store.set_fuel(BOOT_FUEL)?;
        let instance = self.linker.instantiate_and_start(&mut store, &self.module)?;
        let mut process = Process::new(store, instance, &bounds)?;
        let start = instance.get_func(&process.store, "_start");
        let start = start.ok_or_else(|| SandboxError::Wrong("the module exports no _start".into()))?;
        if process.call(start, &[])? == State::Waits {
            process.stop_at_clock_after(&self.preparation)?;
        }
        Ok(process)
    }

    /// Boots a process until it waits for its message.
    fn waiting(&self) -> Result<Process, SandboxError> {
        let mut process = self.boot()?;
        process.take_output();
        match process.proceed()? {
            State::Waits => Ok(process),
            other => {
                Err(SandboxError::Wrong(format!("the interpreter does not ask for a sample: {other:?}")))
            }
        }
    }

    /// Restores a process from the copy in a fresh instance.
    fn restored(&self, snapshot: &Snapshot) -> Result<Process, SandboxError> {
        let mut store = self.store(&self.bounds);
        store.set_fuel(BOOT_FUEL)?;
        let instance = self.linker.instantiate_and_start(&mut store, &self.module)?;
        let mut process = Process::new(store, instance, &self.bounds)?;
        snapshot.restore(&mut process)?;
        Ok(process)
    }
}

impl Process {
    /// Sends the first message, and runs the process up to the read of the clock after its answer.
    fn stop_at_clock_after(&mut self, preparation: &[u8]) -> Result<(), SandboxError> {
        self.push(preparation);
        self.store.data_mut().stops_at_clock = true;
        let mut state = self.proceed()?;
        // Modules may read the clock while they are loaded, too.
        while state == State::AtClock && self.store.data().stdout.is_empty() {
            self.store.data_mut().stops_at_clock = true;
            state = self.proceed()?;
        }
        self.store.data_mut().stops_at_clock = false;
        Ok(())
    }
}

impl Snapshot {
    /// Copies the state of a process that stopped at the clock. `resume` holds the addresses of a C function
    /// of CPython without parameters, and of its module.
    fn of(process: &Process, resume: &Value, num_globals: usize) -> Option<Self> {
        // `PyCFunctionObject.m_ml`, after the object's header; `PyMethodDef.ml_meth` and `ml_flags` in it.
        const M_ML: usize = 8;
        const ML_METH: usize = 4;
        const ML_FLAGS: usize = 8;
        const METH_NOARGS: u32 = 4;
        let Process { store, memory, instance, .. } = process;
        let data = memory.data(store);
        let word = |at: usize| {
            data.get(at..).and_then(|rest| rest.first_chunk()).map(|word| u32::from_le_bytes(*word))
        };
        let method = word(resume[0].as_u64()? as usize + M_ML)? as usize;
        let function = u64::from(word(method + ML_METH)?);
        if word(method + ML_FLAGS)? != METH_NOARGS {
            return None;
        }
        let table = instance.get_table(store, exports::TABLE)?;
        let Some(Ref::Func(found)) = table.get(store, function) else { return None };
        found.val()?.typed::<(i32, i32), i32>(store).ok()?;
        let globals: Option<Vec<Val>> = (0..num_globals)
            .map(|idx| Some(instance.get_global(store, &exports::global(idx))?.get(store)))
            .collect();
        let pages = data.chunks(PAGE).enumerate().filter(|(_, page)| **page != [0; PAGE]);
        Some(Self {
            num_pages: data.len() / PAGE,
            pages: pages.map(|(idx, page)| (idx, page.into())).collect(),
            globals: globals?,
            clock_ns: store.data().clock_ns(),
            function,
            receiver: resume[1].as_u64()? as u32 as i32,
        })
    }

    /// Restores this state in a fresh instance.
    fn restore(&self, process: &mut Process) -> Result<(), SandboxError> {
        let wrong = |what: &dyn std::fmt::Display| {
            SandboxError::Wrong(format!("copy the interpreter's memory: {what}"))
        };
        let Process { store, memory, instance, .. } = process;
        let num_pages = memory.data(&*store).len() / PAGE;
        let more = self.num_pages.saturating_sub(num_pages);
        memory.grow(&mut *store, more as u64).map_err(|error| wrong(&error))?;
        let data = memory.data_mut(&mut *store);
        // The module's initial data must be cleared where the copy is zero.
        data[..num_pages * PAGE].fill(0);
        for (idx, page) in &self.pages {
            data[idx * PAGE..][..page.len()].copy_from_slice(page);
        }
        for (idx, value) in self.globals.iter().enumerate() {
            let global =
                instance.get_global(&*store, &exports::global(idx)).ok_or_else(|| wrong(&"no global"))?;
            global.set(&mut *store, value.clone()).map_err(|error| wrong(&error))?;
        }
        store.data_mut().set_clock_ns(self.clock_ns);
        Ok(())
    }

    /// Calls the function by which the process resumes.
    fn resume(&self, process: &mut Process) -> Result<State, SandboxError> {
        let table = process.instance.get_table(&process.store, exports::TABLE);
        let function = match table.and_then(|table| table.get(&process.store, self.function)) {
            Some(Ref::Func(function)) => function.val().copied(),
            _ => None,
        };
        let function = function.ok_or_else(|| SandboxError::Wrong("the table lost a function".into()))?;
        process.call(function, &[Val::I32(self.receiver), Val::I32(0)])
    }
}

fn check_exports(module: &Module) -> Result<(), WasmError> {
    let start = module.get_export("_start");
    let has_start = start.as_ref().and_then(ExternType::func);
    if !has_start.is_some_and(|start| start.params().is_empty() && start.results().is_empty()) {
        return Err(WasmError::Export { expected: "function `_start`: () -> (): it is no program of WASI" });
    }
    match module.get_export("memory").is_some_and(|export| export.memory().is_some()) {
        true => Ok(()),
        false => Err(WasmError::Export { expected: "memory `memory`" }),
    }
}

/// A message as a line, which driver.py reads.
pub(super) fn line(message: &Value) -> Vec<u8> {
    format!("{message}\n").into_bytes()
}
