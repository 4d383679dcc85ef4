//! Commands to a running engine: sequences that are added, extended, paused, resumed and cancelled sample the
//! same tokens as alone.

use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use rlt_core::sampling::SamplingParams;
use rlt_core::types::{Completion, FinishReason};
use rlt_engine::{
    Command, CommandSource, Engine, EngineEnded, EngineError, EngineOptions, Event, NoCommandYet, Request,
    SequenceId, command_queue,
};

use super::fixture::*;
use super::ranks::{engine, on_ranks};
use super::script::*;

/// Makes a request for each sequence with its seed, whose prompt is the sequence's tokens followed by
/// [`EXTENSION`].
fn fresh(requests: &[Request], played: &Played) -> Vec<Request> {
    let fresh = played.completions.iter().map(|(id, turns)| {
        let request = &requests[id.request_idx];
        let prompt = [&request.prompt[..], &turns[0].tokens, &EXTENSION].concat();
        Request { prompt: prompt.into(), seeds: vec![request.seeds[id.sample_idx]], ..request.clone() }
    });
    fresh.collect()
}

fn flat(completions: Vec<Vec<Completion>>) -> Vec<Completion> {
    completions.into_iter().flatten().collect()
}

#[test]
fn requests_that_are_added_during_a_run_get_the_completions_of_generate() {
    for family in ["llama", "qwen3", "deepseek-v3"] {
        let decoder = decoder(family);
        let requests = requests(7, 2, &truncated());
        let expected = flat(generate(&decoder, options(), &requests).unwrap());
        let mut commands = added(&requests, false);
        commands.iter_mut().enumerate().for_each(|(idx, (step, _))| *step = 2 * idx);
        let played = play(&decoder, session(), commands);
        assert_eq!(flat(played.turn(0)), expected, "{family}");
        let num_tokens: usize = expected.iter().map(|completion| completion.tokens.len()).sum();
        assert_eq!((played.num_sampled, played.stats.num_tokens), (num_tokens, num_tokens));
    }
}

/// Equality to rounding, since a decode has computed the keys and values of sampled tokens, which a prefill
/// computes in another order.
#[test]
fn an_extended_sequence_samples_what_one_prompt_of_the_same_tokens_samples() {
    let mut same = SameSamples::default();
    for family in FAMILIES {
        let decoder = decoder(family);
        let requests = requests(4, 2, &truncated());
        let played = converse(&decoder, session(), &requests);
        assert_eq!(flat(played.turn(0)), flat(generate(&decoder, options(), &requests).unwrap()), "{family}");
        same.compare(&generate(&decoder, options(), &fresh(&requests, &played)).unwrap(), &played.turn(1));
        let of_prompts: usize = requests.iter().map(|request| request.prompt.len() - 1).sum();
        // An extension prefills the last sampled token and its own tokens except the last.
        let of_extensions = 8 * EXTENSION.len();
        assert_eq!(
            played.stats.num_prefilled_tokens,
            of_prompts + of_extensions,
            "{family}: the cache is kept"
        );
    }
    same.check();
}

#[test]
fn an_extended_sequence_is_computed_again_if_others_needed_its_blocks() {
    let mut same = SameSamples::default();
    for family in FAMILIES {
        let decoder = decoder(family);
        let requests = requests(4, 2, &truncated());
        let sizes = &decoder.config;
        let token_bytes = 4 * sizes.num_layers * sizes.cached_numbers();
        let tight = EngineOptions { max_cache_bytes: Some(token_bytes * 48), ..session() };
        let (roomy, tight) = (converse(&decoder, session(), &requests), converse(&decoder, tight, &requests));
        assert!(tight.stats.num_prefilled_tokens > roomy.stats.num_prefilled_tokens, "{family}");
        (0..2).for_each(|turn| same.compare(&roomy.turn(turn), &tight.turn(turn)));
    }
    same.check();
}

