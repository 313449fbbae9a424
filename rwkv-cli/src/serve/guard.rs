//! Who may ask: pages of known origins, and those who know the key.
//!
//! A page in a browser on the same machine reaches a server at 127.0.0.1, whoever wrote the page. Two checks keep it out,
//! before anything else is looked at: a request that names an origin must name this server's or one of `--cors-origin`; and
//! at a loopback address the `Host` must be a loopback name, so that no other name can be pointed at this machine (DNS
//! rebinding). Programs that are no browsers send no origin, and the address as the host.

use std::net::IpAddr;

use anyhow::Result;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use subtle::ConstantTimeEq;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::app::App;
use super::error::ApiError;
use crate::commands::serve::ServeArgs;
use crate::exit::Stop;

/// What is asked of a request before it is answered.
pub struct Guard {
    key: Option<String>,
    origins: Vec<HeaderValue>,
    is_loopback: bool,
}

impl Guard {
    /// Reads the command line.
    ///
    /// # Errors
    /// The key is empty or cannot be sent in a header; an origin is none.
    pub fn new(args: &ServeArgs) -> Result<Guard> {
        let key = args.api_key.clone();
        if let Some(key) = &key
            && (key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(Stop::usage(
                "--api-key, or RWKV_API_KEY: expected letters, digits and signs, without blanks, and at least one",
            ));
        }
        let origins = args.cors_origin.iter().map(|origin| read_origin(origin)).collect::<Result<_>>()?;
        Ok(Guard { key, origins, is_loopback: args.host.is_loopback() })
    }

    /// Whether a key is asked for.
    pub fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// The headers that let pages of the known origins read answers; `None` if there are no such origins.
    pub fn cors(&self) -> Option<CorsLayer> {
        if self.origins.is_empty() {
            return None;
        }
        let layer = CorsLayer::new()
            .allow_origin(AllowOrigin::list(self.origins.clone()))
            .allow_methods([Method::GET, Method::POST, Method::DELETE])
            // Clients tell what they are in headers of their own. Which origins may ask is a list.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([header::RETRY_AFTER]);
        Some(layer)
    }

    fn check_place(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
        let host = match headers.get(header::HOST) {
            Some(host) => Some(
                host.to_str()
                    .ok()
                    .and_then(|host| host.parse::<Authority>().ok())
                    .ok_or_else(|| ApiError::invalid("the Host header is no host name"))?,
            ),
            None => uri.authority().cloned(),
        };
        if let (true, Some(host)) = (self.is_loopback, &host)
            && !is_loopback_name(host.host())
        {
            return Err(ApiError::forbidden(format!(
                "this server does not answer for the host {:?}",
                host.host()
            )));
        }
        match headers.get(header::ORIGIN) {
            Some(origin) if !self.origins.contains(origin) && !is_own(origin, host.as_ref()) => {
                Err(ApiError::forbidden("pages of this origin may not use this server; see --cors-origin"))
            }
            _ => Ok(()),
        }
    }

    fn check_key(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(key) = &self.key else { return Ok(()) };
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return Err(ApiError::no_key("this server asks for a key: Authorization: Bearer KEY"));
        };
        let (scheme, given) = value.as_bytes().split_at(value.len().min(7));
        if scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(given.ct_eq(key.as_bytes())) {
            return Ok(());
        }
        Err(ApiError::no_key("the key is wrong"))
    }
}

/// Lets requests through that come from where they may.
pub async fn place(State(app): State<App>, request: Request, next: Next) -> Result<Response, ApiError> {
    app.guard().check_place(request.headers(), request.uri())?;
    Ok(next.run(request).await)
}

/// Lets requests through that know the key.
pub async fn key(State(app): State<App>, request: Request, next: Next) -> Result<Response, ApiError> {
    app.guard().check_key(request.headers())?;
    Ok(next.run(request).await)
}

fn read_origin(origin: &str) -> Result<HeaderValue> {
    let uri = origin.parse::<Uri>().ok();
    let is_origin = uri.is_some_and(|uri| {
        uri.scheme().is_some() && uri.authority().is_some() && uri.path() == "/" && uri.query().is_none()
    });
    let value = HeaderValue::from_str(origin).ok().filter(|_| is_origin && !origin.ends_with('/'));
    value.ok_or_else(|| {
        Stop::usage(format!(
            "--cors-origin {origin:?} is no origin; expected one such as https://example.org"
        ))
    })
}

/// Whether an origin is that of this server's own pages.
fn is_own(origin: &HeaderValue, host: Option<&Authority>) -> bool {
    let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    match (origin.as_ref().and_then(Uri::authority), host) {
        (Some(origin), Some(host)) => origin == host,
        _ => false,
    }
}

fn is_loopback_name(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}
