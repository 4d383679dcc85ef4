//! Layout of tensors over ranks: which rank is where in the mesh, and which part of which tensor it has.
//!
//! ```text
//! Degrees -> Mesh -> AxisPlace of a rank along an axis
//!                       |
//! shape, ParameterLayout -> LocalTensor -> TensorSlice (FSDP) -> TensorRun, Chunk: ranges of the full tensor
//! ```
//! All of it is integers, without tensors, collectives or files: training and checkpoints read one layout.

mod axis_place;
mod chunks;
mod local_tensor;
mod mesh;
mod parameter_layout;
mod tensor_run;

pub use axis_place::{AxisPlace, EvenSplit};
pub use chunks::Chunk;
pub use local_tensor::{DimRanges, DimShards, LocalTensor, Placement};
pub use mesh::{Axis, Degrees, ExpertMeshError, Mesh, MeshError};
pub use parameter_layout::ParameterLayout;
pub use tensor_run::{CoveredRun, ReadGroup, TensorRun, TensorSlice};
