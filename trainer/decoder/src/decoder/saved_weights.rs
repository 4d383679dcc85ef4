//! Weights that are trained and saved with an adapter instead of being adapted.

use tch::Tensor;

/// Trained copies of modules outside of the layers, f32; `None` where the base's is used. Copies of norms in
/// layers are `DecoderLayer::saved_norms`.
#[derive(Debug, Default)]
pub(crate) struct SavedModules {
    /// Embedding, [vocabulary, hidden]; with tied weights it is the head, too.
    pub(crate) embedding: Option<Tensor>,
    /// Final norm, [hidden].
    pub(crate) norm: Option<Tensor>,
    /// Head, [vocabulary, hidden].
    pub(crate) head: Option<Tensor>,
}
