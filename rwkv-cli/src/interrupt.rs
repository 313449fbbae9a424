//! Ctrl-C, and what else asks a program to end: SIGTERM, and SIGHUP, which comes when its terminal is closed.
//!
//! It ends the program at once, except while somebody holds an [`Interruptible`] section: then it only asks, and
//! whoever holds the section looks and brings things to an orderly end. A second Ctrl-C does not wait for that. The other signals
//! come twice by themselves, as when a terminal is closed: they only ask, for some seconds, and are never forgotten.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
#[cfg(unix)]
use std::time::{Duration, Instant};

use crate::exit;

/// After so long another signal is not the same one, which came twice, and ends the program at once.
#[cfg(unix)]
const NEXT: Duration = Duration::from_secs(5);

static SECTIONS: AtomicUsize = AtomicUsize::new(0);
static REQUESTED: AtomicBool = AtomicBool::new(false);
/// Whether the program is to end, and not only what it does now.
static ENDING: AtomicBool = AtomicBool::new(false);
/// Whether somebody in a section waits for the user, and so cannot look.
static IDLE: AtomicBool = AtomicBool::new(false);
static BEFORE_EXIT: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());

/// A stretch of work that looks at [`Interruptible::requested`] often, until it is dropped.
#[derive(Debug)]
pub struct Interruptible(());

impl Interruptible {
    /// Begins the section, which may be inside another one. An earlier Ctrl-C is forgotten.
    pub fn begin() -> Interruptible {
        SECTIONS.fetch_add(1, Ordering::SeqCst);
        REQUESTED.store(false, Ordering::SeqCst);
        Interruptible(())
    }

    /// Whether Ctrl-C was pressed since the section began, or the program is to end.
    pub fn requested(&self) -> bool {
        REQUESTED.load(Ordering::SeqCst) || is_ending()
    }

    /// An error if so.
    pub fn check(&self) -> Result<(), exit::Stop> {
        if self.requested() { Err(exit::Stop::Interrupted) } else { Ok(()) }
    }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        SECTIONS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Asks whoever holds a section to end, as Ctrl-C does.
pub fn request() {
    REQUESTED.store(true, Ordering::SeqCst);
}

/// Whether another signal than Ctrl-C has come: whoever goes on after an interruption should not.
pub fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}

/// Waits for the user within a section: other signals than Ctrl-C end the program at once meanwhile.
pub fn while_idle<T>(wait: impl FnOnce() -> T) -> T {
    IDLE.store(true, Ordering::SeqCst);
    // One that came just before was for whoever looks, and nobody does now.
    if is_ending() {
        end();
    }
    let line = wait();
    IDLE.store(false, Ordering::SeqCst);
    line
}

/// Does something before Ctrl-C ends the program at once, such as to complete a file.
pub fn before_exit(action: impl FnOnce() + Send + 'static) {
    BEFORE_EXIT.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(action));
}

/// Makes signals do what this module says. Where the system refuses, they end the program as usual.
pub fn install() {
    let _ = ctrlc::set_handler(|| {
        if SECTIONS.load(Ordering::SeqCst) == 0 || REQUESTED.swap(true, Ordering::SeqCst) {
            end();
        }
    });
    listen();
}

fn end() -> ! {
    for action in BEFORE_EXIT.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        action();
    }
    std::process::exit(i32::from(exit::INTERRUPTED))
}

/// Makes the other signals do what they do.
#[cfg(unix)]
fn listen() {
    let (sender, listens) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("signals".into());
    let started = thread.spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
        runtime.block_on(async {
            let Ok(mut signals) = Signals::listen() else { return };
            let _ = sender.send(());
            let mut first = None;
            loop {
                signals.next().await;
                ENDING.store(true, Ordering::SeqCst);
                let is_again = first.get_or_insert_with(Instant::now).elapsed() > NEXT;
                if is_again || SECTIONS.load(Ordering::SeqCst) == 0 || IDLE.load(Ordering::SeqCst) {
                    end();
                }
            }
        });
    });
    if started.is_ok() {
        // They are listened to when this returns; or the thread has ended, and they are not.
        let _ = listens.recv();
    }
}

#[cfg(not(unix))]
fn listen() {}

/// SIGTERM and SIGHUP. Elsewhere nothing is like them.
#[derive(Debug)]
pub struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    hangup: Option<tokio::signal::unix::Signal>,
}

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// The system refuses.
    #[cfg(unix)]
    pub fn listen() -> std::io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        // `nohup` says that a hangup is to be ignored.
        let hangup = if hangup_is_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Signals { terminate: signal(SignalKind::terminate())?, hangup })
    }

    /// Waits for one.
    #[cfg(unix)]
    pub async fn next(&mut self) {
        match &mut self.hangup {
            Some(hangup) => {
                tokio::select! {
                    _ = self.terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
            }
            None => {
                self.terminate.recv().await;
            }
        }
    }

    /// Listens to nothing.
    #[cfg(not(unix))]
    pub fn listen() -> std::io::Result<Signals> {
        Ok(Signals {})
    }

    /// Waits forever.
    #[cfg(not(unix))]
    pub async fn next(&mut self) {
        std::future::pending::<()>().await;
    }
}

/// Whether SIGHUP does nothing to this process. Only Linux says; elsewhere it is left as it is.
#[cfg(unix)]
fn hangup_is_ignored() -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return true };
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signals count from 1, and SIGHUP is the first.
    mask.is_none_or(|mask| mask & 1 != 0)
}
