//! The texts on the terminal, and that a blocked terminal delays nothing.

use std::io::Write;
use std::sync::{Arc, Mutex};

use indicatif::{ProgressDrawTarget, TermLike};

use super::*;

/// Everything that was ever shown.
#[derive(Clone, Debug, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

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

fn step(stage: Stage, step: u64, values: &[(&str, f64)]) -> StepMetrics {
    let values = values.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    StepMetrics { stage, step, timestamp: 0.0, values }
}

#[test]
fn without_a_terminal_every_step_is_one_readable_line() {
    let page = Page::default();
    let console = Console::draw_on(Box::new(lines::Lines::new(page.clone()))).unwrap();
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
    let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
    let expected = "evaluating 200 held-out prompts\n\
        step 1/2: reward 0.412, held-out 0.390, kl 0.0031, 18.4k tok/s, 2.0 s, 0s left\n\
        step 2/2: reward 0.412\n";
    assert_eq!(text.replace(", 0s left", ""), expected.replace(", 0s left", ""));
}

#[test]
fn a_quick_cold_start_shows_its_first_and_last_step() {
    let page = Page::default();
    let console = Console::draw_on(Box::new(lines::Lines::new(page.clone()))).unwrap();
    console.begin_stage(Stage::ColdStart, 0, 50);
    (1..=50).for_each(|idx| console.end_step(&step(Stage::ColdStart, idx, &[("sft/loss", 1.5)])));
    drop(console);
    let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("cold start 1/50: loss 1.500") && text.contains("cold start 50/50"), "{text}");
}

#[test]
fn a_blocked_terminal_delays_nothing() {
    struct Held;
    impl Write for Held {
        fn write(&mut self, _bytes: &[u8]) -> std::io::Result<usize> {
            std::thread::sleep(Duration::from_secs(3600));
            Ok(0)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let console = Console::draw_on(Box::new(lines::Lines::new(Held))).unwrap();
    let started = Instant::now();
    (0..10_000).for_each(|idx| console.message(&format!("message {idx}")));
    drop(console);
    assert!(started.elapsed() < FINISH_TIMEOUT + Duration::from_secs(1));
}

#[test]
fn bars_show_stage_phase_and_rate() {
    let page = Page::default();
    let text_of = |page: &Page| String::from_utf8(std::mem::take(&mut *page.0.lock().unwrap())).unwrap();
    let mut bars = bars::Bars::on(ProgressDrawTarget::term_like(Box::new(page.clone())));
    bars.draw(Update::Stage { stage: Stage::Training, num_done: 10, num_steps: 20 });
    bars.draw(Update::Phase { phase: Phase::Rollout, total: 64 });
    bars.draw(Update::Advance { num_done: 32, num_tokens: 1_000_000_000 });
    std::thread::sleep(Duration::from_millis(250));
    let text = text_of(&page);
    for expected in ["training", "10/20", "rollout", "32/64", "tok/s"] {
        assert!(text.contains(expected), "{expected:?} is not in\n{text}");
    }
    bars.draw(Update::Step(step(Stage::Training, 11, &[("critic/rewards/mean", 0.5)])));
    drop(bars);
    let text = text_of(&page);
    assert!(text.contains("11/20") && text.contains("reward 0.500"), "{text}");
}

#[test]
fn durations_read_naturally() {
    for (seconds, expected) in [(5, "5s"), (65, "1m05s"), (7620, "2h07m")] {
        assert_eq!(summary::duration(Duration::from_secs(seconds)), expected);
    }
}
