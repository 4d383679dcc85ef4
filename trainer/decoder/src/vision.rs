//! The vision tower of Qwen2-VL, Qwen2.5-VL and Qwen3-VL. From the patches of an image it computes the
//! features that replace the embeddings of its placeholder tokens, and in Qwen3-VL those that are added after
//! the first layers of the text model (DeepStack).
//!
//! ```text
//! patches [p, pixels] -> patch embedding -> blocks (rotary by row and column, windows) -> merger [n, hidden]
//!                           + positions        `-> mergers of some blocks [n, hidden] each
//! ```
//! By default the weights are frozen, every rank has all of them, and all roles share them; linear layers may
//! then have adapters, which are trained. Otherwise the weights are parameters of their decoder, trained and
//! sharded like all others. Features of a frozen tower are cached by the image's digest for the whole run;
//! those of a trained one only by a [`VisionTower::snapshot`]. Pixel files and positions of tokens are
//! handled elsewhere.
//!
//! Shapes: p patches of an image, n = p / merge^2 tokens, d the tower's width.

mod attention;
mod block;
mod copies;
mod feature_cache;
mod features;
mod forward;
mod order;
mod pass;
#[cfg(test)]
mod tests;
mod tower;

pub use self::pass::TowerPass;
pub use self::tower::VisionTower;
