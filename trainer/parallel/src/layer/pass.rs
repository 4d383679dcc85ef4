//! One layer forward and backward, cut into graphs where its styles exchange tensors.
//!
//! Legend of shapes: t tokens of this rank, d hidden size, n rows of its tokens, sorted by expert.

use rlt_decoder::{Adapter, Decoder, DecoderLayer, FeedForward, LayerContext, Projections, TrainingProducts};
use rlt_layout::AxisPlace;
use tch::Tensor;

use super::graphs::{CutGraphs, GraphCut, Graphs, Roots};
use super::style::{Boundary, Styles};
use crate::RankError;

/// A layer that has run, with its graphs unless gradients were off.
#[derive(Debug)]
pub struct LayerPass<'a> {
    input_td: Tensor,
    /// The layer's output, `[t, d]`.
    pub output_td: Tensor,
    /// Cuts of the layer's graph, in forward order.
    cuts: Vec<GraphCut<'a>>,
    /// Term of the router's auxiliary loss that the last graph computes; `None` if the layer trains none.
    term: Option<Tensor>,
}

impl<'a> LayerPass<'a> {
    /// Runs `layer` on `input_td`, a leaf `[t, d]`. Collective with styles.
    ///
    /// # Errors
    /// [`RankError`] when a rank of a group is lost.
    pub fn run(
        layer: &DecoderLayer,
        input_td: Tensor,
        context: &LayerContext,
        styles: &Styles<'a>,
    ) -> Result<Self, RankError> {
        let products = layer.training_products(context);
        let mut run = Run { layer, context, products, graphs: Graphs::new(styles) };
        let attention_td = run.attention(&input_td)?;
        let (mut hidden_td, normed_td) = layer.after_attention(&input_td, attention_td, context.adapter);
        let normed_td = run.graphs.cross_one(Boundary::MlpInput, normed_td, &mut [&mut hidden_td])?;
        let mlp_td = run.feed_forward(&mut hidden_td, normed_td)?;
        let mlp_td = run.graphs.cross_one(Boundary::MlpOutput, mlp_td, &mut [&mut hidden_td])?;
        let output_td = layer.after_feed_forward(&hidden_td, mlp_td, context.adapter);
        let output_td = layer.with_features(output_td, context);
        let CutGraphs { cuts, term } = run.graphs.finish(&output_td);
        Ok(Self { input_td, output_td, cuts, term })
    }

    /// Computes the experts of a layer for other ranks, on a rank without a micro-batch; `None` for a layer
    /// without such an exchange. Collective.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn join(
        layer: &DecoderLayer,
        decoder: &Decoder,
        adapter: Adapter,
        styles: &Styles<'a>,
    ) -> Result<Option<Self>, RankError> {
        let Some(experts) = layer.experts().and(decoder.config.experts.as_ref()) else { return Ok(None) };
        let mut graphs = Graphs::new(styles);
        let Some(dispatch) = graphs.dispatch(&vec![0; experts.num_experts], decoder.device())? else {
            return Ok(None);
        };
        let none = [0, decoder.config.hidden_size as i64];
        let input_td = Tensor::empty(none, (decoder.compute_kind(), decoder.device()));
        let compute =
            |rows_md: &Tensor| layer.experts_of_rows(rows_md, dispatch.rows(), dispatch.place(), adapter);
        let output_td = through_experts(&mut graphs, input_td.shallow_clone(), &mut [], compute)?;
        let CutGraphs { cuts, term } = graphs.finish(&output_td);
        Ok(Some(Self { input_td, output_td, cuts, term }))
    }

    /// Runs the backward pass from the gradient of the output, `[t, d]`, which a pass without a micro-batch
    /// does not have; parameters accumulate their gradients. Returns the gradient of the input, if the input
    /// needs one. Collective with styles.
    ///
    /// # Errors
    /// [`RankError`] when a rank of a group is lost.
    pub fn backward(self, grad_td: Option<&Tensor>) -> Result<Option<Tensor>, RankError> {
        let Self { input_td, output_td, cuts, term } = self;
        let mut roots = Roots::default();
        match grad_td {
            Some(grad_td) => roots.push(output_td, grad_td.shallow_clone()),
            None => drop(output_td),
        }
        roots.push_term(term);
        roots.backward();
        for cut in cuts.into_iter().rev() {
            cut.backward()?;
        }
        Ok(input_td.requires_grad().then(|| input_td.grad()))
    }
}

