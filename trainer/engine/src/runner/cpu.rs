//! The model runner on a CPU: a launch computes the step up to its tokens.

use rlt_core::engine::{Prefill, Sequence, Step};
use rlt_core::sampling::SamplingParams;
use rlt_core::types::TokenId;
use rlt_decoder::{Adapter, DecoderLayer, RouteLog};
use rlt_parallel::RankError;
use rlt_torch::Segments;
use tch::Tensor;

use super::{Runner, StepInput, StepOutput, timed};
use crate::images::{RequestImages, TokenSpan};
use crate::kv_cache::{KvCache, LayerCache};
use crate::weights::RolloutWeights;
use crate::{EngineError, Request, RolloutStats, sampler};

/// Packed weights with the cache that passes write.
pub(crate) struct CpuRunner<'a> {
    weights: &'a RolloutWeights,
    cache: &'a mut KvCache,
    /// Images of the running requests.
    images: RequestImages,
    /// Tokens that are never sampled.
    banned: Vec<TokenId>,
    /// Routes of the last decode step.
    routes: RouteLog,
    /// Output of the launched step; `None` once it is read.
    output: Option<StepOutput>,
    /// Digest of the tokens of the last step read, by which ranks compare them.
    digest: i64,
}

/// One pass over packed tokens.
struct Batch {
    tokens: Vec<i64>,
    /// Runs of consecutive tokens, each with its request and first position.
    spans: Vec<TokenSpan>,
    position_ids: Vec<i64>,
    /// Index of each token's slot in the cache.
    slot_mapping: Vec<i64>,
    context: Context,
}

/// Source of the keys and values to which the tokens of a pass attend.
enum Context {
    /// Keys and values of the pass: tokens attend to those before them in their own sequence.
    Stream { cu_seqlens: Vec<i32> },
    /// Cached keys and values: each token attends to the first `context_lens` tokens of its sequence, by the
    /// sequence's block table.
    Cache { block_tables: Vec<Vec<i32>>, table_of_row: Vec<usize>, context_lens: Vec<i32> },
}

impl<'a> CpuRunner<'a> {
    pub(crate) fn new(weights: &'a RolloutWeights, cache: &'a mut KvCache, images: RequestImages) -> Self {
        let (banned, routes) = (weights.banned(), RouteLog::default());
        Self { weights, cache, images, banned, routes, output: None, digest: 0 }
    }

    /// Stores keys and values of a step's prompts, pass by pass.
    fn prefill(&mut self, step: &Step) -> Result<(), RankError> {
        step.prefill_passes().try_for_each(|pass| self.forward(&prepare_prefill(pass), false).map(drop))
    }

    /// Runs each sequence's last token, and returns the logits [b, v] of the next ones, f32.
    fn decode(&mut self, sequences: &[Sequence]) -> Result<Tensor, RankError> {
        let batch = prepare_decode(sequences, self.cache.block_size());
        let hidden_bd = self.forward(&batch, true)?;
        let normed_bd = self.weights.unpacked.final_norm(&hidden_bd, Adapter::On);
        Ok(self.weights.logits(&normed_bd)?.to_kind(tch::Kind::Float))
    }

    /// Hidden states [t, d] after the last layer.
    fn forward(&mut self, batch: &Batch, logs_routes: bool) -> Result<Tensor, RankError> {
        let tokens = Tensor::from_slice(&batch.tokens);
        let unpacked = &self.weights.unpacked;
        let position_ids = self.images.position_ids(&batch.spans, &batch.position_ids);
        let rope = unpacked.rope(&position_ids);
        let attention = batch.context.attention();
        let features = self.images.placed_features(unpacked, &batch.spans);
        let embedded_td = unpacked.embed(&tokens, Adapter::On);
        let mut hidden_td = match &features {
            Some(features) => features.in_place_of(&embedded_td),
            None => embedded_td,
        };
        for (layer_idx, layer) in self.weights.unpacked.layers().iter().enumerate() {
            let cache = self.cache.layer(layer_idx);
            let mut attend = |q_thd: &Tensor, k_tkd: &Tensor, v_tkd: &Tensor| {
                rlt_torch::write_kv(&mut cache.keys, &mut cache.values, k_tkd, v_tkd, &batch.slot_mapping);
                attention(layer, [q_thd, k_tkd, v_tkd], cache)
            };
            let routes = Some(&self.routes).filter(|_| logs_routes);
            let projections = self.weights.projections(layer_idx, routes);
            hidden_td = layer.forward_with(&hidden_td, &rope, &projections, &mut attend)?;
            if let Some(features) = &features {
                hidden_td = features.added_after(layer_idx, hidden_td);
            }
        }
        Ok(hidden_td)
    }
}

