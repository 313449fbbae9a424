//! Connections: taken up to a number, timed while they say nothing, and ended in order.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_io_timeout::TimeoutStream;

use crate::commands::serve::LimitArgs;
use crate::interrupt::{self, Signals};

/// How long a connection may take to send the head of a request, the first one or a further one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// A pause after the system refused a connection, such as for lack of file descriptors.
const AFTER_REFUSAL: Duration = Duration::from_millis(100);

/// Whether the server is to end.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Waits for Ctrl-C, SIGTERM and SIGHUP from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn on_signal() -> Result<Stop> {
        let (sender, receiver) = watch::channel(false);
        let mut signals = Signals::listen().context("signals cannot be waited for")?;
        // One that came before is not heard here.
        if interrupt::is_ending() {
            sender.send_replace(true);
        }
        tokio::spawn(async move {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                () = signals.next() => {}
            }
            sender.send_replace(true);
            // Kept, so that whoever asks later hears of it.
            sender.closed().await;
        });
        Ok(Stop(receiver))
    }

    /// Waits until the server is to end.
    pub async fn requested(&self) {
        // The sender is only gone when the runtime is.
        let _ = self.0.clone().wait_for(|&requested| requested).await;
    }
}

/// Serves connections until it is to stop, and then those that are open until they end.
pub async fn serve(listener: TcpListener, router: Router, limits: &LimitArgs, stop: Stop) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let connections = GracefulShutdown::new();
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await.expect("it is never closed");
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            () = stop.requested() => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(AFTER_REFUSAL).await;
            continue;
        };
        // An event is a small packet that is wanted at once.
        let _ = stream.set_nodelay(true);
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(limits.stall_timeout));
        let service = TowerToHyperService::new(router.clone());
        let io = TokioIo::new(Box::pin(stream));
        let connection = connections.watch(builder.serve_connection(io, service));
        tokio::spawn(async move {
            // Whatever a client does to its connection is its own affair.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    connections.shutdown().await;
}
