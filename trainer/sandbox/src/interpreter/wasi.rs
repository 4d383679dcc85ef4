//! WASI preview 1 as the sandbox implements it: arguments, three byte streams in memory, a clock that
//! advances only when it is read or waited for, and random bytes that follow from the input. There are no
//! files, sockets or processes: such calls return the error of a descriptor that is not open.
//!
//! A verdict must not depend on the machine's clock, random numbers or files, so none of them is
//! reachable.

use std::collections::VecDeque;

use sha2::{Digest, Sha256};
use wasmi::errors::HostError;
use wasmi::{Caller, Error, Extern, FuncType, Linker, Module, StoreLimits, Val, ValType};

use super::super::error::WasmError;

/// Module name of every import.
const WASI: &str = "wasi_snapshot_preview1";

/// Limit of bytes that one process may write to its outputs.
const MAX_OUTPUT_BYTES: usize = 4 << 20;

/// Fuel that a call from the sandbox costs, apart from its bytes.
const CALL_FUEL: u64 = 64;

/// Time at which every process begins: 2000-01-01 in nanoseconds since 1970.
const EPOCH_NS: u64 = 946_684_800_000_000_000;

/// Nanoseconds by which the clock advances at each read.
const TICK_NS: u64 = 1000;

/// Error codes of WASI.
const BAD_DESCRIPTOR: i32 = 8;
const BAD_ADDRESS: i32 = 21;
const NO_SYSTEM_CALL: i32 = 52;
const NO_SEEK: i32 = 70;

/// WASI host of one process.
pub(super) struct Host {
    pub(super) limits: StoreLimits,
    arguments: Vec<String>,
    /// Chunks of standard input; a read never joins two chunks.
    stdin: VecDeque<Vec<u8>>,
    is_stdin_closed: bool,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    num_written: usize,
    /// Nanoseconds since the process began, by its own clock.
    clock_ns: u64,
    random: u64,
    /// Fuel that calls from the sandbox may cost; `work` is what they have cost.
    max_work: u64,
    work: u64,
    /// The read that waits for input: address and number of its buffers, and the address for the number of
    /// bytes.
    waiting: Option<[u32; 3]>,
    /// Whether the next read of a clock stops the process.
    pub(super) stops_at_clock: bool,
}

/// A call stopped the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stop {
    /// The process reads, and there is no input.
    Waits,
    /// The process read the clock while such reads stop it.
    Clock,
    /// The process ended with this exit code.
    Exit(i32),
    /// The process wrote more than its limit.
    Output,
    /// The process's calls cost more than their limit.
    Work,
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Waits => f.write_str("it waits for input"),
            Self::Clock => f.write_str("it looked at the clock"),
            Self::Exit(code) => write!(f, "exit code {code}"),
            Self::Output => write!(f, "wrote more than {MAX_OUTPUT_BYTES} bytes"),
            Self::Work => f.write_str("used up its fuel"),
        }
    }
}

impl HostError for Stop {}

/// A call failed: with an error code for the process, or by stopping it.
enum Refusal {
    Errno(i32),
    Stop(Stop),
}

type Answer<T = ()> = Result<T, Refusal>;

impl Host {
    pub(super) fn new(limits: StoreLimits, arguments: Vec<String>, max_work: u64) -> Self {
        Self {
            limits,
            arguments,
            stdin: VecDeque::new(),
            is_stdin_closed: false,
            stdout: Vec::new(),
            stderr: Vec::new(),
            num_written: 0,
            clock_ns: 0,
            random: 0,
            max_work,
            work: 0,
            waiting: None,
            stops_at_clock: false,
        }
    }

    /// Seeds random bytes from `input`, and allows calls to cost `max_work` from here on.
    pub(super) fn begin(&mut self, input: &[u8], max_work: u64) {
        let digest = Sha256::digest(input);
        self.random = digest.iter().take(8).fold(0, |seed, byte| seed << 8 | u64::from(*byte));
        (self.work, self.max_work, self.num_written) = (0, max_work, 0);
    }

    pub(super) fn clock_ns(&self) -> u64 {
        self.clock_ns
    }

    pub(super) fn set_clock_ns(&mut self, clock_ns: u64) {
        self.clock_ns = clock_ns;
    }

    pub(super) fn push_input(&mut self, chunk: Vec<u8>) {
        self.stdin.extend((!chunk.is_empty()).then_some(chunk));
    }

    pub(super) fn close_input(&mut self) {
        self.is_stdin_closed = true;
    }

    /// Completes the waiting read, and returns the error code for its caller.
    pub(super) fn finish_read(&mut self, memory: &mut [u8]) -> Result<i32, Stop> {
        let Some([buffers, len, at]) = self.waiting.take() else { return Ok(BAD_DESCRIPTOR) };
        errno(self.fd_read(memory, 0, [buffers, len, at]))
    }

