//! Commands to an engine on a device, which has a step in flight when they come.

use std::ops::ControlFlow;

use rlt_core::sampling::SamplingParams;
use rlt_core::types::Completion;
use rlt_engine::Command;
use tch::Device;

use super::fixture::*;
use super::ranks::{engine, on_ranks};
use super::script::*;
use super::{ON_DEVICE, decoder_on, device_decoder, on_device};

#[test]
fn a_device_extends_sequences_as_the_cpu_does() {
    on_device("commands_on_device::a_device_extends_sequences_as_the_cpu_does", || {
        let mut same = SameSamples::default();
        for family in ON_DEVICE {
            // A third of all tokens end a turn, one step after the next one was launched.
            let stop_token_ids = (0..40).collect();
            let requests = requests(7, 2, &SamplingParams { stop_token_ids, ..truncated() });
            let expected = converse(&decoder(family), session(), &requests);
            let played = converse(&device_decoder(family), session(), &requests);
            (0..2).for_each(|turn| same.compare(&expected.turn(turn), &played.turn(turn)));
        }
        same.check();
    });
}

#[test]
fn a_pause_and_a_cancelled_sequence_change_no_other_on_a_device() {
    on_device("commands_on_device::a_pause_and_a_cancelled_sequence_change_no_other_on_a_device", || {
        let mut same = SameSamples::default();
        for family in ["llama", "qwen3"] {
            let device = device_decoder(family);
            let requests = requests(4, 2, &truncated());
            let mut undisturbed = play(&device, session(), added(&requests, false));
            let mut commands = added(&requests, false);
            commands.push((2, Command::Pause(id(1, 0))));
            commands.push((3, Command::Cancel(id(2, 1))));
            commands.push((5, Command::Resume(id(1, 0))));
            let played = play(&device, session(), commands);
            assert_eq!(played.cancelled, [id(2, 1)], "{family}");
            assert!(undisturbed.completions.remove(&id(2, 1)).is_some());
            assert_eq!(played.completions.len(), undisturbed.completions.len());
            same.compare(&undisturbed.turn(0), &played.turn(0));
            assert_eq!(played.stats.num_prefilled_tokens, undisturbed.stats.num_prefilled_tokens);
        }
        same.check();
    });
}

#[test]
fn two_ranks_with_a_device_each_apply_the_commands_of_the_first() {
    on_device("commands_on_device::two_ranks_with_a_device_each_apply_the_commands_of_the_first", || {
        let requests = requests(4, 2, &truncated());
        let mut commands = added(&requests, false);
        commands.push((2, Command::Pause(id(1, 0))));
        commands.push((3, Command::Cancel(id(2, 1))));
        commands.push((5, Command::Resume(id(1, 0))));
        let of_ranks = on_ranks(2, 60, |ranks| {
            let device = decoder_on(Device::Cuda(ranks.rank()), "llama");
            let mut engine = engine(&ranks, session());
            engine.sync_weights(&device, 0).unwrap();
            let mut go_on = |_| ControlFlow::Continue(());
            let undisturbed = engine.generate(&device, &requests, &Letters, &mut go_on).unwrap();
            let commands = if ranks.is_leader() { commands.clone() } else { Vec::new() };
            (undisturbed, play_on(&mut engine, &device, commands))
        });
        let ((undisturbed, first), second) = (&of_ranks[0], &of_ranks[1].1);
        assert_eq!(first.completions, second.completions, "to the bit, log-probs included");
        assert_eq!([&first.cancelled, &second.cancelled], [&[id(2, 1)]; 2]);
        let expected = first.completions.keys().map(|id| undisturbed[id.request_idx][id.sample_idx].clone());
        let expected: Vec<Vec<Completion>> = expected.map(|completion| vec![completion]).collect();
        assert_eq!(expected.len(), 7);
        let mut same = SameSamples::default();
        same.compare(&expected, &first.turn(0));
        same.check();
    });
}
