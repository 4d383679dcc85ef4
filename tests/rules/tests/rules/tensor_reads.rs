//! Reads of tensors: values are copied in one call (`copy_data`, `Vec::try_from`). Each single value that is
//! read is a call into libtorch of 0.4 microseconds, and the logits of a batch have ten million.

use rlt_rules::rust_sources;

/// Files with reads of single values in loops over ranks, shards or rows, and their number. No loop may run
/// over a vocabulary or over the tokens of a batch.
const SHORT_LOOPS: [(&str, usize); 5] = [
    ("trainer/src/commands/gpu_check/draws.rs", 1),
    ("trainer/src/parallel/ep_group.rs", 1),
    ("trainer/src/parallel/mesh.rs", 1),
    ("trainer/src/parallel/shards/flat/verified.rs", 2),
    ("trainer/src/parallel/tp_group.rs", 1),
];

/// The number of expressions that read a tensor value by value: by its iterator, or at an index that is not
/// constant.
fn num_single_reads(text: &str) -> usize {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let is_variable = |index: &str| {
        let index = index.split(']').next().unwrap_or_default();
        index.contains(|c: char| c.is_alphabetic())
    };
    let at_index = |read: &str| code.split(read).skip(1).filter(|index| is_variable(index)).count();
    let iterators = [".iter::<f64>()", ".iter::<i64>()"].map(|iterator| code.matches(iterator).count());
    iterators.iter().sum::<usize>() + at_index("double_value(&[") + at_index("int64_value(&[")
}

#[test]
fn values_of_tensors_are_read_in_one_call() {
    let is_test = |path: &str| path.starts_with("tests/") || path.contains("/tests");
    let mut found = Vec::new();
    for file in rust_sources().unwrap().iter().filter(|file| !is_test(&file.path)) {
        let number = num_single_reads(&file.text);
        if number > 0 {
            found.push((file.path.clone(), number));
        }
    }
    let expected = SHORT_LOOPS.map(|(path, number)| (path.to_owned(), number));
    assert_eq!(found, expected, "use `copy_data` or `Vec::try_from`, or list a loop over few values");
}

#[test]
fn a_read_of_single_values_is_found_and_one_of_a_scalar_is_none() {
    for (code, expected) in [
        ("plain.iter::<f64>().into_iter().flatten()", 1),
        ("(0..len).map(|at| all.double_value(&[at]))", 1),
        ("tensor\n    .int64_value(&[row as i64, 0])", 1),
        ("loss.double_value(&[]) + norms.f_double_value(&[0])?", 0),
        ("// plain.iter::<f64>()", 0),
        ("plain.copy_data(&mut logits, plain.numel());", 0),
        ("numbers.iter().sum::<f64>()", 0),
    ] {
        assert_eq!(num_single_reads(code), expected, "{code}");
    }
}
