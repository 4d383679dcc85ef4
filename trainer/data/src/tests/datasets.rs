//! Several data sets: columns of their own, weights, and the same rows streamed.

use rlt_api::spec::DatasetSpec;

use super::*;

/// Sets of rows `{"question": "a0"}`, by name and number.
struct Sets {
    _dir: TempDir,
    spec: DataSpec,
}

fn sets(sets: &[(&str, usize, Option<f64>)]) -> Sets {
    let dir = TempDir::new().unwrap();
    let set = |&(name, num_rows, weight): &(&str, usize, Option<f64>)| {
        let path = dir.path().join(format!("{name}.jsonl"));
        let row =
            |idx: usize| format!("{}\n", json!({name: format!("{name}{idx}"), "right": idx.to_string()}));
        fs::write(&path, (0..num_rows).map(row).collect::<String>()).unwrap();
        DatasetSpec {
            files: vec![path.display().to_string()],
            weight,
            prompt_key: Some(name.to_owned()),
            ground_truth_key: Some("right".to_owned()),
            data_source: (name != "a").then(|| format!("source-{name}")),
            ..DatasetSpec::default()
        }
    };
    let spec = DataSpec { datasets: sets.iter().map(set).collect(), ..DataSpec::default() };
    Sets { spec, _dir: dir }
}

fn read(spec: &DataSpec) -> Dataset<Prompt> {
    Dataset::prompts(spec, Split::Train, &tokenizer()).unwrap()
}

fn words(prompts: &[Arc<Prompt>]) -> Vec<&str> {
    prompts.iter().map(|prompt| prompt.text.as_str()).collect()
}

#[test]
fn each_data_set_has_columns_and_a_data_source_of_its_own() {
    let mut sets = sets(&[("a", 2, None), ("b", 1, None)]);
    let prompts = read(&sets.spec);
    let seen: Vec<_> = prompts
        .items()
        .iter()
        .map(|prompt| {
            (&*prompt.text, &*prompt.data_source, prompt.ground_truth.as_str().unwrap(), prompt.row_idx)
        })
        .collect();
    assert_eq!(seen, [("a0", "default", "0", 0), ("a1", "default", "1", 1), ("b0", "source-b", "0", 2)]);
    sets.spec.datasets[0].held_out = true;
    assert_eq!(words(read(&sets.spec).items()), ["b0"]);
    assert_eq!(
        words(Dataset::prompts(&sets.spec, Split::HeldOut, &tokenizer()).unwrap().items()),
        ["a0", "a1"]
    );
    sets.spec.max_held_out_prompts = Some(1);
    assert_eq!(Dataset::prompts(&sets.spec, Split::HeldOut, &tokenizer()).unwrap().len(), 1);
}

#[test]
fn weights_decide_how_often_an_epoch_has_each_data_set_and_resume_exactly() {
    let sets = sets(&[("a", 4, Some(1.0)), ("b", 12, Some(3.0)), ("c", 2, Some(2.0))]);
    let dataset = read(&sets.spec);
    for shuffle in [false, true] {
        let loader = || PromptLoader::new(&dataset, shuffle, 5).unwrap();
        let mut whole = loader();
        let (mut states, mut batches) = (vec![whole.state()], Vec::new());
        for _ in 0..24 {
            batches.push(whole.next_batch(3).unwrap());
            states.push(whole.state());
        }
        for epoch in batches.chunks_exact(6) {
            let count =
                |name: &str| epoch.iter().flatten().filter(|prompt| prompt.text.starts_with(name)).count();
            assert_eq!((count("a"), count("b"), count("c")), (3, 9, 6));
        }
        let all: Vec<&Arc<Prompt>> = batches.iter().flatten().collect();
        let times = |text: &str| all.iter().filter(|prompt| prompt.text == text).count();
        assert_eq!((0..12).map(|idx| times(&format!("b{idx}"))).collect::<Vec<_>>(), [3; 12]);
        assert_eq!((0..4).map(|idx| times(&format!("a{idx}"))).collect::<Vec<_>>(), [3; 4]);
        for (stopped, state) in states.iter().enumerate().take(20) {
            let mut resumed = loader();
            resumed.resume(state).unwrap();
            assert_eq!(resumed.next_batch(3).unwrap(), batches[stopped]);
            assert_eq!(resumed.state(), states[stopped + 1]);
        }
    }
    let mut other = sets.spec.clone();
    other.datasets[1].weight = Some(2.0);
    let mut other = PromptLoader::new(&read(&other), true, 5).unwrap();
    let saved = PromptLoader::new(&dataset, true, 5).unwrap().state();
    assert!(matches!(other.resume(&saved), Err(LoaderError::OtherData { field: "the data's digest", .. })));
}

