//! A group of one rank, in which every collective is a copy or nothing at all, so that code for many ranks
//! runs on one.

use tch::{Tensor, no_grad};

use super::member::{check_sizes, check_splits};
use super::{CollectiveError, Collectives, Pending, Reduction};

/// A group whose only member is this rank.
#[derive(Debug)]
pub struct SingleProcessGroup {
    name: String,
}

impl SingleProcessGroup {
    /// Makes a group of one rank, called `name`.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned() }
    }

    fn copy(&self, output: &Tensor, input: &Tensor) -> Pending {
        no_grad(|| output.detach().view_as(input).copy_(&input.detach()));
        Pending::done()
    }
}

impl Collectives for SingleProcessGroup {
    fn name(&self) -> &str {
        &self.name
    }

    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all_reduce(&mut self, _: &Tensor, _: Reduction) -> Result<Pending, CollectiveError> {
        Ok(Pending::done())
    }

    fn reduce_scatter(&mut self, output: &Tensor, input: &Tensor) -> Result<Pending, CollectiveError> {
        check_sizes("reduce-scatter", &self.name, output, 1, input, 1)?;
        Ok(self.copy(output, input))
    }

    fn all_gather(&mut self, output: &Tensor, input: &Tensor) -> Result<Pending, CollectiveError> {
        check_sizes("all-gather", &self.name, output, 1, input, 1)?;
        Ok(self.copy(output, input))
    }

    fn all_to_all(
        &mut self,
        output: &Tensor,
        input: &Tensor,
        output_splits: &[i64],
        input_splits: &[i64],
    ) -> Result<Pending, CollectiveError> {
        check_splits(&self.name, 1, output, output_splits, input, input_splits)?;
        check_sizes("all-to-all", &self.name, output, 1, input, 1)?;
        Ok(self.copy(output, input))
    }

    fn broadcast(&mut self, _: &Tensor, root: usize) -> Result<Pending, CollectiveError> {
        if root == 0 {
            return Ok(Pending::done());
        }
        Err(CollectiveError::Argument {
            operation: "broadcast",
            group: self.name.clone(),
            expected: "a root below 1".into(),
            got: root.to_string(),
        })
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        Ok(())
    }
}
