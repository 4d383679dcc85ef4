//! Full groups are recorded, and each record gets the values of its own row.

use std::sync::Arc;

use rlt_core::fixtures::rollout;
use rlt_core::types::{Prompt, Reward, RewardStatus};

use super::*;

fn group(row_idx: u64, statuses: &[RewardStatus]) -> RolloutGroup {
    let prompt = Arc::new(Prompt {
        text: "1+1=".into(),
        data_source: "arithmetic".into(),
        ground_truth: serde_json::json!("2"),
        ..Prompt::from_tokens(row_idx, vec![1, 2])
    });
    let sample = |(sample_idx, status): (u32, &RewardStatus)| {
        let reward = Reward { value: f64::from(sample_idx), status: *status, ..Reward::from_score(1.0) };
        let tokens = vec![7; 1 + sample_idx as usize];
        Rollout { sample_idx, policy_version: 3, ..rollout(&prompt, &tokens, reward) }
    };
    RolloutGroup { rollouts: (0..).zip(statuses).map(sample).collect(), prompt }
}

const TWO: [RewardStatus; 2] = [RewardStatus::Ok; 2];

#[test]
fn groups_are_recorded_whole_until_there_are_enough_completions() {
    let groups = [group(0, &TWO), group(1, &TWO), group(2, &TWO)];
    let recorded = |num_wanted| -> Vec<(usize, u32)> {
        let records = of_groups(4, false, &groups, num_wanted);
        records.iter().map(|record| (record.group, record.sample)).collect()
    };
    assert_eq!(recorded(0), []);
    assert_eq!(recorded(1), [(0, 0), (0, 1)]);
    assert_eq!(recorded(3), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert_eq!(recorded(100).len(), 6);
    let record = &of_groups(4, true, &groups, 1)[1];
    assert_eq!((record.step, record.policy_version, record.held_out), (4, 3, true));
    assert_eq!((record.token_ids.as_slice(), record.rollout_logprobs.len()), ([7, 7].as_slice(), 2));
}

#[test]
fn a_record_gets_the_numbers_of_its_own_row_though_rows_are_left_out_and_drawn_again() {
    let groups = [group(0, &[RewardStatus::Timeout, RewardStatus::Ok, RewardStatus::Ok]), group(1, &TWO)];
    let mut records = of_groups(4, false, &groups, 4);
    assert_eq!(records.len(), 5);
    // Rows of 2, 3, 1 and 2 tokens.
    let mut batch = Batch::from_groups(&groups, &[RewardStatus::Timeout]);
    batch.advantages = (0..8).map(f64::from).collect();
    let mask = vec![true, true, true, false, true, true, true, true];
    batch.rows = batch.rows.with_mask(mask).unwrap();
    add_advantages(&mut records, &batch);
    // The third row twice, the first not at all.
    let drawn = batch.select(&[1, 2, 2, 3]);
    add_updates(&mut records, &drawn, &[-1.0, -2.0, -3.0, -4.0, -4.0, -5.0, -6.0]);
    let of = |idx: usize| records[idx].training.as_ref();
    assert_eq!(of(0), None, "its status is masked");
    assert_eq!((of(1).unwrap().num_draws, &of(1).unwrap().advantages), (0, &vec![0.0, 1.0]));
    let second = of(2).unwrap();
    assert_eq!((second.num_draws, &second.advantages), (1, &vec![2.0, 3.0, 4.0]));
    assert_eq!((&second.loss_mask, &second.actor_logprobs), (&vec![1, 0, 1], &vec![-1.0, -2.0, -3.0]));
    assert_eq!((of(3).unwrap().num_draws, &of(3).unwrap().actor_logprobs), (2, &vec![-4.0]));
    assert_eq!((of(4).unwrap().num_draws, &of(4).unwrap().loss_mask), (1, &Vec::new()));
}
