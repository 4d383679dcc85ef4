//! Rotary embeddings: frequencies, scaling and the pairing of dimensions.

/// Configuration of one rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the wavelengths.
    pub theta: f64,
    /// Scaling of the frequencies for longer contexts.
    pub scaling: RopeScaling,
}

/// Pairing of the dimensions of a head that are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// Dimensions i and i + rotary_dim / 2, as in GPT-NeoX and Llama.
    Halves,
    /// Dimensions 2i and 2i + 1, as in GPT-J and GLM.
    Neighbours,
}

/// Scaling of rotary frequencies for contexts longer than in pre-training.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Unscaled frequencies of Su et al. (2021).
    None,
    /// All frequencies divided by `factor` (kaiokendev's position interpolation).
    Linear {
        /// Factor of the context length.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths divided by `factor`, short ones unchanged, a ramp between.
    Llama3 {
        /// Factor of long wavelengths.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are scaled by the full
        /// factor.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are unchanged.
        high_freq_factor: f64,
        /// Context length of pre-training in tokens.
        original_max_position_embeddings: f64,
    },
    /// YaRN (Peng et al. 2023, arXiv 2309.00071): pairs of dimensions that rotate often in the original
    /// context are unchanged, those that rotate seldom are scaled, with a ramp between.
    Yarn {
        /// Factor of the context length.
        factor: f64,
        /// Factor of cosines and sines, which keeps the softmax as sharp as before.
        attention_factor: f64,
        /// Rotations in the original context above which a pair is unchanged.
        beta_fast: f64,
        /// Rotations in the original context below which a pair is scaled by the full factor.
        beta_slow: f64,
        /// Whether the ramp's ends are rounded outward to integer pairs.
        truncate: bool,
        /// DeepSeek's `mscale_all_dim`, by which latent attention sharpens scores.
        scale_all_dims: Option<f64>,
        /// Context length of pre-training in tokens.
        original_max_position_embeddings: f64,
    },
    /// LongRoPE (Ding et al. 2024, arXiv 2402.13753): a factor for each pair of dimensions, found by search.
    /// Sequences within the original context use the short factors. transformers switches to the long ones at
    /// the first token beyond it, in the middle of a sequence, so longer sequences are refused here.
    LongRope {
        /// Divisors of the frequency of each pair, within the original context.
        short_factors: Vec<f64>,
        /// Divisors of the frequency of each pair, for longer sequences.
        long_factors: Vec<f64>,
        /// Factor of cosines and sines.
        attention_factor: f64,
        /// Context length of pre-training in tokens.
        original_max_position_embeddings: f64,
    },
}

impl RopeScaling {
    /// Factor of cosines and sines; 1 for all but YaRN and LongRoPE.
    pub fn attention_factor(&self) -> f64 {
        match self {
            Self::Yarn { attention_factor, .. } | Self::LongRope { attention_factor, .. } => {
                *attention_factor
            }
            _ => 1.0,
        }
    }

    /// Longest sequence in tokens that uses these frequencies throughout; `None` without a limit.
    pub fn longest_sequence(&self) -> Option<u64> {
        match self {
            Self::LongRope { original_max_position_embeddings, .. } => {
                Some(*original_max_position_embeddings as u64)
            }
            _ => None,
        }
    }
}
