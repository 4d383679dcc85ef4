//! Collectives between ranks that are threads: the result on each rank.

mod rank_threads;

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use self::rank_threads::on_ranks;
use super::*;

#[test]
fn every_rank_has_the_values_of_all_ranks() {
    for size in [1, 2, 3] {
        let results = on_ranks(size, |ranks| {
            let own = "x".repeat(ranks.rank() * 3);
            let gathered = ranks.all_gather((ranks.rank(), own, 0.1 + ranks.rank() as f64)).unwrap();
            let (mut sums, mut empty) = (vec![1.0, ranks.rank() as f64], Vec::new());
            ranks.all_reduce(&mut [&mut sums, &mut empty]).unwrap();
            let said = ranks.broadcast(ranks.is_leader().then(|| "go".to_owned())).unwrap();
            let nothing: Option<String> = ranks.broadcast(ranks.is_leader().then_some(None)).unwrap();
            assert_eq!(nothing, None);
            (gathered, sums, ranks.all_reduce_max(ranks.rank() as i64 - 5).unwrap(), said)
        });
        let all: Vec<_> = (0..size).map(|rank| (rank, "x".repeat(rank * 3), 0.1 + rank as f64)).collect();
        let sum = (0..size).sum::<usize>() as f64;
        for result in results {
            assert_eq!(result, (all.clone(), vec![size as f64, sum], size as i64 - 6, "go".to_owned()));
        }
    }
}

/// Returns the folder of the calling thread below `/proc`.
fn thread_folder() -> PathBuf {
    Path::new("/proc").join(std::fs::read_link("/proc/thread-self").unwrap())
}

/// Waits until the thread of this folder waits for something.
fn wait_until_blocked(thread_folder: &Path) {
    loop {
        let stat = std::fs::read_to_string(thread_folder.join("stat")).unwrap();
        // The state follows the name, which is in brackets.
        if stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S')) {
            return;
        }
        thread::yield_now();
    }
}

#[test]
fn the_leader_works_first() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("made");
    let (announce, announced) = mpsc::channel();
    let announced = Mutex::new(announced);
    let found = on_ranks(3, |ranks| {
        if !ranks.is_leader() {
            announce.send(thread_folder()).unwrap();
        }
        ranks
            .leader_first(|| -> Result<bool, RankError> {
                let found = file.exists();
                if ranks.is_leader() {
                    // The file is written once the other ranks are blocked. A rank that did not wait for the
                    // leader would have looked for the file by then.
                    let announced = announced.lock().unwrap();
                    announced.iter().take(2).for_each(|other| wait_until_blocked(&other));
                    std::fs::write(&file, "").unwrap();
                }
                Ok(found)
            })
            .unwrap()
    });
    assert_eq!(found, [false, true, true]);
}

#[test]
fn the_leader_leads_all_ranks_whatever_their_tensor_parallel_index() {
    let is_made = std::sync::atomic::AtomicBool::new(false);
    let results = on_ranks(4, |ranks| {
        let ranks = ranks.with_tensor_parallel(2).unwrap();
        let said = ranks.broadcast(ranks.is_leader().then(|| "go".to_owned())).unwrap();
        let found = ranks.leader_first(|| -> Result<bool, RankError> {
            Ok(is_made.swap(true, std::sync::atomic::Ordering::SeqCst))
        });
        (said, found.unwrap())
    });
    let expected = [false, true, true, true].map(|found| ("go".to_owned(), found));
    assert_eq!(results, expected);
}

#[test]
fn ranks_get_full_groups_if_there_are_enough_and_every_row_once() {
    let demonstration = |len: usize| rlt_core::batch::Demonstration {
        tokens: vec![1; len],
        loss_mask: [vec![false], vec![true; len - 1]].concat(),
        images: Vec::new(),
    };
    let rows: Vec<_> = [9, 3, 7, 5, 2, 8].map(demonstration).into();
    let mut batch = Batch::from_demonstrations(rows.iter());
    for (groups, size, is_whole) in
        [(vec![0, 0, 1, 1, 2, 2], 3, true), (vec![0, 0, 0, 0, 1, 1], 2, true), (vec![0; 6], 4, false)]
    {
        batch.groups = groups;
        let all: Vec<usize> = (0..6).collect();
        if size == 2 {
            let shares = on_ranks(size, |ranks| ranks.balanced_by(Balance::Order).share_of(&batch, &all, 16));
            assert_eq!(shares, [vec![0, 1, 2, 3], vec![4, 5]], "the first group and the second");
        }
        if size == 4 {
            let shares = on_ranks(size, |ranks| ranks.balanced_by(Balance::Count).share_of(&batch, &all, 16));
            let mut counts: Vec<usize> = shares.iter().map(Vec::len).collect();
            counts.sort_unstable();
            assert_eq!(counts, [1, 1, 2, 2]);
        }
        let shares = on_ranks(size, |ranks| ranks.share_of(&batch, &all, 16));
        let mut together = shares.concat();
        together.sort_unstable();
        assert_eq!(together, all);
        assert!(shares.iter().all(|share| !share.is_empty()));
        if is_whole {
            assert!(
                shares
                    .iter()
                    .all(|share| share.chunks(2).all(|pair| batch.groups[pair[0]] == batch.groups[pair[1]]))
            );
        }
    }
}
