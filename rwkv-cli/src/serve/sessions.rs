//! The sessions of one request: handed to the scheduler together, heard of through one channel, cancelled when dropped.

use std::ops::ControlFlow;
use std::sync::Arc;

use rwkv_model::{ErrorKind, FinishReason, Request, SessionEvent, Sink, SubmitError, Ticket};
use tokio::sync::mpsc;

use super::app::Loaded;
use super::error::ApiError;
use super::metrics::{Clock, Metrics};

/// Events of a session that may wait for a slow client. One that is further behind loses its session.
const EVENTS: usize = 4096;

/// Sessions that run, or wait to.
#[derive(Debug)]
pub struct Sessions {
    events: mpsc::Receiver<(usize, SessionEvent)>,
    tickets: Vec<Ticket>,
    /// The first event, where it was waited for.
    first: Option<(usize, SessionEvent)>,
    unfinished: usize,
}

impl Sessions {
    /// Hands requests to the scheduler: all of them or none.
    ///
    /// # Errors
    /// 400: a request is wrong. 503: the queue is full, or the server ends.
    pub fn submit(
        loaded: &Loaded,
        metrics: &Arc<Metrics>,
        requests: Vec<Request>,
    ) -> Result<Sessions, ApiError> {
        let unfinished = requests.len();
        let (sender, events) = mpsc::channel(EVENTS * unfinished.max(1));
        let requests = requests.into_iter().enumerate().map(|(index, request)| {
            let sink = sink(index, sender.clone(), Clock::start(metrics));
            (request, sink)
        });
        let tickets = loaded.scheduler.submit_all(requests).map_err(refused)?;
        Ok(Sessions { events, tickets, first: None, unfinished })
    }

    /// Waits until one of them has left the queue.
    ///
    /// # Errors
    /// 503: none did in time. Or whatever ended one before that.
    pub async fn begin(&mut self) -> Result<(), ApiError> {
        let first = self.next().await?;
        if let Some((_, SessionEvent::Finished(finished))) = &first {
            check(finished.reason)?;
        }
        self.first = first;
        Ok(())
    }

    /// The next event of any of them; `None` once all have finished.
    ///
    /// # Errors
    /// A session failed, or its events came faster than they were taken.
    pub async fn next(&mut self) -> Result<Option<(usize, SessionEvent)>, ApiError> {
        if self.first.is_some() {
            return Ok(self.first.take());
        }
        if self.unfinished == 0 {
            return Ok(None);
        }
        match self.events.recv().await {
            Some((_, SessionEvent::Failed(error))) if error.kind() == ErrorKind::Budget => {
                Err(ApiError::unavailable("other sessions take the memory for keys and values", "memory"))
            }
            Some((_, SessionEvent::Failed(error))) => {
                let causes = format!("{:#}", anyhow::Error::new(error.clone()));
                tracing::error!(error = causes, "a session failed");
                // The causes may name files.
                Err(ApiError::internal(error.to_string()))
            }
            Some((index, event)) => {
                if let SessionEvent::Finished(finished) = &event {
                    check(finished.reason)?;
                    self.unfinished -= 1;
                }
                Ok(Some((index, event)))
            }
            None => {
                Err(ApiError::unavailable("the answer was not read as fast as it was written", "too_slow"))
            }
        }
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        // Nobody listens any more. Those that have ended do not mind.
        self.tickets.iter().for_each(Ticket::cancel);
    }
}

/// Whether a session came to an end that is an answer.
fn check(reason: FinishReason) -> Result<(), ApiError> {
    match reason {
        FinishReason::QueueLimit => {
            Err(ApiError::unavailable("the queue did not get to it in time", "queue_timeout"))
        }
        FinishReason::Cancelled => Err(ApiError::unavailable("the server is shutting down", "shutting_down")),
        _ => Ok(()),
    }
}

fn refused(error: SubmitError) -> ApiError {
    match error {
        SubmitError::QueueFull => ApiError::unavailable("the queue is full", "queue_full"),
        SubmitError::Invalid(error) if error.kind() == ErrorKind::Budget => {
            ApiError::invalid(error.to_string()).code("context_length_exceeded")
        }
        SubmitError::Invalid(error) => ApiError::invalid(error.to_string()),
        _ => ApiError::unavailable("the server is shutting down", "shutting_down"),
    }
}

/// What the engine's thread calls: it takes note of the time, and never waits.
fn sink(index: usize, sender: mpsc::Sender<(usize, SessionEvent)>, mut clock: Clock) -> Sink {
    Box::new(move |event| {
        clock.hear(&event);
        let is_heard = match event {
            SessionEvent::Prefill { .. } => !sender.is_closed(),
            event => sender.try_send((index, event)).is_ok(),
        };
        if is_heard { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
}
