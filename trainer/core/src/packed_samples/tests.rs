//! Packing and unpacking keeps every bit, in exactly as many bytes as needed; damaged bytes are refused.

use proptest::prelude::*;
use rlt_mutations::{cases, mutated};

use super::*;

fn completion() -> impl Strategy<Value = Completion> {
    let token = (any::<u32>(), any::<f32>());
    let reason = prop::sample::select(FinishReason::ALL.to_vec());
    (prop::collection::vec(token, 0..5), any::<String>(), reason).prop_map(|(tokens, text, finish_reason)| {
        let (tokens, rollout_logprobs) = tokens.into_iter().unzip();
        Completion { tokens, rollout_logprobs, text, finish_reason }
    })
}

fn reward() -> impl Strategy<Value = Reward> {
    let parts = prop::collection::btree_map("[a-c]", any::<f64>(), 0..3);
    let texts = (any::<Option<String>>(), any::<Option<String>>());
    (any::<f64>(), any::<f64>(), parts, texts, 0..STATUSES.len()).prop_map(
        |(score, value, parts, (answer, message), status)| Reward {
            score,
            value,
            parts,
            answer,
            status: STATUSES[status],
            message,
        },
    )
}

fn groups() -> impl Strategy<Value = Vec<JudgedGroup>> {
    prop::collection::vec(prop::collection::vec((completion(), reward()), 0..4), 0..4)
}

/// Bytes that the samples need, counted sample by sample.
fn needed(groups: &[JudgedGroup]) -> usize {
    let samples: Vec<_> = groups.iter().flatten().collect();
    let names: std::collections::BTreeSet<&String> =
        samples.iter().flat_map(|(_, r)| r.parts.keys()).collect();
    let text = |(completion, reward): &&(Completion, Reward)| -> usize {
        let optional = [&reward.answer, &reward.message].into_iter().flatten();
        completion.text.len() + optional.map(String::len).sum::<usize>()
    };
    num_bytes([
        groups.len(),
        samples.len(),
        samples.iter().map(|(completion, _)| completion.tokens.len()).sum(),
        names.len(),
        samples.iter().map(|(_, reward)| reward.parts.len()).sum(),
        samples.iter().map(text).sum::<usize>() + names.iter().map(|name| name.len()).sum::<usize>(),
    ])
}

fn one_sample() -> Vec<JudgedGroup> {
    let completion = Completion {
        tokens: vec![7, 8, 9],
        rollout_logprobs: vec![-0.5, -0.0, f32::MIN_POSITIVE],
        text: "7×8".into(),
        finish_reason: FinishReason::Length,
    };
    let reward = Reward {
        score: 0.1,
        value: -0.2,
        parts: [("exact".to_owned(), 1.0)].into(),
        answer: Some("56".into()),
        status: RewardStatus::Timeout,
        message: None,
    };
    vec![vec![(completion, reward)], vec![]]
}

proptest! {
    #[test]
    fn samples_are_unpacked_as_they_were_packed(groups in groups()) {
        let bytes = pack(&groups).unwrap();
        prop_assert_eq!(bytes.len(), needed(&groups));
        // Compared by bits, since by value a NaN differs from itself and a negative zero equals zero.
        let unpacked = unpack(&bytes).unwrap();
        prop_assert_eq!(format!("{unpacked:?}"), format!("{groups:?}"));
        prop_assert_eq!(pack(&unpacked).unwrap(), bytes);
    }
}

proptest! {
    #![proptest_config(cases(1000))]

    /// Bytes that were damaged on the way between ranks either encode samples or are refused; lengths that
    /// they state never cause a large allocation.
    #[test]
    fn damaged_bytes_are_samples_or_refused(
        bytes in groups().prop_flat_map(|groups| mutated(vec![pack(&groups).unwrap()])),
    ) {
        if let Ok(groups) = unpack(&bytes) {
            prop_assert_eq!(pack(&groups).unwrap(), &bytes[..]);
        }
    }
}

