//! Expert-parallel groups, whose ranks each hold some of every layer's experts, and their all-to-alls. The
//! exchange of a layer is in `parallel::layer`, the layout of ranks in `rlt_core::mesh`, the
//! arithmetic of rows in `rlt_core::expert_rows`.

use std::cell::RefCell;

use rlt_core::mesh::{Axis, AxisPlace, Mesh};
use rlt_torch::collectives::Collectives;
use tch::Tensor;

use super::{RankError, Ranks};

/// This rank's membership in an expert-parallel group.
#[derive(Debug)]
pub struct EpGroup {
    place: AxisPlace,
    group: RefCell<Box<dyn Collectives>>,
}

impl EpGroup {
    /// Connects this rank's group. Collective.
    pub(super) fn connect(ranks: &Ranks, mesh: Mesh, name: &str) -> Result<Self, RankError> {
        let place = mesh.place(ranks.rank, &[Axis::Ep]);
        let name = format!("{name}, expert-parallel group {}", ranks.rank / place.size);
        let group = RefCell::new(ranks.connect(&name, &mesh.members(ranks.rank, &[Axis::Ep]))?);
        Ok(Self { place, group })
    }

    /// This rank's place in the group, which is also that of its experts.
    pub fn place(&self) -> AxisPlace {
        self.place
    }

    /// Exchanges `counts`, one per expert of the model in order: each rank gets the counts of its experts
    /// from every rank, rank-major. The result is on the host, where it decides what is sent next.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn exchange_counts(&self, counts: &[i64]) -> Result<Vec<i64>, RankError> {
        let splits = vec![(counts.len() / self.place.size) as i64; self.place.size];
        let received = self.all_to_all(&Tensor::from_slice(counts), &splits, &splits)?;
        Ok(rlt_torch::to_vec(&received))
    }

    /// All-to-all: sends the next `sent[r]` of the `rows`, `[n, ..]`, to rank `r` of the group, and returns
    /// the `received[r]` rows from each rank, in the order of ranks.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_to_all(&self, rows: &Tensor, sent: &[i64], received: &[i64]) -> Result<Tensor, RankError> {
        let rows = rows.detach().contiguous();
        let mut size = rows.size();
        size[0] = received.iter().sum();
        let output = Tensor::empty(size, (rows.kind(), rows.device()));
        self.group.borrow_mut().all_to_all(&output, &rows, received, sent)?.wait()?;
        Ok(output)
    }

    /// All-gathers tensors of each rank's experts to those of all experts, `[e, ..]`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(super) fn all_gather(&self, own: &Tensor) -> Result<Tensor, RankError> {
        let own = own.detach().contiguous();
        let mut size = own.size();
        size[0] *= self.place.size as i64;
        let all = Tensor::empty(size, (own.kind(), own.device()));
        self.group.borrow_mut().all_gather(&all, &own)?.wait()?;
        Ok(all)
    }

    /// The sum of a number over the group, in the order of ranks: the same bits on every rank.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(super) fn sum(&self, number: f64) -> Result<f64, RankError> {
        let all = self.all_gather(&Tensor::from_slice(&[number]))?;
        Ok(rlt_torch::to_vec::<f64>(&all).iter().sum())
    }
}

impl Ranks {
    /// Sets the expert-parallel degree: `ep` adjacent ranks distribute the experts of every model that they
    /// shard ([`Ranks::on_mesh`]). All ranks must give the same degree.
    #[must_use]
    pub fn with_expert_parallel(self, ep: usize) -> Self {
        Self { ep, ..self }
    }
}
