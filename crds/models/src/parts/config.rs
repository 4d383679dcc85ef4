//! Configuration of a decoder: everything besides the weights that decides its outputs.

use rlt_api::resolved::OutputHead;
use rlt_api::spec::ModelFamily as Family;

use super::{
    BlockNorms, Experts, FusedProjections, LatentAttention, NormKind, QkNorm, Quantization, RopeConfig,
    RopePairing, VisionConfig,
};

/// Activation function of the feed-forward block's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenActivation {
    /// `silu`, also written `swish`.
    Silu,
    /// `gelu_pytorch_tanh`: the tanh approximation of GELU.
    GeluTanh,
    /// `gelu`: the exact GELU by the error function.
    Gelu,
}

/// Everything besides the weights that decides the values that a decoder computes.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Family whose tensor names and defaults the checkpoint follows.
    pub family: Family,
    /// Rows of the embedding; token ids are below it.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward block of a layer without experts.
    pub intermediate_size: usize,
    /// Experts that replace the feed-forward block in some or all layers; `None` in a dense model.
    pub experts: Option<Experts>,
    /// Number of decoder layers.
    pub num_layers: usize,
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of one head, even; need not be `hidden_size / num_heads`.
    pub head_dim: usize,
    /// Latent attention; `None` where each head has its own keys and values. With it `num_kv_heads` equals
    /// `num_heads`, and `head_dim` is the width of a query or key head.
    pub latent: Option<LatentAttention>,
    /// Longest sequence for which the model was made, in tokens.
    pub max_position_embeddings: usize,
    /// Formula of every norm.
    pub norm_kind: NormKind,
    /// Epsilon that is added to the mean square in RMS norms, and to the variance in layer norms.
    pub rms_norm_eps: f64,
    /// Distinct rotary embeddings of the layers.
    pub ropes: Vec<RopeConfig>,
    /// Index into `ropes` for each layer; `None` for a layer without rotary embedding (NoPE).
    pub layer_ropes: Vec<Option<usize>>,
    /// Number of leading dimensions of a head that are rotated; even.
    pub rotary_dim: usize,
    /// Pairing of the dimensions that are rotated together.
    pub rope_pairing: RopePairing,
    /// Activation function of the gate.
    pub hidden_activation: HiddenActivation,
    /// Number of tokens that a query attends to in each layer, itself included; `None` for full attention.
    pub layer_windows: Vec<Option<usize>>,
    /// Whether query, key and value projections have a bias.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub output_bias: bool,
    /// Whether gate, up and down projections have a bias.
    pub mlp_bias: bool,
    /// Projections that are fused into one tensor in the checkpoint.
    pub fused_projections: FusedProjections,
    /// Whether attention and feed-forward block read the same normed input, and both outputs are added to the
    /// residual stream at once.
    pub parallel_blocks: bool,
    /// Positions of norms around attention and feed-forward block.
    pub block_norms: BlockNorms,
    /// Norm of queries and keys before the rotary embedding.
    pub qk_norm: QkNorm,
    /// Offset that is added to a norm's stored weight: 1 for Gemma, 0 elsewhere.
    pub norm_offset: f64,
    /// Factor of embeddings, rounded to the compute dtype.
    pub embedding_scale: f64,
    /// Factor of queries before the softmax; `head_dim^-0.5` unless the family says otherwise.
    pub attention_scale: f64,
    /// Softcap c of attention scores s, as c tanh(s / c); `None` without a cap.
    pub attention_softcap: Option<f64>,
    /// Whether each query head has an attention sink: a learned score without key and value.
    pub attention_sinks: bool,
    /// Factor of the outputs of attention and feed-forward block before the residual sum.
    pub residual_scale: f64,
    /// Factor of the logits.
    pub logit_scale: f64,
    /// Softcap of logits, applied after `logit_scale`; `None` without a cap.
    pub logit_softcap: Option<f64>,
    /// Whether checkpoints may have layers after the last one that predict further tokens. They are not
    /// loaded.
    pub has_prediction_layers: bool,
    /// Quantization of the linear layers; `None` where none is quantized.
    pub quantization: Option<Quantization>,
    /// Vision tower in front of the decoder; `None` for a text model.
    pub vision: Option<VisionConfig>,
    /// Kind of output head.
    pub head: OutputHead,
    /// Whether the head shares the embedding's weight.
    pub tie_word_embeddings: bool,
    /// Standard deviation of newly initialized weights.
    pub initializer_range: f64,
    /// Token that starts a sequence.
    pub bos_token_id: Option<u32>,
    /// Padding token; transformers gives its embedding row no gradient.
    pub pad_token_id: Option<u32>,
    /// Tokens that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// Settings of `generation_config.json` besides the ending tokens; exports hold them unchanged.
    pub generation: serde_json::Map<String, serde_json::Value>,
}