/// The forward pass of a layer on a micro-batch.
struct Run<'r, 'a> {
    layer: &'r DecoderLayer,
    context: &'r LayerContext,
    products: TrainingProducts<'r>,
    graphs: Graphs<'r, 'a>,
}

impl Run<'_, '_> {
    /// Attention's projected output, `[t, d]`, from the layer's input.
    fn attention(&mut self, input_td: &Tensor) -> Result<Tensor, RankError> {
        let (layer, context, graphs) = (self.layer, self.context, &mut self.graphs);
        let (q_thd, k_tkd, v_tkd) = {
            let normed_td = layer.attention_input(input_td, context.adapter);
            let normed_td = graphs.cross_one(Boundary::AttentionInput, normed_td, &mut [])?;
            layer.heads(&normed_td, &context.rope, &self.products)
        };
        let heads = graphs.cross(Boundary::Heads, vec![q_thd, k_tkd, v_tkd], &mut [])?;
        let attended_thd = layer.attend(&heads[0], &heads[1], &heads[2], context);
        drop(heads);
        let attended_thd = graphs.cross_one(Boundary::Attended, attended_thd, &mut [])?;
        let Ok(attention_td) = layer.attention_output(&attended_thd, &self.products);
        graphs.cross_one(Boundary::AttentionOutput, attention_td, &mut [])
    }

    /// The output of the feed-forward block, or of the experts, `[t, d]`, from its normed input.
    /// `hidden_td` is the residual stream.
    fn feed_forward(&mut self, hidden_td: &mut Tensor, mut normed_td: Tensor) -> Result<Tensor, RankError> {
        let (layer, context, graphs) = (self.layer, self.context, &mut self.graphs);
        let (experts, shared) = match self.products.feed_forward() {
            FeedForward::Experts { experts, shared_expert } => (experts, shared_expert),
            FeedForward::Dense(block) => {
                let Ok(mlp_td) = layer.feed_forward(&normed_td, &block);
                return Ok(mlp_td);
            }
        };
        let mut routes = layer.route(&normed_td, &experts);
        graphs.add_term(context.take_router_term());
        let dispatch = graphs.dispatch(&routes.rows.counts(), normed_td.device())?;
        let (rows, place) = match &dispatch {
            Some(dispatch) => (dispatch.rows(), dispatch.place()),
            None => (&routes.rows, AxisPlace::ALONE),
        };
        let compute = |rows_md: &Tensor| layer.experts_of_rows(rows_md, rows, place, context.adapter);
        let mixed_td = {
            let rows_nd = routes.rows.gather(&normed_td);
            let carried = &mut [hidden_td, &mut normed_td, &mut routes.weights_tk];
            let outputs_nd = through_experts(graphs, rows_nd, carried, compute)?;
            routes.rows.combine(&outputs_nd, &routes.weights_tk)
        };
        let Ok(mlp_td) = layer.add_shared_expert(mixed_td, &normed_td, &experts, shared.as_ref());
        Ok(mlp_td)
    }
}

/// Sends rows of tokens, `[n, d]`, to their experts, calls `compute` with the rows of the local ones, and
/// returns the outputs for `rows_nd`, `[n, d]`.
fn through_experts(
    graphs: &mut Graphs<'_, '_>,
    rows_nd: Tensor,
    carried: &mut [&mut Tensor],
    compute: impl FnOnce(&Tensor) -> Tensor,
) -> Result<Tensor, RankError> {
    let rows_md = graphs.cross_one(Boundary::ExpertRows, rows_nd, carried)?;
    let outputs_md = compute(&rows_md);
    drop(rows_md);
    graphs.cross_one(Boundary::ExpertOutputs, outputs_md, carried)
}