#[test]
fn each_turn_has_the_limit_that_ended_it_as_its_finish_reason() {
    let sampling = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
    let request = Request { max_new_tokens: 2, ..requests(1, 1, &sampling).remove(0) };
    let num_before = request.prompt.len() + 2 + EXTENSION.len() + 4 + EXTENSION.len();
    let mut commands = added(&[request], true);
    // No sequence runs when the commands of a later step are due.
    for (step, max_new_tokens) in [(1000, 4), (2000, 100)] {
        commands.push((step, Command::Extend { id: id(0, 0), tokens: EXTENSION.to_vec(), max_new_tokens }));
    }
    let played = play(&decoder("llama"), session(), commands);
    let ends = |turn: usize| {
        let completion = &played.turn(turn)[0][0];
        (completion.tokens.len(), completion.finish_reason)
    };
    let expected =
        [(2, FinishReason::Length), (4, FinishReason::Length), (64 - num_before, FinishReason::Context)];
    assert_eq!([0, 1, 2].map(ends), expected);
}

/// Equality to the bit: a sample does not depend on its batch, and its cache is kept.
#[test]
fn a_pause_changes_no_token_of_any_sequence() {
    for family in ["llama", "qwen3", "qwen3-moe"] {
        let decoder = decoder(family);
        let requests = requests(3, 2, &truncated());
        let undisturbed = play(&decoder, session(), added(&requests, false));
        let mut commands = added(&requests, false);
        commands.push((2, Command::Pause(id(1, 0))));
        commands.push((5, Command::Resume(id(1, 0))));
        let paused = play(&decoder, session(), commands);
        assert_eq!(paused.completions, undisturbed.completions, "{family}");
        let [paused, undisturbed] = [paused.stats, undisturbed.stats];
        assert_eq!(paused.num_prefilled_tokens, undisturbed.num_prefilled_tokens);
        assert!(paused.num_steps > undisturbed.num_steps, "{family}: it was paused");
    }
}

#[test]
fn cancelling_one_sequence_changes_no_other() {
    let decoder = decoder("llama");
    let requests = requests(3, 2, &truncated());
    let mut expected = play(&decoder, session(), added(&requests, false)).completions;
    let mut commands = added(&requests, false);
    commands.push((2, Command::Cancel(id(1, 0))));
    let played = play(&decoder, session(), commands);
    assert_eq!(played.cancelled, [id(1, 0)]);
    assert!(expected.remove(&id(1, 0)).is_some());
    assert_eq!(played.completions, expected);
}

#[test]
fn a_command_that_cannot_be_applied_is_rejected_and_the_run_continues() {
    let decoder = decoder("llama");
    let requests = requests(1, 1, &SamplingParams::default());
    let add =
        |request_idx: usize, request: Request| (0, Command::Add { request_idx, request, keep_open: false });
    let of_prompt = |prompt: Vec<u32>| Request { prompt: prompt.into(), ..requests[0].clone() };
    let commands = vec![
        add(0, requests[0].clone()),
        add(0, requests[0].clone()),
        add(1, of_prompt(vec![5; 64])),
        add(2, of_prompt(vec![128])),
        add(3, of_prompt(vec![])),
        (1, Command::Extend { id: id(0, 0), tokens: vec![5], max_new_tokens: 3 }),
        (1, Command::Pause(id(9, 0))),
        (1, Command::Resume(id(9, 0))),
        (1, Command::Cancel(id(9, 0))),
    ];
    let played = play(&decoder, session(), commands);
    let rejected: Vec<usize> = played.rejected.iter().map(|(request_idx, _)| *request_idx).collect();
    assert_eq!(rejected, [0, 1, 2, 3, 0, 9, 9, 9], "{:?}", played.rejected);
    assert_eq!(played.turn(0), generate(&decoder, options(), &requests).unwrap());
}

#[test]
fn a_handle_on_another_thread_leads_a_dialogue() {
    let decoder = decoder("llama");
    let requests = requests(1, 1, &SamplingParams::greedy());
    let (handle, mut queue) = command_queue();
    let (heard, completions) = mpsc::channel::<Completion>();
    let request = requests[0].clone();
    let client = thread::spawn(move || {
        let id = handle.add(request, true).unwrap()[0];
        let first = completions.recv().unwrap();
        handle.extend(id, EXTENSION.to_vec(), 4).unwrap();
        let second = completions.recv().unwrap();
        handle.cancel(id).unwrap();
        [first, second]
    });
    let mut engine = Engine::new(session());
    engine.sync_weights(&decoder, 0).unwrap();
    let mut hear = |event: Event| match event {
        Event::TurnOver { completion, .. } => heard.send(completion).unwrap(),
        Event::Rejected { error, .. } => panic!("{error}"),
        _ => {}
    };
    let mut go_on = |_| ControlFlow::Continue(());
    engine.run(&decoder, &Letters, &mut queue, &mut go_on, &mut hear).unwrap();
    let [first, second] = client.join().unwrap();
    assert_eq!(vec![vec![first.clone()]], generate(&decoder, options(), &requests).unwrap());
    let prompt = [&requests[0].prompt[..], &first.tokens, &EXTENSION].concat();
    let fresh = Request { prompt: prompt.into(), max_new_tokens: 4, ..requests[0].clone() };
    assert_eq!(second.tokens, generate(&decoder, options(), &[fresh]).unwrap()[0][0].tokens);
}

