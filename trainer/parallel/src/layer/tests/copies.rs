//! A parallel axis that copies the tensors of every boundary: cuts of the graph change no number.

use std::cell::Cell;
use std::rc::Rc;

use tch::Tensor;

use super::{decoder, dense, experts, latent, pass_over};
use crate::RankError;
use crate::layer::style::{Exchange, ParallelStyle};
use crate::layer::{Boundary, Styles};

/// A style that cuts the graph at every boundary of a layer.
#[derive(Debug)]
struct CopiesEverywhere {
    num_cuts: Rc<Cell<usize>>,
}

/// An exchange of a rank with itself.
#[derive(Debug)]
struct CopyExchange;

impl<'a> ParallelStyle<'a> for CopiesEverywhere {
    fn exchange(&self, at: Boundary) -> Option<Box<dyn Exchange + 'a>> {
        if matches!(at, Boundary::Embedding | Boundary::HeadInput) {
            return None;
        }
        self.num_cuts.set(self.num_cuts.get() + 1);
        Some(Box::new(CopyExchange))
    }
}

impl Exchange for CopyExchange {
    fn forward(&self, end: &Tensor) -> Result<Tensor, RankError> {
        Ok(end.detach().copy())
    }

    fn backward(&self, grad: &Tensor) -> Result<Tensor, RankError> {
        Ok(grad.copy())
    }
}

#[test]
fn a_style_that_copies_at_every_boundary_changes_no_bit() {
    for (config, expected_cuts) in [(dense(), 6), (latent(), 6), (experts(), 8)] {
        let decoder = decoder(&config);
        let num_cuts = Rc::new(Cell::new(0));
        let cut = Styles::default().with(Some(CopiesEverywhere { num_cuts: Rc::clone(&num_cuts) }));
        let (one_graph, graphs) = (pass_over(&decoder, &Styles::default()), pass_over(&decoder, &cut));
        let name = &config["architectures"][0];
        // Without and with a graph.
        assert_eq!(num_cuts.get(), 2 * expected_cuts, "{name}");
        assert!(one_graph.len() > 5 && one_graph.len() == graphs.len(), "{name}: {}", graphs.len());
        for (idx, (one, other)) in one_graph.iter().zip(&graphs).enumerate() {
            assert!(one.equal(other), "{name}: tensor {idx} differs");
        }
        assert!(one_graph[0].equal(&one_graph[1]), "{name}: a graph changes the output");
    }
}
