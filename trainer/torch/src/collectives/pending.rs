//! Pending operations, over any transport. The groups start the operations.

use std::fmt;

use super::CollectiveError;

/// A transport's operation in flight.
pub(super) trait Work: Send {
    /// Name of the operation, for errors.
    fn operation(&self) -> &'static str;

    /// Blocks until the operation is complete on this rank; called once.
    ///
    /// # Errors
    /// When a rank is lost or times out.
    fn wait(&mut self) -> Result<(), CollectiveError>;

    /// Blocks until the operation is complete and ignores errors, if the result is not used.
    fn settle(&mut self);
}

/// A callback on the tensors of an operation once it is complete.
pub(super) type Finish = Box<dyn FnOnce() + Send>;

/// An operation in flight. It keeps its tensors alive, which must not be read or written before
/// [`Pending::wait`] returns. If it is dropped, it waits and ignores errors.
#[must_use = "the tensors of an operation can be used only after it was waited for"]
pub struct Pending {
    work: Option<Box<dyn Work>>,
    finish: Option<Finish>,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operation = self.work.as_ref().map(|work| work.operation());
        f.debug_struct("Pending").field("operation", &operation).finish()
    }
}

impl Pending {
    /// Makes an operation that is already complete.
    pub(super) fn done() -> Self {
        Self { work: None, finish: None }
    }

    /// Makes an operation that is complete when `work` is and `finish` has run.
    pub(super) fn of(work: Box<dyn Work>, finish: Option<Finish>) -> Self {
        Self { work: Some(work), finish }
    }

    /// Blocks until the operation is complete on this rank.
    ///
    /// # Errors
    /// When a rank is lost or times out; the error names it.
    pub fn wait(mut self) -> Result<(), CollectiveError> {
        if let Some(mut work) = self.work.take() {
            work.wait()?;
        }
        if let Some(finish) = self.finish.take() {
            finish();
        }
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(work) = &mut self.work {
            work.settle();
        }
    }
}
