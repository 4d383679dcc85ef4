//! Routing of tokens to experts, one launch each: the router's choice, rows sorted by expert, and the
//! weighted sum of a token's rows. The number of rows of an expert is known on the device only.

use super::kernels::Kernels;
use super::module::Shape;
use crate::Error;
use std::ffi::c_void;
use tch::{Kind, Tensor};

/// Largest number of experts per token.
const MOST_CHOICES: i64 = 32;
/// Largest number of experts of a layer. A block routes four tokens, and its shared memory holds two f32 per
/// expert for each.
const MOST_EXPERTS: i64 = 1024;

/// Function that turns router logits into scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertScores {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each expert's logit.
    Sigmoid,
}

/// Rules by which a router chooses and weights experts.
#[derive(Clone, Copy, Debug)]
pub struct RouteRule {
    /// Scores that are compared, and that become weights.
    pub scores: ExpertScores,
    /// Whether a token's weights are divided by their sum.
    pub normalises: bool,
    /// Whether weights are rounded to the dtype of the logits.
    pub rounds: bool,
    /// Factor of the weights.
    pub scale: f64,
}

/// Chooses the experts of each token with the highest scores; among equal scores the lower index wins.
#[derive(Clone, Copy, Debug)]
pub struct RouteExperts<'a> {
    /// Router logits `[tokens, experts]`; f32, bf16 or f16.
    pub logits: &'a Tensor,
    /// Bias added to scores for the choice only, f32 `[experts]`.
    pub bias: Option<&'a Tensor>,
    /// Rules of the choice and the weights.
    pub rule: RouteRule,
    /// Chosen experts, the best first: i32 `[tokens, per_token]`, at most 32 of at most 1024.
    pub choices: &'a Tensor,
    /// Weights of the chosen experts, f32 `[tokens, per_token]`.
    pub weights: &'a Tensor,
    /// Digest of each token's choice, i32 `[tokens]`: 16 bits of `rlt_core::digest::combine` over the chosen
    /// experts in ascending order.
    pub digests: Option<&'a Tensor>,
}

/// Sorts the (token, choice) pairs by expert; pairs of the same expert keep their order.
#[derive(Clone, Copy, Debug)]
pub struct SortRows<'a> {
    /// Expert of each pair, i32 `[n]`.
    pub choices: &'a Tensor,
    /// Pair at each row, i32 `[n]`.
    pub order: &'a Tensor,
    /// Row of each pair, i32 `[n]`.
    pub inverse: &'a Tensor,
    /// End of each expert's rows, i32 `[experts]`.
    pub ends: &'a Tensor,
}

/// Adds each token's rows, each times its weight, in fp32 and in the order of its choices.
#[derive(Clone, Copy, Debug)]
pub struct CombineRows<'a> {
    /// Rows sorted by expert, `[tokens * per_token, width]`; f32, bf16 or f16, the dtype of `shared_expert`,
    /// `gate` and `out`.
    pub rows: &'a Tensor,
    /// Weights of the token's choices, f32 `[tokens, per_token]`.
    pub weights: &'a Tensor,
    /// Row of each (token, choice) pair, as in [`SortRows`].
    pub inverse: &'a Tensor,
    /// Output of the shared expert, which is added: `[tokens, width]`.
    pub shared_expert: Option<&'a Tensor>,
    /// Logit of the shared expert's sigmoid gate: `[tokens, 1]`.
    pub gate: Option<&'a Tensor>,
    /// Output `[tokens, width]`.
    pub out: &'a Tensor,
}

#[repr(C)]
struct RouteArguments {
    logits: *const c_void,
    bias: *const c_void,
    choices: *mut c_void,
    weights: *mut c_void,
    digests: *mut c_void,
    tokens: i64,
    experts: i32,
    per_token: i32,
    scale: f32,
    is_sigmoid: i32,
    normalises: i32,
    rounds: i32,
}

#[repr(C)]
struct SortArguments {
    choices: *const c_void,
    order: *mut c_void,
    inverse: *mut c_void,
    ends: *mut c_void,
    n: i64,
}

