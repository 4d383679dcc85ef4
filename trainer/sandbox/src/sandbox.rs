//! A WebAssembly module without imports, run by an interpreter with limits of fuel, memory and time. The same
//! module gives the same number for the same input everywhere.
//!
//! The interpreter is wasmi: its fuel and memory limit a call equally on every machine, and no page is
//! both writable and executable. The alternative, wasmtime with Cranelift, takes 150 s of one core to
//! build (wasmi 28 s), and its speed matters less than the time that a step spends in servers and models.
//! wasmi has no components, so they are not supported.

use wasmi::{
    Config, Engine, ExternType, Instance, Linker, Module, Store, StoreLimits, TypedResumableCall, ValType,
    WasmParams, WasmResults,
};

use super::error::WasmError;
use super::limits::{Bounds, Budget, SandboxError};

/// A compiled module with its limits.
pub struct Sandbox {
    engine: Engine,
    module: Module,
    bounds: Bounds,
}

impl Sandbox {
    /// Compiles a module and checks that it has no imports and the required exports.
    ///
    /// # Errors
    /// [`WasmError::Module`], [`WasmError::Import`] or [`WasmError::Export`].
    pub fn new(bytes: &[u8], bounds: Bounds) -> Result<Self, WasmError> {
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
        Ok(Self { engine, module, bounds })
    }

    /// Limits of each call.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Writes an input into a fresh instance, and returns the number that `judge` gives for it.
    ///
    /// # Errors
    /// The limit that the call exceeded, or what it did wrong.
    pub fn judge(&self, input: &[u8]) -> Result<f64, SandboxError> {
        let mut store = Store::new(&self.engine, self.bounds.limits());
        store.limiter(|limits| limits);
        let budget = Budget::begin(&self.bounds, &mut store)?;
        let mut call = Call { store, budget };
        let instance = Linker::new(&self.engine).instantiate_and_start(&mut call.store, &self.module)?;
        let memory = instance.get_memory(&call.store, "memory").ok_or_else(|| missing("memory"))?;
        let len =
            i32::try_from(input.len()).map_err(|_| SandboxError::Wrong("the sample is too long".into()))?;
        let place: i32 = call.function(&instance, "alloc", len)?;
        memory
            .write(&mut call.store, place as u32 as usize, input)
            .map_err(|_| SandboxError::Wrong(format!("alloc({len}) returned {place}, which has no room")))?;
        call.function(&instance, "judge", (place, len))
    }
}

/// An active call with its budget.
struct Call {
    store: Store<StoreLimits>,
    budget: Budget,
}

fn missing(name: &str) -> SandboxError {
    SandboxError::Wrong(format!("the module exports no {name}"))
}

impl Call {
    /// Calls an exported function, granting fuel a slice at a time.
    fn function<P: WasmParams, R: WasmResults>(
        &mut self,
        instance: &Instance,
        name: &str,
        parameters: P,
    ) -> Result<R, SandboxError> {
        let function = instance.get_typed_func::<P, R>(&self.store, name);
        let function = function.map_err(|error| SandboxError::Wrong(format!("call {name}: {error}")))?;
        let mut state = function.call_resumable(&mut self.store, parameters)?;
        loop {
            state = match state {
                TypedResumableCall::Finished(result) => return Ok(result),
                TypedResumableCall::HostTrap(_) => {
                    return Err(SandboxError::Wrong("a host function trapped".into()));
                }
                TypedResumableCall::OutOfFuel(stopped) => {
                    self.budget.refuel(&mut self.store, stopped.required_fuel())?;
                    stopped.resume(&mut self.store)?
                }
            };
        }
    }
}
