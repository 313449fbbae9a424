//! Ctrl-C.
//!
//! It ends the program at once, except while somebody holds an [`Interruptible`] section: then it only asks, and
//! whoever holds the section looks and brings things to an orderly end. A second Ctrl-C does not wait for that.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::exit;

static SECTIONS: AtomicUsize = AtomicUsize::new(0);
static REQUESTED: AtomicBool = AtomicBool::new(false);
static BEFORE_EXIT: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());

/// A stretch of work that looks at [`Interruptible::requested`] often, until it is dropped.
#[derive(Debug)]
pub struct Interruptible(());

impl Interruptible {
    /// Begins the section, which may be inside another one. Earlier requests are forgotten.
    pub fn begin() -> Interruptible {
        SECTIONS.fetch_add(1, Ordering::SeqCst);
        REQUESTED.store(false, Ordering::SeqCst);
        Interruptible(())
    }

    /// Whether Ctrl-C was pressed since the section began.
    pub fn requested(&self) -> bool {
        REQUESTED.load(Ordering::SeqCst)
    }

    /// An error if Ctrl-C was pressed.
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

/// Does something before Ctrl-C ends the program at once, such as to complete a file.
pub fn before_exit(action: impl FnOnce() + Send + 'static) {
    BEFORE_EXIT.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(action));
}

/// Makes Ctrl-C do what this module says. Where the system refuses, it ends the program as usual.
pub fn install() {
    let _ = ctrlc::set_handler(|| {
        if SECTIONS.load(Ordering::SeqCst) == 0 || REQUESTED.swap(true, Ordering::SeqCst) {
            for action in BEFORE_EXIT.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                action();
            }
            std::process::exit(i32::from(exit::INTERRUPTED));
        }
    });
}