#[repr(C)]
struct CombineArguments {
    rows: *const c_void,
    weights: *const c_void,
    inverse: *const c_void,
    shared_expert: *const c_void,
    gate: *const c_void,
    out: *mut c_void,
    width: i64,
    per_token: i32,
}

impl RouteExperts<'_> {
    /// Launches one warp per token.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        const THREADS: usize = 128;
        const TOKENS: usize = THREADS / 32;
        let operands = kernels.operands("route_experts");
        let [tokens, experts] = operands.sizes("logits", self.logits)?;
        let [_, per_token] = operands.sizes("choices", self.choices)?;
        operands.require(experts <= MOST_EXPERTS, "at most 1024 experts", experts)?;
        let fits = per_token <= MOST_CHOICES.min(experts);
        operands.require(fits, "at most 32 choices, and no more than experts", per_token)?;
        let RouteRule { scores, normalises, rounds, scale } = self.rule;
        let kind = self.logits.kind();
        let arguments = RouteArguments {
            logits: operands.address("logits", self.logits, kind, &[tokens, experts])?,
            bias: operands.address_or_null("bias", self.bias, Kind::Float, &[experts])?,
            choices: operands.address("choices", self.choices, Kind::Int, &[tokens, per_token])?,
            weights: operands.address("weights", self.weights, Kind::Float, &[tokens, per_token])?,
            digests: operands.address_or_null("digests", self.digests, Kind::Int, &[tokens])?,
            tokens,
            experts: experts as i32,
            per_token: per_token as i32,
            scale: scale as f32,
            is_sigmoid: (scores == ExpertScores::Sigmoid).into(),
            normalises: normalises.into(),
            rounds: rounds.into(),
        };
        let blocks = (tokens as usize).div_ceil(TOKENS);
        let shared_bytes = TOKENS * 2 * experts as usize * size_of::<f32>();
        let shape = Shape { shared_bytes, ..Shape::blocks([blocks, 1, 1], THREADS as u32) };
        kernels.launch(&operands.kernel("route_experts", kind)?, shape, &arguments)
    }
}

impl SortRows<'_> {
    /// Launches one block per expert.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit, or there are 2^31 pairs or more.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("sort_rows");
        let ([n], [experts]) = (operands.sizes("choices", self.choices)?, operands.sizes("ends", self.ends)?);
        operands.require(n <= i64::from(i32::MAX), "at most 2^31 - 1 rows", n)?;
        let pairs = |name, tensor| operands.address(name, tensor, Kind::Int, &[n]);
        let arguments = SortArguments {
            choices: pairs("choices", self.choices)?,
            order: pairs("order", self.order)?,
            inverse: pairs("inverse", self.inverse)?,
            ends: operands.address("ends", self.ends, Kind::Int, &[experts])?,
            n,
        };
        let threads = (n.clamp(1, 1024) as u32).next_multiple_of(32);
        kernels.launch("sort_rows", Shape::blocks([experts as usize, 1, 1], threads), &arguments)
    }
}

impl CombineRows<'_> {
    /// Launches one block per token.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("combine_rows");
        let kind = self.out.kind();
        let [tokens, width] = operands.sizes("out", self.out)?;
        let [_, per_token] = operands.sizes("weights", self.weights)?;
        let n = tokens * per_token;
        let arguments = CombineArguments {
            rows: operands.address("rows", self.rows, kind, &[n, width])?,
            weights: operands.address("weights", self.weights, Kind::Float, &[tokens, per_token])?,
            inverse: operands.address("inverse", self.inverse, Kind::Int, &[n])?,
            shared_expert: operands.address_or_null(
                "shared_expert",
                self.shared_expert,
                kind,
                &[tokens, width],
            )?,
            gate: operands.address_or_null("gate", self.gate, kind, &[tokens, 1])?,
            out: operands.address("out", self.out, kind, &[tokens, width])?,
            width,
            per_token: per_token as i32,
        };
        let name = operands.kernel("combine_rows", kind)?;
        kernels.launch(&name, Shape::blocks([tokens as usize, 1, 1], 256), &arguments)
    }
}