    fn charge(&mut self, num_bytes: usize) -> Answer {
        self.work = self.work.saturating_add(CALL_FUEL + num_bytes as u64 / 4);
        if self.work > self.max_work { Err(Refusal::Stop(Stop::Work)) } else { Ok(()) }
    }

    fn fd_read(&mut self, memory: &mut [u8], fd: i32, [buffers, len, at]: [u32; 3]) -> Answer {
        if fd != 0 {
            return Err(Refusal::Errno(BAD_DESCRIPTOR));
        }
        let mut num_read = 0;
        for idx in 0..len {
            self.charge(0)?;
            let (address, room) = buffer(memory, buffers, idx)?;
            let Some(chunk) = self.stdin.front_mut() else { break };
            let taken: Vec<u8> = chunk.drain(..room.min(chunk.len())).collect();
            let is_empty = chunk.is_empty();
            put(memory, address, &taken)?;
            num_read += taken.len();
            if is_empty {
                // A read never joins chunks.
                self.stdin.pop_front();
                break;
            }
        }
        if num_read == 0 && !self.is_stdin_closed && self.stdin.is_empty() {
            self.waiting = Some([buffers, len, at]);
            return Err(Refusal::Stop(Stop::Waits));
        }
        self.charge(num_read)?;
        put(memory, at, &(num_read as u32).to_le_bytes())
    }

    fn fd_write(&mut self, memory: &mut [u8], fd: i32, [buffers, len, at]: [u32; 3]) -> Answer {
        let mut written = Vec::new();
        for idx in 0..len {
            self.charge(0)?;
            let (address, size) = buffer(memory, buffers, idx)?;
            let bytes = memory.get(address as usize..).and_then(|rest| rest.get(..size));
            let bytes = bytes.ok_or(Refusal::Errno(BAD_ADDRESS))?;
            if self.num_written + written.len() + bytes.len() > MAX_OUTPUT_BYTES {
                return Err(Refusal::Stop(Stop::Output));
            }
            written.extend_from_slice(bytes);
        }
        self.charge(written.len())?;
        self.num_written += written.len();
        put(memory, at, &(written.len() as u32).to_le_bytes())?;
        match fd {
            1 => self.stdout.extend(written),
            2 => self.stderr.extend(written),
            _ => return Err(Refusal::Errno(BAD_DESCRIPTOR)),
        }
        Ok(())
    }

    fn clock_time(&mut self, memory: &mut [u8], clock: i32, at: u32) -> Answer {
        self.charge(0)?;
        self.clock_ns += TICK_NS;
        let begin = if clock == 0 { EPOCH_NS } else { 0 };
        put(memory, at, &(begin + self.clock_ns).to_le_bytes())?;
        if std::mem::take(&mut self.stops_at_clock) { Err(Refusal::Stop(Stop::Clock)) } else { Ok(()) }
    }

    /// Waits for subscriptions by advancing the clock; streams are always ready.
    fn poll(&mut self, memory: &mut [u8], [subscriptions, events, len, at]: [u32; 4]) -> Answer {
        const SUBSCRIPTION: u32 = 48;
        const EVENT: u32 = 32;
        for idx in 0..len {
            self.charge(EVENT as usize)?;
            let one = subscriptions.wrapping_add(idx.wrapping_mul(SUBSCRIPTION));
            let kind = get::<1>(memory, one.wrapping_add(8))?[0];
            if kind == 0 {
                let time = u64::from_le_bytes(get(memory, one.wrapping_add(24))?);
                let is_absolute = get::<1>(memory, one.wrapping_add(40))?[0] & 1 == 1;
                let is_wall_clock = get::<1>(memory, one.wrapping_add(16))?[0] == 0;
                let begin = if is_wall_clock { EPOCH_NS } else { 0 };
                let end =
                    if is_absolute { time.saturating_sub(begin) } else { self.clock_ns.saturating_add(time) };
                self.clock_ns = self.clock_ns.max(end).min(u64::MAX / 4);
            }
            let mut event = [0; EVENT as usize];
            event[..8].copy_from_slice(&get::<8>(memory, one)?);
            event[10] = kind;
            put(memory, events.wrapping_add(idx.wrapping_mul(EVENT)), &event)?;
        }
        put(memory, at, &len.to_le_bytes())
    }