#[test]
fn a_run_ends_where_its_client_asks_and_takes_no_more_commands() {
    let decoder = decoder("llama");
    let (handle, mut queue) = command_queue();
    let id = handle.add(requests(1, 1, &SamplingParams::greedy()).remove(0), false).unwrap()[0];
    let mut engine = Engine::new(session());
    engine.sync_weights(&decoder, 0).unwrap();
    let mut num_steps = 0;
    let mut third = |_| {
        num_steps += 1;
        if num_steps == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let ended = engine.run(&decoder, &Letters, &mut queue, &mut third, &mut |_| {});
    assert!(matches!(ended, Err(EngineError::Interrupted)), "{ended:?}");
    assert_eq!(num_steps, 3);
    assert_eq!(handle.pause(id), Ok(()), "the queue is still there");
    drop(queue);
    assert_eq!(handle.pause(id), Err(EngineEnded));
}

/// Makes the command number `kind` for a sequence.
fn on_sequence(kind: usize, id: SequenceId) -> Command {
    match kind {
        0 => Command::Pause(id),
        1 => Command::Resume(id),
        2 => Command::Cancel(id),
        _ => Command::Extend { id, tokens: EXTENSION.to_vec(), max_new_tokens: 4 },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ranks_of_a_group_apply_the_commands_of_the_first_before_the_same_step(
        added_at in vec(0usize..8, 4),
        later in vec((0usize..24, 0usize..4, 0usize..4, 0usize..2), 0..8),
    ) {
        let requests = requests(4, 2, &truncated());
        let mut commands = Vec::new();
        for (request_idx, (step, request)) in added_at.into_iter().zip(requests.clone()).enumerate() {
            commands.push((step, Command::Add { request_idx, request, keep_open: request_idx % 2 == 1 }));
        }
        for (step, kind, request_idx, sample_idx) in later {
            commands.push((step, on_sequence(kind, id(request_idx, sample_idx))));
        }
        commands.sort_by_key(|(step, _)| *step);
        let of_ranks = on_ranks(2, 60, |ranks| {
            let (decoder, mut engine) = (decoder("llama"), engine(&ranks, session()));
            engine.sync_weights(&decoder, 0).unwrap();
            let mut go_on = |_| ControlFlow::Continue(());
            let expected = engine.generate(&decoder, &requests, &Letters, &mut go_on).unwrap();
            // Commands of a rank that is not the leader are ignored.
            let commands = if ranks.is_leader() { commands.clone() } else { added(&requests[..1], false) };
            (expected, play_on(&mut engine, &decoder, commands))
        });
        let ((expected, first), second) = (&of_ranks[0], &of_ranks[1].1);
        for played in [first, second] {
            // There are fewer commands than sequences.
            prop_assert!(played.num_sampled > 0);
            for (id, turns) in &played.completions {
                prop_assert_eq!(&turns[0], &expected[id.request_idx][id.sample_idx]);
            }
        }
        prop_assert_eq!(&first.completions, &second.completions);
        prop_assert_eq!(&first.cancelled, &second.cancelled);
        prop_assert_eq!(&first.rejected, &second.rejected);
        prop_assert_eq!(first.num_sampled, second.num_sampled);
    }
}

#[test]
fn a_queue_tells_a_wait_without_a_command_from_its_end() {
    let (handle, mut queue) = command_queue();
    assert_eq!(queue.wait_at_most(Duration::ZERO).unwrap_err(), NoCommandYet);
    let id = handle.add(requests(1, 1, &SamplingParams::greedy()).remove(0), false).unwrap()[0];
    let added = queue.wait_at_most(Duration::ZERO).unwrap().unwrap();
    assert_eq!(added.request_idx(), id.request_idx);
    drop(handle);
    assert!(queue.wait_at_most(Duration::ZERO).unwrap().is_none());
}
