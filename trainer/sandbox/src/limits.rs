//! Limits of a call in the sandbox: fuel, memory and time. Fuel is granted in slices, and the clock is
//! checked between slices.

use std::time::{Duration, Instant};

use wasmi::{Error, Store, StoreLimits, StoreLimitsBuilder, TrapCode};

/// Fuel between two checks of the clock: about 10 ms of execution.
const SLICE: u64 = 5_000_000;

/// Largest number of entries in a module's tables.
const MAX_TABLE_ELEMENTS: usize = 1 << 20;

/// The limits of one call.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Fuel of the call, roughly its number of instructions. It is used up equally on every machine.
    pub fuel: u64,
    /// Size limit of an instance's memory in bytes.
    pub max_memory_bytes: usize,
    /// Time limit of the call, which depends on the machine.
    pub timeout: Duration,
}

/// Fuel and time that a call may still use.
#[derive(Debug)]
pub(super) struct Budget {
    /// Fuel granted so far.
    granted: u64,
    fuel: u64,
    deadline: Instant,
}

/// A call ended without a result.
#[derive(Clone, Debug, PartialEq)]
pub enum SandboxError {
    /// The call needs more fuel than its limit. The same call does so on every machine.
    Fuel,
    /// The call exceeded its time limit on this machine.
    Time,
    /// The call trapped, or did something that the sandbox forbids.
    Wrong(String),
}

impl Bounds {
    pub(super) fn limits(&self) -> StoreLimits {
        StoreLimitsBuilder::new()
            .memory_size(self.max_memory_bytes)
            .table_elements(MAX_TABLE_ELEMENTS)
            .instances(1)
            .build()
    }

    /// Returns a message that says why a call ended.
    pub fn reason(&self, error: SandboxError) -> String {
        match error {
            SandboxError::Fuel => format!("used up its fuel of {}", self.fuel),
            SandboxError::Time => format!("took longer than {:?}", self.timeout),
            SandboxError::Wrong(message) => message,
        }
    }
}

impl Budget {
    /// Starts the budget of a call, and grants the store its first slice of fuel.
    pub(super) fn begin<T>(bounds: &Bounds, store: &mut Store<T>) -> Result<Self, Error> {
        let granted = SLICE.min(bounds.fuel);
        store.set_fuel(granted)?;
        Ok(Self { granted, fuel: bounds.fuel, deadline: Instant::now() + bounds.timeout })
    }

    /// Grants the next slice, at least `required`.
    pub(super) fn refuel<T>(&mut self, store: &mut Store<T>, required: u64) -> Result<(), SandboxError> {
        if Instant::now() > self.deadline {
            return Err(SandboxError::Time);
        }
        let left = store.get_fuel()?;
        let slice = required.saturating_sub(left).max(SLICE).min(self.fuel - self.granted);
        if left.saturating_add(slice) < required {
            return Err(SandboxError::Fuel);
        }
        self.granted += slice;
        Ok(store.set_fuel(left + slice)?)
    }
}

impl From<Error> for SandboxError {
    fn from(error: Error) -> Self {
        match error.as_trap_code() {
            Some(TrapCode::OutOfFuel) => Self::Fuel,
            _ => Self::Wrong(format!("the module trapped: {error}")),
        }
    }
}
