//! A running interpreter, which runs until it waits for input, ends, or is stopped.

use wasmi::{Error, Func, Memory, ResumableCall, ResumableCallHostTrap, Store, Val};

use super::super::limits::{Bounds, Budget, SandboxError};
use super::wasi::{Host, Stop};

/// An instance of the interpreter's module with its WASI host.
pub struct Process {
    pub(super) store: Store<Host>,
    pub(super) memory: Memory,
    pub(super) instance: wasmi::Instance,
    budget: Budget,
    /// Results of the suspended call.
    results: Vec<Val>,
    suspended: Option<ResumableCallHostTrap>,
}

/// State in which a process stopped, unless it broke a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// The process waits for standard input.
    Waits,
    /// The process read the clock while such reads stop it.
    AtClock,
    /// The process ended with this exit code.
    Exited(i32),
}

impl Process {
    pub(super) fn new(
        mut store: Store<Host>,
        instance: wasmi::Instance,
        bounds: &Bounds,
    ) -> Result<Self, SandboxError> {
        let memory = instance.get_memory(&store, "memory");
        let memory = memory.ok_or_else(|| SandboxError::Wrong("the module exports no memory".into()))?;
        let budget = Budget::begin(bounds, &mut store)?;
        Ok(Self { store, memory, instance, budget, results: Vec::new(), suspended: None })
    }

    /// Calls a function of the module, until the process stops.
    pub(super) fn call(&mut self, function: Func, parameters: &[Val]) -> Result<State, SandboxError> {
        let num_results = function.ty(&self.store).results().len();
        self.results = vec![Val::I32(0); num_results];
        let called = function.call_resumable(&mut self.store, parameters, &mut self.results);
        self.advance(called)
    }

    /// Begins to count limits, and seeds random bytes from `input`: the code of a sample runs from here on.
    pub(super) fn begin(&mut self, input: &[u8], bounds: &Bounds) -> Result<(), SandboxError> {
        self.store.data_mut().begin(input, bounds.fuel);
        self.budget = Budget::begin(bounds, &mut self.store)?;
        Ok(())
    }

    /// Appends a chunk to the standard input. A read never joins two chunks.
    pub fn push(&mut self, chunk: impl Into<Vec<u8>>) {
        self.store.data_mut().push_input(chunk.into());
    }

    pub(super) fn close(&mut self) {
        self.store.data_mut().close_input();
    }

    /// Continues the process where it stopped.
    ///
    /// # Errors
    /// The limit that the process exceeded, or what it did wrong.
    pub fn proceed(&mut self) -> Result<State, SandboxError> {
        let Some(suspended) = self.suspended.take() else {
            return Err(SandboxError::Wrong("it has ended".into()));
        };
        let errno = match suspended.host_error().downcast_ref::<Stop>() {
            Some(Stop::Waits) => {
                let (memory, host) = self.memory.data_and_store_mut(&mut self.store);
                match host.finish_read(memory) {
                    Ok(errno) => errno,
                    Err(Stop::Waits) => {
                        self.suspended = Some(suspended);
                        return Ok(State::Waits);
                    }
                    Err(stop) => return Err(stopped(stop)),
                }
            }
            _ => 0,
        };
        let called = suspended.resume(&mut self.store, &[Val::I32(errno)], &mut self.results);
        self.advance(called)
    }

    /// Whether the process can continue.
    pub fn is_suspended(&self) -> bool {
        self.suspended.is_some()
    }

    /// Takes the standard output since the last call.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.store.data_mut().stdout)
    }

    /// The standard error of the process.
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.store.data().stderr).into_owned()
    }

    fn advance(&mut self, called: Result<ResumableCall, Error>) -> Result<State, SandboxError> {
        let mut call = called?;
        loop {
            call = match call {
                ResumableCall::Finished => {
                    return Err(SandboxError::Wrong("the interpreter returned without an exit code".into()));
                }
                ResumableCall::OutOfFuel(out) => {
                    self.budget.refuel(&mut self.store, out.required_fuel())?;
                    out.resume(&mut self.store, &mut self.results)?
                }
                ResumableCall::HostTrap(trap) => match trap.host_error().downcast_ref::<Stop>() {
                    Some(Stop::Waits) => {
                        self.suspended = Some(trap);
                        return Ok(State::Waits);
                    }
                    Some(Stop::Clock) => {
                        self.suspended = Some(trap);
                        return Ok(State::AtClock);
                    }
                    Some(Stop::Exit(code)) => return Ok(State::Exited(*code)),
                    Some(stop) => return Err(stopped(*stop)),
                    None => return Err(SandboxError::Wrong(trap.host_error().to_string())),
                },
            };
        }
    }
}

fn stopped(stop: Stop) -> SandboxError {
    match stop {
        Stop::Work => SandboxError::Fuel,
        other => SandboxError::Wrong(other.to_string()),
    }
}