#[test]
fn rows_that_a_step_draws_again_are_counted_in_memory_streamed_and_by_weight() {
    let draws = |num_drawn, num_repeated| StepDraws { num_drawn, num_repeated };
    let sets = |b_weight: Option<f64>| sets(&[("a", 5, b_weight.map(|_| 1.0)), ("b", 2, b_weight)]);
    let plain = sets(None);
    let options = StreamOptions { block_rows: 2, seed: Some(3) };
    let check: CheckItem<Prompt> = Box::new(|_, _| Ok(()));
    let streamed = Loader::stream(&plain.spec, options, prompt_reader(&tokenizer()), check).unwrap();
    let kept = PromptLoader::new(&read(&plain.spec), true, 3).unwrap();
    for mut loader in [streamed, kept] {
        assert_eq!(loader.step_draws(), draws(0, 0));
        loader.next_batch(4).unwrap();
        loader.next_batch(3).unwrap();
        assert_eq!(loader.step_draws(), draws(7, 0), "all rows once");
        loader.next_batch(7).unwrap();
        assert_eq!(loader.step_draws(), draws(14, 7), "all rows twice");
        loader.begin_step();
        loader.next_batch(7).unwrap();
        assert_eq!(loader.step_draws(), draws(7, 0), "the rows of another step do not count");
        loader.begin_step();
        loader.next_batch(9).unwrap();
        assert_eq!(loader.step_draws(), draws(9, 2));
    }
    // Of seven draws six are of the two rows of `b`.
    let mut weighted = PromptLoader::new(&read(&sets(Some(6.0)).spec), false, 0).unwrap();
    weighted.next_batch(7).unwrap();
    assert_eq!(weighted.step_draws(), draws(7, 4));
}

#[test]
fn a_data_set_with_a_weight_and_no_rows_is_named() {
    let sets = sets(&[("a", 4, Some(1.0)), ("b", 0, Some(3.0))]);
    let error = Dataset::prompts(&sets.spec, Split::Train, &tokenizer()).unwrap_err();
    assert!(matches!(error, DataError::EmptySet { set_idx: 1, .. }), "{error}");
}

#[test]
fn streamed_rows_equal_rows_in_memory_and_are_checked_one_by_one() {
    let sets = sets(&[("a", 5, None), ("b", 3, None)]);
    let options = StreamOptions { block_rows: 2, seed: None };
    let stream = |check| Loader::stream(&sets.spec, options, prompt_reader(&tokenizer()), check).unwrap();
    let mut streamed = stream(Box::new(|_, _| Ok(())));
    let mut kept = PromptLoader::new(&read(&sets.spec), false, 0).unwrap();
    for _ in 0..4 {
        let (streamed, kept) = (streamed.next_batch(4).unwrap(), kept.next_batch(4).unwrap());
        assert_eq!(words(&streamed), words(&kept));
        assert!(streamed.iter().zip(&kept).all(|(one, other)| {
            (&one.tokens, &one.data_source, &one.ground_truth)
                == (&other.tokens, &other.data_source, &other.ground_truth)
        }));
    }
    assert_eq!((streamed.epoch(), kept.epoch()), (1, 1));

    let mut checked = stream(Box::new(|prompt, location| match prompt.text.as_str() {
        "a3" => Err(DataError::Check(format!("no judge for {location}").into())),
        _ => Ok(()),
    }));
    assert_eq!(words(&checked.next_batch(2).unwrap()), ["a0", "a1"]);
    let error = checked.next_batch(1).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.starts_with("no judge for ") && cause.ends_with("a.jsonl row 4"), "{cause}");

    let options = StreamOptions { block_rows: 3, ..options };
    let mut other =
        Loader::stream(&sets.spec, options, prompt_reader(&tokenizer()), Box::new(|_, _| Ok(()))).unwrap();
    assert!(matches!(other.resume(&streamed.state()), Err(LoaderError::OtherData { .. })));
}
