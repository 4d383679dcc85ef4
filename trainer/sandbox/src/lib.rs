//! Untrusted code under limits of fuel, memory and time: WebAssembly modules, and Python programs in an
//! interpreter that is itself a module.
//!
//! ```text
//! bytes, Bounds -> Sandbox      -> judge(input)    -> a number, or SandboxError
//! bytes, Bounds -> Interpreter  -> start(message)  -> Process: output, exit code, or SandboxError
//! ```
//! Nothing of the machine can be reached from inside. The same code gives the same result on the same input
//! everywhere, unless the time limit ends it.

mod error;
mod interpreter;
mod limits;
mod sandbox;
#[cfg(test)]
mod tests;

pub use error::WasmError;
pub use interpreter::{Interpreter, Process, State};
pub use limits::{Bounds, SandboxError};
pub use sandbox::Sandbox;
