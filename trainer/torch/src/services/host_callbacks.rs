//! Host functions ordered by a device's stream: values are copied from the device, a function on the host
//! computes results on a thread of the driver, and they are copied back. The launching thread does not wait.
//! An update computes its losses this way and waits for the GPU once; reading log-probs directly would wait
//! in every chunk of the head.
//!
//! ```text
//! stream    ... -> numbers -> pinned -> compute(numbers, results) -> pinned -> results on the device -> ...
//! ```

use tch::{Device, Kind, Tensor};

use crate::cuda::{Event, Stream};
use crate::tensor_data::{f32_slice, f32_slice_mut};
use crate::{Error, upload};

/// Pending copies and host calls of a device's stream, and their pinned memory, which is held until they are
/// complete.
#[derive(Debug, Default)]
pub struct HostCallbacks {
    /// Pinned buffers that the stream may still use.
    pinned: Vec<Tensor>,
    /// Stream, and an event recorded after the last copy or call.
    reached: Option<(Stream, Event)>,
}

impl HostCallbacks {
    /// Makes a value without pending calls.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enqueues a call of `compute` on the current stream of the GPU, with `numbers` (dense f32) and a zeroed
    /// slice of `num_results` for its results. Returns the results as a tensor `[num_results]`, for
    /// operations of the same stream. `compute` runs on a thread of the driver: it must neither call a device
    /// nor panic; a panic is ignored.
    ///
    /// # Errors
    /// When `numbers` is not f32 on a GPU, memory does not suffice, or the driver fails.
    pub fn compute(
        &mut self,
        numbers: &Tensor,
        num_results: usize,
        compute: impl FnOnce(&[f32], &mut [f32]) + Send + 'static,
    ) -> Result<Tensor, Error> {
        let stream = stream_of(numbers)?;
        let from = self.pinned(numbers.numel())?;
        let mut to = self.pinned(num_results)?;
        f32_slice_mut(&mut to)?.fill(0.0);
        let results =
            Tensor::f_empty([num_results as i64], (Kind::Float, numbers.device())).map_err(failed)?;
        stream.copy_to_host(&from, &numbers.detach().reshape([-1]))?;
        let mut written = to.shallow_clone();
        stream.call(move || {
            if let (Ok(from), Ok(to)) = (f32_slice(&from), f32_slice_mut(&mut written)) {
                compute(from, to);
            }
        })?;
        stream.copy_to_device(&results, &to)?;
        self.reach(stream)?;
        Ok(results)
    }

    /// Starts to copy dense f32 `numbers` of a GPU to the host. The returned tensor in pinned memory has the
    /// values after [`Self::wait`].
    ///
    /// # Errors
    /// When `numbers` is not f32 on a GPU, memory does not suffice, or the driver fails.
    pub fn fetch(&mut self, numbers: &Tensor) -> Result<Tensor, Error> {
        let stream = stream_of(numbers)?;
        let to = self.pinned(numbers.numel())?;
        stream.copy_to_host(&to, &numbers.detach().reshape([-1]))?;
        self.reach(stream)?;
        Ok(to)
    }

    /// Blocks until all copies and calls are complete.
    ///
    /// # Errors
    /// An error of the stream's work.
    pub fn wait(&mut self) -> Result<(), Error> {
        if let Some((stream, event)) = &self.reached
            && !event.has_happened()?
        {
            stream.synchronize()?;
        }
        self.reached = None;
        self.pinned.clear();
        Ok(())
    }

    fn reach(&mut self, stream: Stream) -> Result<(), Error> {
        let event = match self.reached.take() {
            Some((_, event)) => event,
            None => Event::new(stream.device())?,
        };
        let recorded = event.record(&stream);
        self.reached = Some((stream, event));
        recorded
    }

    fn pinned(&mut self, len: usize) -> Result<Tensor, Error> {
        let pinned = upload::pinned(len, Kind::Float)?;
        self.pinned.push(pinned.shallow_clone());
        Ok(pinned)
    }
}

impl Drop for HostCallbacks {
    fn drop(&mut self) {
        if let Some((stream, _)) = self.reached.take()
            && stream.synchronize().is_err()
        {
            // The device may still write to this memory, so it is leaked.
            self.pinned.drain(..).for_each(std::mem::forget);
        }
    }
}

fn stream_of(numbers: &Tensor) -> Result<Stream, Error> {
    match (numbers.device(), numbers.kind()) {
        (Device::Cuda(index), Kind::Float) => Stream::current(index),
        (device, kind) => Err(Error::Argument {
            act: "calling the host in stream order",
            expected: "f32 numbers on a GPU".into(),
            got: format!("{kind:?} on {device:?}"),
        }),
    }
}

fn failed(source: tch::TchError) -> Error {
    Error::Libtorch { act: "making room for what the host computes", message: source.to_string() }
}