impl Runner for CpuRunner<'_> {
    fn max_in_flight(&self) -> usize {
        1
    }

    fn add_request(&mut self, request_idx: usize, request: &Request) -> Result<(), EngineError> {
        self.images.add(&self.weights.unpacked, request_idx, request)
    }

    fn remove_request(&mut self, request_idx: usize) {
        self.images.remove(request_idx);
    }

    fn launch(&mut self, input: &StepInput<'_>, stats: &mut RolloutStats) -> Result<(), EngineError> {
        timed(&mut stats.prefill_time, || self.prefill(input.step))?;
        let logits_bv = timed(&mut stats.decode_time, || {
            self.cache.copy_blocks(&input.step.copies);
            self.decode(input.running)
        })?;
        let params: Vec<&SamplingParams> = input.running.iter().map(input.sampling).collect();
        let sampled = timed(&mut stats.sampling_time, || {
            sampler::draw_rows(&logits_bv, input.running, &params, &self.banned)
        })?;
        let layers = self.routes.take();
        let of_row = |row: usize| layers.iter().map(|digests| digests[row]).collect();
        let routes = (0..sampled.len()).map(of_row).collect();
        self.output = Some(StepOutput { sampled, routes });
        Ok(())
    }

    fn read(&mut self, _: &mut RolloutStats) -> Result<StepOutput, EngineError> {
        let output = self.output.take().unwrap_or_default();
        if self.weights.ranks().is_some() {
            self.digest = sampler::digest(&output.sampled);
        }
        Ok(output)
    }

    fn agrees_to_stop(&mut self, wants_stop: bool, step: usize) -> Result<bool, EngineError> {
        let Some(ranks) = self.weights.ranks() else { return Ok(wants_stop) };
        // The maximum of the negated digests is the smallest digest, negated.
        let [stops, largest, smallest] =
            ranks.all_reduce_max([wants_stop.into(), self.digest, -self.digest])?;
        if largest == -smallest { Ok(stops > 0) } else { Err(EngineError::Disagreement { step }) }
    }

    fn finish(&mut self) -> Result<bool, EngineError> {
        // The last step has exchanged all stop requests.
        Ok(false)
    }
}

/// Attention of one layer for queries, keys and values of the pass, which are in the cache already.
type Attention<'a> = Box<dyn Fn(&DecoderLayer, [&Tensor; 3], &LayerCache) -> Tensor + 'a>;

impl Context {
    fn attention(&self) -> Attention<'_> {
        match self {
            Self::Stream { cu_seqlens } => Box::new(move |layer, [q_thd, k_tkd, v_tkd], _| {
                let segments = Segments::alone(cu_seqlens);
                rlt_torch::varlen_attention(q_thd, k_tkd, v_tkd, segments, layer.scores())
            }),
            Self::Cache { block_tables, table_of_row, context_lens } => {
                let tables: Vec<&[i32]> =
                    table_of_row.iter().map(|&table| block_tables[table].as_slice()).collect();
                Box::new(move |layer, [q_bhd, _, _], LayerCache { keys, values }| {
                    let scores = layer.scores();
                    rlt_torch::paged_attention(q_bhd, keys, values, &tables, context_lens, scores)
                })
            }
        }
    }
}

/// Prepares a pass over full prompts, whose tokens attend to each other, or over a later chunk of one prompt,
/// whose tokens attend to the cache, themselves included.
fn prepare_prefill(prefills: &[Prefill]) -> Batch {
    let mut tokens = Vec::new();
    let mut spans = Vec::new();
    let mut position_ids = Vec::new();
    let mut slot_mapping = Vec::new();
    let mut cu_seqlens = vec![0];
    for prefill in prefills {
        let (request_idx, first_position) = (prefill.request_idx, prefill.first_position);
        spans.push(TokenSpan { request_idx, first_position, len: prefill.tokens.len() });
        let first = first_position as i64;
        tokens.extend(prefill.tokens.iter().map(|&token| i64::from(token)));
        position_ids.extend(first..first + prefill.tokens.len() as i64);
        slot_mapping.extend(prefill.slots.iter().map(|&slot| slot as i64));
        cu_seqlens.push(tokens.len() as i32);
    }
    let context = match prefills {
        [piece] if piece.first_position > 0 => Context::Cache {
            block_tables: vec![piece.block_table.iter().map(|&block| block as i32).collect()],
            table_of_row: vec![0; tokens.len()],
            context_lens: position_ids.iter().map(|&position| position as i32 + 1).collect(),
        },
        _ => Context::Stream { cu_seqlens },
    };
    Batch { tokens, spans, position_ids, slot_mapping, context }
}

fn prepare_decode(sequences: &[Sequence], block_size: usize) -> Batch {
    let table = |sequence: &Sequence| sequence.block_table().map(|block| block as i32).collect();
    let token_span =
        |s: &Sequence| TokenSpan { request_idx: s.request_idx, first_position: s.last_position(), len: 1 };
    Batch {
        spans: sequences.iter().map(token_span).collect(),
        tokens: sequences.iter().map(|s| i64::from(s.last_token())).collect(),
        position_ids: sequences.iter().map(|s| s.last_position() as i64).collect(),
        slot_mapping: sequences.iter().map(|s| s.last_slot(block_size) as i64).collect(),
        context: Context::Cache {
            block_tables: sequences.iter().map(table).collect(),
            table_of_row: (0..sequences.len()).collect(),
            context_lens: sequences.iter().map(|s| s.last_position() as i32 + 1).collect(),
        },
    }
}