#[test]
fn bytes_that_end_too_early_are_refused_wherever_they_end() {
    let bytes = pack(&one_sample()).unwrap();
    // 5 counts, 2 groups, 1 sample of 3 tokens, 1 name, 1 part, and the texts `exact`, `7×8`, `56`.
    assert_eq!(bytes.len(), 40 + 16 + 58 + 24 + 8 + 12 + (5 + 4 + 2));
    assert_eq!(unpack(&bytes).unwrap(), one_sample());
    for len in 0..bytes.len() {
        let error = unpack(&bytes[..len]).unwrap_err();
        assert!(matches!(error, PackedSamplesError::Truncated { .. }), "{len}: {error}");
    }
    let error = unpack(&bytes[..39]).unwrap_err();
    assert_eq!(error.to_string(), "counts: expected 40 bytes, got 39");
    let error = unpack(&[bytes, vec![0, 0]].concat()).unwrap_err();
    assert_eq!(error.to_string(), "expected nothing after the last text, got 2 bytes");
}

#[test]
fn lengths_and_numbers_that_do_not_fit_are_named() {
    let bytes = pack(&one_sample()).unwrap();
    let changed = |place: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[place] = byte;
        unpack(&bytes).unwrap_err().to_string()
    };
    assert_eq!(changed(40, 3), "samples of a group: expected lengths with the sum 1, got 3");
    assert_eq!(changed(56, 2), "tokens of a sample: expected lengths with the sum 3, got 2");
    let numbers = 40 + 16 + 16 + 24 + 16;
    assert_eq!(changed(numbers, 3), "a finish reason: expected a number below 3, got 3");
    assert_eq!(changed(numbers + 1, 9), "a reward's status: expected a number below 4, got 9");
    assert_eq!(changed(numbers + 2, 4), "the name of a reward part: expected a number below 1, got 4");
    assert_eq!(changed(bytes.len() - 1, 0xff), "an answer: expected UTF-8, got other bytes");
    assert_eq!(changed(numbers + 2 + 12 + 8 + 7, 0x80), "a text: expected 9223372036854775812 bytes, got 6");
    let mut uneven = one_sample();
    uneven[0][0].0.rollout_logprobs.pop();
    let error = pack(&uneven).unwrap_err();
    assert_eq!(error.to_string(), "rollout log-probs: expected lengths with the sum 3, got 2");
}

#[test]
fn samples_have_one_array_of_bytes_and_every_other_is_refused() {
    let mut groups = one_sample();
    let parts = &mut groups[0][0].1.parts;
    *parts = [("a".to_owned(), 1.0), ("b".to_owned(), 2.0)].into();
    let bytes = pack(&groups).unwrap();
    let changed = |changes: &[(usize, u8)]| {
        let mut bytes = bytes.clone();
        changes.iter().for_each(|(place, byte)| bytes[*place] = *byte);
        unpack(&bytes).unwrap_err().to_string()
    };
    let part_names = 40 + 16 + 16 + 24 + 16 + 2;
    let text_lens = part_names + 2 * (4 + 8) + 2 * 8;
    let names = text_lens + 3 * 8;
    assert_eq!(&bytes[names..names + 2], b"ab");
    let order = "expected each once, in ascending order";
    assert_eq!(changed(&[(names, b'c')]), format!("names of reward parts: {order}"));
    assert_eq!(changed(&[(names, b'b')]), format!("names of reward parts: {order}"));
    let swapped = [(part_names, 1), (part_names + 4, 0)];
    assert_eq!(changed(&swapped), format!("reward parts of a sample: {order}"));
    let unused = "names of reward parts: expected the names of the samples' parts, got \"b\" beside them";
    assert_eq!(changed(&[(part_names + 4, 0)]), unused);
    let absent: Vec<(usize, u8)> = (text_lens..text_lens + 8).map(|place| (place, 0xff)).collect();
    assert_eq!(changed(&absent), "a text: expected a length, got none");
}
