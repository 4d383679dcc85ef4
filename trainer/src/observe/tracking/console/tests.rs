//! The texts on the terminal, and that a blocked terminal delays nothing.

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use indicatif::{ProgressDrawTarget, TermLike};

use super::*;

/// Maximum time that a test waits for another thread to draw; milliseconds on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(100);

/// Everything that was ever shown.
#[derive(Clone, Debug, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Page {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Waits until `expected` has been drawn.
    #[track_caller]
    fn wait_for(&self, expected: &str) {
        let started = Instant::now();
        while !self.text().contains(expected) {
            assert!(started.elapsed() < PATIENCE, "{expected:?} is not in\n{}", self.text());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl TermLike for Page {
    fn width(&self) -> u16 {
        120
    }
    fn move_cursor_up(&self, _num_lines: usize) -> std::io::Result<()> {
        Ok(())
    }
    fn move_cursor_down(&self, _num_lines: usize) -> std::io::Result<()> {
        Ok(())
    }
    fn move_cursor_right(&self, _num_columns: usize) -> std::io::Result<()> {
        Ok(())
    }
    fn move_cursor_left(&self, _num_columns: usize) -> std::io::Result<()> {
        Ok(())
    }
    fn write_line(&self, text: &str) -> std::io::Result<()> {
        self.write_str(text)
    }
    fn write_str(&self, text: &str) -> std::io::Result<()> {
        self.0.lock().unwrap().write_all(text.as_bytes())
    }
    fn clear_line(&self) -> std::io::Result<()> {
        Ok(())
    }
    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Reads a clock that stands still.
fn standing() -> Instant {
    static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);
    *NOW
}

fn lines_by(clock: fn() -> Instant, page: &Page) -> Console {
    Console::draw_on(Box::new(lines::Lines::new(page.clone()).with_clock(clock))).unwrap()
}

fn step(stage: Stage, step: u64, values: &[(&str, f64)]) -> StepMetrics {
    let values = values.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    StepMetrics { stage, step, timestamp: 0.0, values }
}

#[test]
fn without_a_terminal_every_step_is_one_readable_line() {
    let page = Page::default();
    let console = lines_by(standing, &page);
    console.message("evaluating 200 held-out prompts");
    console.begin_stage(Stage::Training, 0, 2);
    console.begin_phase(Phase::Rollout, 64);
    console.advance(64, 512);
    let values = [
        ("critic/rewards/mean", 0.4125),
        ("val-core/arithmetic/reward/mean@1", 0.39),
        ("actor/kl_loss", 0.00312),
        ("perf/throughput", 18_421.0),
        ("timing_s/step", 2.04),
    ];
    console.end_step(&step(Stage::Training, 1, &values));
    console.end_step(&step(Stage::Training, 2, &values[..1]));
    drop(console);
    page.wait_for("step 2/2: reward 0.412\n");
    let expected = "evaluating 200 held-out prompts\n\
        step 1/2: reward 0.412, held-out 0.390, kl 0.0031, 18.4k tok/s, 2.0 s\n\
        step 2/2: reward 0.412\n";
    assert_eq!(page.text(), expected);
}

#[test]
fn a_quick_cold_start_shows_its_first_and_last_step() {
    let page = Page::default();
    let console = lines_by(standing, &page);
    console.begin_stage(Stage::ColdStart, 0, 50);
    (1..=50).for_each(|idx| console.end_step(&step(Stage::ColdStart, idx, &[("sft/loss", 1.5)])));
    drop(console);
    page.wait_for("cold start 50/50: loss 1.500\n");
    assert_eq!(page.text(), "cold start 1/50: loss 1.500\ncold start 50/50: loss 1.500\n");
}

#[test]
fn a_slow_cold_start_shows_every_step_and_the_time_that_is_left() {
    /// Reads a clock that passes three seconds at each update.
    fn passing() -> Instant {
        static NUM_READ: AtomicU32 = AtomicU32::new(0);
        standing() + Duration::from_secs(3) * NUM_READ.fetch_add(1, Ordering::Relaxed)
    }
    let page = Page::default();
    let console = lines_by(passing, &page);
    console.begin_stage(Stage::ColdStart, 0, 3);
    (1..=3).for_each(|idx| console.end_step(&step(Stage::ColdStart, idx, &[("sft/loss", 1.5)])));
    drop(console);
    page.wait_for("cold start 3/3: loss 1.500\n");
    let expected = "cold start 1/3: loss 1.500, 6s left\n\
        cold start 2/3: loss 1.500, 3s left\n\
        cold start 3/3: loss 1.500\n";
    assert_eq!(page.text(), expected);
}

/// The terminal blocks until the test releases it, so a console that waits for the terminal would never end.
#[test]
fn a_blocked_terminal_delays_nothing() {
    struct Blocked(Receiver<()>);
    impl Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // The channel returns an error when the test has ended.
            let _ = self.0.recv();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (release, blocked) = sync_channel::<()>(0);
    let console = Console::draw_on(Box::new(lines::Lines::new(Blocked(blocked)))).unwrap();
    let (done, is_done) = sync_channel(1);
    std::thread::spawn(move || {
        (0..10_000).for_each(|idx| console.message(&format!("message {idx}")));
        drop(console);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(PATIENCE).expect("the console waits for a blocked terminal");
    drop(release);
}

#[test]
fn phases_that_lines_do_not_show_leave_the_queue_to_messages() {
    /// Writes once the sender is gone.
    struct Held(Receiver<()>, Page);
    impl Write for Held {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.0.recv();
            self.1.write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let ((release, held), page) = (sync_channel::<()>(0), Page::default());
    let console = Console::draw_on(Box::new(lines::Lines::new(Held(held, page.clone())))).unwrap();
    console.message("first");
    console.begin_phase(Phase::Rollout, 1000);
    (0..1000).for_each(|num_done| console.advance(num_done, num_done));
    console.message("last");
    drop(release);
    page.wait_for("last\n");
}

#[test]
fn bars_show_stage_phase_and_rate() {
    let page = Page::default();
    let mut bars = bars::Bars::on(ProgressDrawTarget::term_like(Box::new(page.clone())));
    bars.draw(Update::Stage { stage: Stage::Training, num_done: 10, num_steps: 20 });
    bars.draw(Update::Phase { phase: Phase::Rollout, total: 64 });
    bars.draw(Update::Advance { num_done: 32, num_tokens: 1_000_000_000 });
    // A separate thread draws the bars at times of its own.
    for expected in ["training", "10/20", "rollout", "32/64", "tok/s"] {
        page.wait_for(expected);
    }
    page.0.lock().unwrap().clear();
    bars.draw(Update::Step(step(Stage::Training, 11, &[("critic/rewards/mean", 0.5)])));
    drop(bars);
    page.wait_for("11/20");
    page.wait_for("reward 0.500");
}

#[test]
fn durations_read_naturally() {
    for (seconds, expected) in [(5, "5s"), (65, "1m05s"), (7620, "2h07m")] {
        assert_eq!(summary::duration(Duration::from_secs(seconds)), expected);
    }
}
