//! The cache gives the first values to all ranks, and reads them only from the file.

use std::time::{Duration, SystemTime};

use rlt_core::fixtures::preference;

use super::*;
use crate::tests::on_ranks;

/// Creates two batches, each of two completions with three tokens in total.
fn batches() -> [Batch; 2] {
    [
        Batch::from_preferences(&[preference(&[1, 2], &[&[3, 4], &[5]])]),
        Batch::from_preferences(&[preference(&[1], &[&[2, 3], &[5]])]),
    ]
}

#[test]
fn cached_log_probs_are_read_by_the_next_attempt_up_to_a_torn_record() {
    let folder = tempfile::tempdir().unwrap();
    let open = |digest| LogProbCache::open(folder.path(), digest, Ranks::alone());
    let [one, two] = batches();
    let mut kept = open(7);
    assert_eq!(kept.find(&one).unwrap(), None);
    assert_eq!(kept.keep(&one, &[-0.5, -1.5, -2.5]).unwrap(), [-0.5, -1.5, -2.5]);
    assert_eq!(kept.keep(&one, &[-9.0; 3]).unwrap(), [-0.5, -1.5, -2.5], "the first computation counts");
    kept.keep(&two, &[-3.5, -4.5, -5.5]).unwrap();

    let path = folder.path().join("0000000000000007.records");
    let len = std::fs::metadata(&path).unwrap().len();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(len - 1).unwrap();
    let mut resumed = open(7);
    assert_eq!(resumed.find(&one).unwrap(), Some(vec![-0.5, -1.5, -2.5]));
    assert_eq!(resumed.find(&two).unwrap(), None, "its last completion was torn");
    resumed.keep(&two, &[-3.5, -4.5, -5.5]).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), len, "the torn record was written again");
    assert_eq!(open(8).find(&one).unwrap(), None, "other weights have other log-probs");
}

#[test]
fn a_completion_that_a_batch_has_twice_keeps_its_first_log_probs() {
    let folder = tempfile::tempdir().unwrap();
    let mut kept = LogProbCache::open(folder.path(), 7, Ranks::alone());
    let twice = Batch::from_preferences(&[preference(&[1], &[&[2, 3], &[2, 3]])]);
    assert_eq!(kept.keep(&twice, &[-0.5, -1.5, -8.0, -9.0]).unwrap(), [-0.5, -1.5, -0.5, -1.5]);
    assert_eq!(kept.find(&twice).unwrap(), Some(vec![-0.5, -1.5, -0.5, -1.5]));
}

/// A cache in memory would find all rows, despite the limit of the file.
#[test]
fn rows_beyond_the_limit_are_computed_again_and_the_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut kept = LogProbCache::with_limit(folder.path(), 7, Ranks::alone(), 2);
    let [one, two] = batches();
    for batch in [&one, &two] {
        assert_eq!(kept.keep(batch, &[-0.5, -1.5, -2.5]).unwrap(), [-0.5, -1.5, -2.5]);
    }
    assert!(kept.is_full_reported);
    assert_eq!(kept.find(&one).unwrap(), Some(vec![-0.5, -1.5, -2.5]));
    assert_eq!(kept.find(&two).unwrap(), None);
    assert_eq!(kept.keep(&two, &[-3.5, -4.5, -5.5]).unwrap(), [-3.5, -4.5, -5.5]);
}

/// Each sync of the reference begins another file.
#[test]
fn records_of_the_newest_references_stay_and_those_of_older_ones_and_of_earlier_releases_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("0000000000000007"), "of an earlier release").unwrap();
    std::fs::write(path("notes.txt"), "of the user").unwrap();
    let [one, _] = batches();
    let name = |digest: u64| format!("{digest:016x}.records");
    for digest in 0..20 {
        let mut kept = LogProbCache::open(folder.path(), digest, Ranks::alone());
        kept.keep(&one, &[-0.5, -1.5, -2.5]).unwrap();
        let file = std::fs::File::options().write(true).open(path(&name(digest))).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(digest)).unwrap();
    }
    // A resumed run goes back to an older reference.
    let resumed = LogProbCache::open(folder.path(), 4, Ranks::alone());
    assert_eq!(resumed.find(&one).unwrap(), Some(vec![-0.5, -1.5, -2.5]));
    let entries = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    let expected: Vec<String> = (4..20).map(name).chain(["notes.txt".to_owned()]).collect();
    assert_eq!(names, expected);
}

#[test]
fn ranks_that_do_not_see_the_leader_s_folder_have_its_log_probs() {
    let [leader, other] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let found = on_ranks(2, |ranks| {
        let folder = if ranks.is_leader() { leader.path() } else { other.path() };
        let own = if ranks.is_leader() { -0.5 } else { -0.25 };
        let [one, two] = batches();
        let mut kept = LogProbCache::open(folder, 7, ranks);
        let computed = kept.keep(&one, &[own; 3]).unwrap();
        (computed, kept.find(&one).unwrap(), kept.find(&two).unwrap())
    });
    let expected = vec![-0.5; 3];
    assert_eq!(found, vec![(expected.clone(), Some(expected), None); 2]);
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 0, "the leader alone writes");
}

#[test]
fn log_probs_are_computed_again_where_the_folder_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a-file");
    std::fs::write(&path, "").unwrap();
    let mut kept = LogProbCache::open(&path, 7, Ranks::alone());
    let [one, _] = batches();
    assert_eq!(kept.keep(&one, &[-0.5, -1.5, -2.5]).unwrap(), [-0.5, -1.5, -2.5]);
    assert_eq!(kept.find(&one).unwrap(), None);
}