    fn random_get(&mut self, memory: &mut [u8], address: u32, len: u32) -> Answer {
        self.charge(len as usize)?;
        let target = memory.get_mut(address as usize..).and_then(|rest| rest.get_mut(..len as usize));
        let target = target.ok_or(Refusal::Errno(BAD_ADDRESS))?;
        for chunk in target.chunks_mut(8) {
            // The generator is SplitMix64.
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut bits = self.random;
            bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(bits ^ (bits >> 31)).to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }

    /// Writes the arguments as consecutive NUL-terminated strings, and their addresses.
    fn put_arguments(&mut self, memory: &mut [u8], places: u32, mut at: u32) -> Answer {
        for (idx, argument) in self.arguments.iter().enumerate() {
            put(memory, places.wrapping_add(4 * idx as u32), &at.to_le_bytes())?;
            put(memory, at, argument.as_bytes())?;
            put(memory, at.wrapping_add(argument.len() as u32), &[0])?;
            at = at.wrapping_add(argument.len() as u32 + 1);
        }
        Ok(())
    }
}

/// Describes a stream as a seekable character device, so that it is not taken for a terminal.
fn describe(memory: &mut [u8], fd: i32, at: u32, len: usize) -> Answer {
    const CHARACTER_DEVICE: u8 = 2;
    if !(0..=2).contains(&fd) {
        return Err(Refusal::Errno(BAD_DESCRIPTOR));
    }
    let mut description = vec![0; len];
    match len {
        64 => description[16] = CHARACTER_DEVICE,
        _ => {
            description[0] = CHARACTER_DEVICE;
            description[8..24].fill(0xff);
        }
    }
    put(memory, at, &description)
}

fn stream(fd: i32, else_: i32) -> Answer {
    let is_stream = (0..=2).contains(&fd);
    if is_stream && else_ == 0 {
        Ok(())
    } else {
        Err(Refusal::Errno(if is_stream { else_ } else { BAD_DESCRIPTOR }))
    }
}

fn get<const N: usize>(memory: &[u8], address: u32) -> Answer<[u8; N]> {
    let bytes = memory.get(address as usize..).and_then(|rest| rest.first_chunk::<N>());
    bytes.copied().ok_or(Refusal::Errno(BAD_ADDRESS))
}

fn put(memory: &mut [u8], address: u32, bytes: &[u8]) -> Answer {
    let target = memory.get_mut(address as usize..).and_then(|rest| rest.get_mut(..bytes.len()));
    target.ok_or(Refusal::Errno(BAD_ADDRESS))?.copy_from_slice(bytes);
    Ok(())
}

/// Address and length of buffer `idx` of a read or write.
fn buffer(memory: &[u8], buffers: u32, idx: u32) -> Answer<(u32, usize)> {
    let at = buffers.wrapping_add(idx.wrapping_mul(8));
    let len = u32::from_le_bytes(get(memory, at.wrapping_add(4))?);
    Ok((u32::from_le_bytes(get(memory, at)?), len as usize))
}

fn errno(answer: Answer) -> Result<i32, Stop> {
    match answer {
        Ok(()) => Ok(0),
        Err(Refusal::Errno(errno)) => Ok(errno),
        Err(Refusal::Stop(stop)) => Err(stop),
    }
}

/// Runs a call with the caller's memory and host.
fn with(
    caller: &mut Caller<'_, Host>,
    call: impl FnOnce(&mut [u8], &mut Host) -> Answer,
) -> Result<i32, Error> {
    let memory = caller.get_export("memory").and_then(Extern::into_memory);
    let memory = memory.ok_or_else(|| Error::new("the module exports no memory"))?;
    let (memory, host) = memory.data_and_store_mut(caller);
    errno(call(memory, host)).map_err(Error::host)
}

/// Links the implementations of a module's imports.
///
/// # Errors
/// [`WasmError::Import`] for an import that WASI does not have.
pub(super) fn linker(engine: &wasmi::Engine, module: &Module) -> Result<Linker<Host>, WasmError> {
    let mut linker = Linker::new(engine);
    define_streams(&mut linker)
        .and_then(|()| define_rest(&mut linker))
        .map_err(|error| WasmError::Start { message: format!("define the imports: {error}") })?;
    for import in module.imports() {
        let (from, name) = (import.module(), import.name());
        let refused = || WasmError::Import { module: from.to_owned(), name: name.to_owned() };
        let ty = import.ty().func().cloned().filter(|_| from == WASI).ok_or_else(refused)?;
        if name == "proc_exit" {
            continue;
        }
        // The linker refuses a second definition of a function and keeps the first.
        let _ = linker.func_new(WASI, name, ty.clone(), absent(name, &ty).ok_or_else(refused)?);
    }
    Ok(linker)
}

type Absent = Box<dyn Fn(Caller<'_, Host>, &[Val], &mut [Val]) -> Result<(), Error> + Send + Sync>;

/// A function that always fails with an error code.
fn absent(name: &str, ty: &FuncType) -> Option<Absent> {
    let code =
        if name.starts_with("fd_") || name.starts_with("path_") { BAD_DESCRIPTOR } else { NO_SYSTEM_CALL };
    let has_error = ty.results() == [ValType::I32];
    has_error.then(|| -> Absent {
        Box::new(move |mut caller, _, results| {
            results[0] = Val::I32(with(&mut caller, |_, host| {
                host.charge(0)?;
                Err(Refusal::Errno(code))
            })?);
            Ok(())
        })
    })
}

type Linked = Result<(), wasmi::errors::LinkerError>;
type C<'a> = Caller<'a, Host>;

fn define_streams(linker: &mut Linker<Host>) -> Linked {
    linker.func_wrap(WASI, "fd_read", |mut caller: C<'_>, fd: i32, buffers: u32, len: u32, at: u32| {
        with(&mut caller, |memory, host| host.fd_read(memory, fd, [buffers, len, at]))
    })?;
    linker.func_wrap(WASI, "fd_write", |mut caller: C<'_>, fd: i32, buffers: u32, len: u32, at: u32| {
        with(&mut caller, |memory, host| host.fd_write(memory, fd, [buffers, len, at]))
    })?;
    linker.func_wrap(WASI, "fd_fdstat_get", |mut caller: C<'_>, fd: i32, at: u32| {
        with(&mut caller, |memory, _| describe(memory, fd, at, 24))
    })?;
    linker.func_wrap(WASI, "fd_filestat_get", |mut caller: C<'_>, fd: i32, at: u32| {
        with(&mut caller, |memory, _| describe(memory, fd, at, 64))
    })?;
    linker.func_wrap(WASI, "fd_fdstat_set_flags", |mut caller: C<'_>, fd: i32, _: i32| {
        with(&mut caller, |_, _| stream(fd, 0))
    })?;
    linker
        .func_wrap(WASI, "fd_close", |mut caller: C<'_>, fd: i32| with(&mut caller, |_, _| stream(fd, 0)))?;
    linker.func_wrap(WASI, "fd_seek", |mut caller: C<'_>, fd: i32, _: i64, _: i32, _: i32| {
        with(&mut caller, |_, _| stream(fd, NO_SEEK))
    })?;
    linker.func_wrap(WASI, "fd_tell", |mut caller: C<'_>, fd: i32, _: i32| {
        with(&mut caller, |_, _| stream(fd, NO_SEEK))
    })?;
    Ok(())
}

