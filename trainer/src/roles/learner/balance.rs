//! The routers' auxiliary loss in an update: choices are counted in a separate pass, over all ranks, before
//! the first backward pass. The loss is computed by [`rlt_decoder::RouterLoad`].

use rlt_decoder::{Adapter, RouterLoad, RouterObserver};
use rlt_parallel::schedule;

use super::Learner;
use super::error::LearnerError;
use super::micro_batch::MicroBatch;

impl Learner {
    /// Sets the `coefficient` of the routers' auxiliary loss in updates; `None` omits the loss.
    #[must_use]
    pub fn with_router_loss(self, coefficient: Option<f64>) -> Self {
        Self { router_loss: coefficient.filter(|coefficient| *coefficient != 0.0), ..self }
    }

    /// Counts the routers' choices in the micro-batches of an update, on all ranks together, for the passes
    /// that follow; `None` if updates have no auxiliary loss.
    ///
    /// # Errors
    /// When a rank is lost.
    pub(crate) fn balance_routers(
        &mut self,
        passes: &[Option<MicroBatch>],
    ) -> Result<Option<RouterLoad>, LearnerError> {
        let experts = self.decoder.config.experts.as_ref().map(|experts| experts.num_experts);
        let Some((coefficient, num_experts)) = self.router_loss.zip(experts) else { return Ok(None) };
        let mut load = self.count_routes(passes, num_experts)?;
        let mut num_rows = vec![load.num_rows];
        self.ranks.all_reduce(&mut [&mut num_rows, &mut load.chosen, &mut load.probabilities])?;
        load.num_rows = num_rows[0];
        self.router_slopes = Some(load.slopes(coefficient * self.loss_scale.factor()));
        Ok(Some(load))
    }

    /// Counts the routers' choices for this rank's share of the tokens.
    fn count_routes(
        &self,
        passes: &[Option<MicroBatch>],
        num_experts: usize,
    ) -> Result<RouterLoad, LearnerError> {
        let (model, mut all) = (self.model(), RouterLoad::of_none(num_experts));
        for micro_batch in passes {
            let Some(micro_batch) = micro_batch else {
                model.join_forward(Adapter::On)?;
                continue;
            };
            let mut context = model.decoder.context(&micro_batch.input, Adapter::On);
            let weights_t = context.token_weights(&micro_batch.input.tokens);
            context.router = Some(RouterObserver::counting(weights_t, num_experts));
            let _ = schedule::infer(model, &micro_batch.input, &mut context)?;
            model.end_pass()?;
            all += context.router.take().map(RouterObserver::load).unwrap_or_default();
        }
        Ok(all)
    }
}
