//! Row counts of an expert-parallel all-to-all: how many rows go to which rank, and which expert each
//! received row is for. This module communicates nothing.
//!
//! ```text
//! local rows    sorted by expert: those of a rank's experts are adjacent          -> sent to that rank
//! received      rank-major: by sender, and of each sender by expert               -> sorted by expert again
//! computed      back in the order in which they were received                     -> returned to the senders
//! ```
//! Sorting is stable, so an expert has its rows in the order of ranks, and those of a rank in the order of
//! its tokens.

/// Returns how many rows a rank sends to each rank of its group, from its number of rows per expert. Experts
/// are split into `num_ranks` equal runs.
pub fn rows_for_ranks(rows_of_experts: &[i64], num_ranks: usize) -> Vec<i64> {
    let experts_of_rank = (rows_of_experts.len() / num_ranks.max(1)).max(1);
    rows_of_experts.chunks(experts_of_rank).map(|rows| rows.iter().sum()).collect()
}

/// Counts of the rows that a rank has received for its local experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedRows {
    /// Number of rows from each rank of the group.
    pub from_ranks: Vec<i64>,
    /// Local expert index of each row, in the order of arrival.
    pub experts: Vec<i64>,
}

impl ReceivedRows {
    /// Makes the counts from the number of rows that each rank sends to each of `num_experts` local experts,
    /// rank-major.
    pub fn new(counts: &[i64], num_experts: usize) -> Self {
        let of_rank = counts.chunks(num_experts.max(1));
        let from_ranks = of_rank.clone().map(|counts| counts.iter().sum()).collect();
        let of_expert =
            |(expert, count): (usize, &i64)| std::iter::repeat_n(expert as i64, (*count).max(0) as usize);
        let experts = of_rank.flat_map(|counts| counts.iter().enumerate().flat_map(of_expert)).collect();
        Self { from_ranks, experts }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A row by its sender and its index there.
    type Row = (usize, usize);

    /// The rows of a rank sorted by expert, and how many each expert has.
    fn sorted(rank: usize, choices: &[usize], num_experts: usize) -> (Vec<Row>, Vec<i64>) {
        let of_expert = |expert| (0..choices.len()).filter(move |row| choices[*row] == expert);
        let counts = (0..num_experts).map(|expert| of_expert(expert).count() as i64).collect();
        ((0..num_experts).flat_map(of_expert).map(|row| (rank, row)).collect(), counts)
    }

    /// The rows that each rank receives where each sends its `rows` in runs of `splits`.
    fn exchanged(rows: &[Vec<Row>], splits: &[Vec<i64>]) -> Vec<Vec<Row>> {
        let sent = |from: usize, to: usize| {
            let start: i64 = splits[from][..to].iter().sum();
            rows[from][start as usize..(start + splits[from][to]) as usize].to_vec()
        };
        (0..rows.len()).map(|to| (0..rows.len()).flat_map(|from| sent(from, to)).collect()).collect()
    }

    proptest! {
        #[test]
        fn every_row_reaches_the_rank_of_its_expert_and_returns_to_its_place(
            num_ranks in 1_usize..5,
            of_rank in 1_usize..4,
            lens in prop::collection::vec(0_usize..9, 4),
            seed in any::<u64>(),
        ) {
            let num_experts = num_ranks * of_rank;
            let choice = |rank: usize, row: usize| {
                (seed.wrapping_mul(rank as u64 * 31 + row as u64 + 7) >> 33) as usize % num_experts
            };
            let choices: Vec<Vec<usize>> =
                (0..num_ranks).map(|rank| (0..lens[rank]).map(|row| choice(rank, row)).collect()).collect();
            let (rows, counts): (Vec<_>, Vec<_>) =
                choices.iter().enumerate().map(|(rank, own)| sorted(rank, own, num_experts)).unzip();
            let splits: Vec<_> = counts.iter().map(|counts| rows_for_ranks(counts, num_ranks)).collect();
            let received = exchanged(&rows, &splits);
            let mut plans = Vec::new();
            for (rank, received) in received.iter().enumerate() {
                let own = rank * of_rank..(rank + 1) * of_rank;
                let sent: Vec<i64> = counts.iter().flat_map(|counts| counts[own.clone()].to_vec()).collect();
                let plan = ReceivedRows::new(&sent, of_rank);
                prop_assert_eq!(plan.experts.len(), received.len());
                for ((from, row), expert) in received.iter().zip(&plan.experts) {
                    prop_assert_eq!(choices[*from][*row], own.start + *expert as usize);
                }
                plans.push(plan.from_ranks);
            }
            // An expert's rows, sorted stably, are in the order of ranks and tokens.
            for received in &received {
                let mut by_expert = received.clone();
                by_expert.sort_by_key(|(from, row)| choices[*from][*row]);
                let key = |(from, row): &Row| (choices[*from][*row], *from, *row);
                prop_assert!(by_expert.is_sorted_by_key(key));
            }
            prop_assert_eq!(exchanged(&received, &plans), rows);
        }
    }

    #[test]
    fn a_group_without_rows_sends_and_receives_none() {
        assert_eq!(rows_for_ranks(&[0; 4], 2), [0, 0]);
        let none = ReceivedRows { from_ranks: vec![0, 0], experts: Vec::new() };
        assert_eq!(ReceivedRows::new(&[0; 4], 2), none);
    }
}