fn define_rest(linker: &mut Linker<Host>) -> Linked {
    linker.func_wrap(WASI, "args_sizes_get", |mut caller: C<'_>, number: u32, size: u32| {
        with(&mut caller, |memory, host| {
            let num_bytes: usize = host.arguments.iter().map(|argument| argument.len() + 1).sum();
            put(memory, number, &(host.arguments.len() as u32).to_le_bytes())?;
            put(memory, size, &(num_bytes as u32).to_le_bytes())
        })
    })?;
    linker.func_wrap(WASI, "args_get", |mut caller: C<'_>, places: u32, at: u32| {
        with(&mut caller, |memory, host| host.put_arguments(memory, places, at))
    })?;
    linker.func_wrap(WASI, "environ_sizes_get", |mut caller: C<'_>, number: u32, size: u32| {
        with(&mut caller, |memory, _| {
            put(memory, number, &[0; 4])?;
            put(memory, size, &[0; 4])
        })
    })?;
    linker.func_wrap(WASI, "environ_get", |_: C<'_>, _: u32, _: u32| 0_i32)?;
    linker.func_wrap(WASI, "clock_res_get", |mut caller: C<'_>, _: i32, at: u32| {
        with(&mut caller, |memory, _| put(memory, at, &TICK_NS.to_le_bytes()))
    })?;
    linker.func_wrap(WASI, "clock_time_get", |mut caller: C<'_>, clock: i32, _: i64, at: u32| {
        with(&mut caller, |memory, host| host.clock_time(memory, clock, at))
    })?;
    linker.func_wrap(WASI, "poll_oneoff", |mut caller: C<'_>, from: u32, to: u32, len: u32, at: u32| {
        with(&mut caller, |memory, host| host.poll(memory, [from, to, len, at]))
    })?;
    linker.func_wrap(WASI, "random_get", |mut caller: C<'_>, address: u32, len: u32| {
        with(&mut caller, |memory, host| host.random_get(memory, address, len))
    })?;
    linker.func_wrap(WASI, "sched_yield", |mut caller: C<'_>| with(&mut caller, |_, host| host.charge(0)))?;
    linker.func_wrap(WASI, "proc_exit", |_: C<'_>, code: i32| Err::<(), _>(Error::host(Stop::Exit(code))))?;
    Ok(())
}
