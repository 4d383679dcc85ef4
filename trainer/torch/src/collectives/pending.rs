//! Pending operations, over any transport. The operations themselves are the groups'.

use std::fmt;

use super::CollectiveError;

/// An operation in flight of a transport.
pub(super) trait Work: Send {
    /// What was started, in an error's words.
    fn operation(&self) -> &'static str;

    /// Returns when it is complete on this rank; called once.
    ///
    /// # Errors
    /// When a rank is lost or too late.
    fn wait(&mut self) -> Result<(), CollectiveError>;

    /// The same for an operation whose result is not used.
    fn settle(&mut self);
}

/// What is done with the tensors of an operation once it is complete.
pub(super) type Finish = Box<dyn FnOnce() + Send>;

/// An operation in flight. Its tensors are kept, and must not be read or written before [`Pending::wait`]
/// returns; dropped unwaited, it waits and forgets what went wrong.
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
    /// An operation that is complete already.
    pub(super) fn done() -> Self {
        Self { work: None, finish: None }
    }

    /// An operation that is complete when `work` is and `finish` has run.
    pub(super) fn of(work: Box<dyn Work>, finish: Option<Finish>) -> Self {
        Self { work: Some(work), finish }
    }

    /// Returns when the operation is complete on this rank.
    ///
    /// # Errors
    /// When a rank is lost or too late; the error names it.
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
