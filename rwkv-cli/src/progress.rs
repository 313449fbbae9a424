//! Bars that show how far something is. They move at a terminal only.

use std::borrow::Cow;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::console::Console;

/// A bar that clears itself away when it is dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar for so many bytes.
    pub fn bytes(console: Console, what: &str, total: u64) -> Progress {
        let style = "{prefix} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left {msg}";
        Progress::new(console, ProgressBar::with_draw_target(Some(total), target(console)), style, what)
    }

    /// A bar for so many bytes of text; how fast they go is not what matters.
    pub fn text(console: Console, what: &str, total: u64) -> Progress {
        let style = "{prefix} [{bar:30}] {bytes} of {total_bytes}, {msg}, {eta} left";
        Progress::new(console, ProgressBar::with_draw_target(Some(total), target(console)), style, what)
    }

    /// A bar for so many of something.
    pub fn count(console: Console, what: &str, total: u64) -> Progress {
        let style = "{prefix} [{bar:30}] {pos} of {len} {msg}";
        Progress::new(console, ProgressBar::with_draw_target(Some(total), target(console)), style, what)
    }

    /// A sign of life where nobody knows how long it takes.
    pub fn spinner(console: Console, what: &str) -> Progress {
        Progress::new(
            console,
            ProgressBar::with_draw_target(None, target(console)),
            "{spinner} {prefix} {msg}",
            what,
        )
    }

    fn new(console: Console, bar: ProgressBar, style: &str, what: &str) -> Progress {
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        bar.set_prefix(what.to_owned());
        if console.shows_progress() {
            bar.enable_steady_tick(Duration::from_millis(120));
        }
        Progress(bar)
    }

    /// How much there is to do.
    pub fn length(&self, total: u64) {
        self.0.set_length(total);
    }

    /// How much is done.
    pub fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// What is being done.
    pub fn message(&self, message: impl Into<Cow<'static, str>>) {
        self.0.set_message(message);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn target(console: Console) -> ProgressDrawTarget {
    if console.shows_progress() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}
