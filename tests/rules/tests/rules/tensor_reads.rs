//! Rule of reads from tensors: one call copies all values (`rlt_torch::to_vec`, `Vec::try_from`). Each read
//! of a single value is a call into libtorch that takes 0.4 microseconds, and on a GPU a synchronization. The
//! logits of a batch have ten million values.

use regex::Regex;
use rlt_rules::rust_sources;

/// Expressions that read a single value of a tensor at an index that is not constant: by the tensor's
/// iterator, at an index given to the read, from a row that was selected before, or by converting one value.
const SINGLE_READS: [&str; 4] = [
    r"\.iter::<(?:f64|i64)>\(\)",
    r"(?:double|int64)_value\(\s*&\[[^\]]*[[:alpha:]]",
    r"\.(?:get|i|select|narrow)\([^;{}]*[[:alpha:]][^;{}]*\)\s*\.(?:f_)?(?:double|int64)_value\(\s*&\[\s*\]",
    r"(?:f64|f32|bool)::try_from\([^;{}]*\.(?:get|i|select)\(",
];

/// Returns the number of expressions in a file that read a tensor value by value.
fn num_single_reads(text: &str) -> usize {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    SINGLE_READS.iter().map(|read| Regex::new(read).unwrap().find_iter(&code).count()).sum()
}

#[test]
fn values_of_tensors_are_read_in_one_call() {
    let is_test = |path: &str| path.starts_with("tests/") || path.contains("/tests");
    let sources = rust_sources().unwrap();
    let product = sources.iter().filter(|file| !is_test(&file.path) && file.text.contains("tch::"));
    let found = product.map(|file| (&file.path, num_single_reads(&file.text)));
    let found: Vec<_> = found.filter(|(_, number)| *number > 0).collect();
    assert!(found.is_empty(), "use `rlt_torch::to_vec` instead of reads of single values: {found:?}");
}

/// Calls of libtorch that use its random number generator, of which a process has only one.
const DRAWS: &str = r"\bmanual_seed\(|\brandn?_like\(|\bTensor::randn?\(|\.(?:uniform|normal|bernoulli)_\(";

/// Unit tests of a package with libtorch run on several threads of one process, which share libtorch's
/// generator.
#[test]
fn unit_tests_draw_from_generators_of_their_own() {
    let draws = Regex::new(DRAWS).unwrap();
    assert!(draws.is_match("tch::manual_seed(3)") && draws.is_match("matrix.randn_like()"));
    let sources = rust_sources().unwrap();
    let units =
        sources.iter().filter(|file| file.path.starts_with("trainer/") && file.path.contains("/src/"));
    let tests = units.filter_map(|file| {
        let first = file.production_code().map_or(0, str::len);
        Some((&file.path, file.text.get(first..)?))
    });
    let found: Vec<_> = tests.filter(|(_, code)| draws.is_match(code)).map(|(path, _)| path).collect();
    assert!(found.is_empty(), "libtorch's generator is one for all threads: {found:?}");
}

#[test]
fn a_read_of_single_values_is_found_and_one_of_a_scalar_is_none() {
    for (code, expected) in [
        ("plain.iter::<f64>().into_iter().flatten()", 1),
        ("(0..len).map(|at| all.double_value(&[at]))", 1),
        ("tensor\n    .int64_value(&[row as i64, 0])", 1),
        ("rewards.get(row).double_value(&[])", 1),
        ("masks.select(0, i64::from(at)).f_int64_value(&[])?", 1),
        ("f64::try_from(logprobs.get(at))", 1),
        ("loss.double_value(&[]) + norms.f_double_value(&[0])?", 0),
        ("f64::try_from(&loss)?; rows.get(at)", 0),
        ("// plain.iter::<f64>()", 0),
        ("plain.copy_data(&mut logits, plain.numel());", 0),
        ("numbers.iter().sum::<f64>()", 0),
    ] {
        assert_eq!(num_single_reads(code), expected, "{code}");
    }
}
