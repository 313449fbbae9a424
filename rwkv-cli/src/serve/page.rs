//! The page at `/`. It is served without the key, which it asks for itself.
//!
//! Its files are part of the program, so nothing is read from a disk and nothing is fetched from elsewhere.

use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rwkv_model::pack::Checksum;

use super::App;

/// Everything comes from this server, nothing runs that is not in a file of it, and no other page may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Paths, types and contents.
macro_rules! files {
    ($($path:literal $kind:ident $file:literal),* $(,)?) => {
        &[$(($path, $kind, include_str!(concat!("page/", $file)))),*]
    };
}

const FILES: &[(&str, &str, &str)] = files![
    "/" HTML "index.html",
    "/page/icon.svg" SVG "icon.svg",
    "/page/base.css" CSS "base.css",
    "/page/chat.css" CSS "chat.css",
    "/page/engine.css" CSS "engine.css",
    "/page/theme.js" SCRIPT "theme.js",
    "/page/main.js" SCRIPT "main.js",
    "/page/dom.js" SCRIPT "dom.js",
    "/page/api.js" SCRIPT "api.js",
    "/page/store.js" SCRIPT "store.js",
    "/page/markdown.js" SCRIPT "markdown.js",
    "/page/answer.js" SCRIPT "answer.js",
    "/page/message.js" SCRIPT "message.js",
    "/page/chat.js" SCRIPT "chat.js",
    "/page/engine.js" SCRIPT "engine.js",
    "/page/units.js" SCRIPT "units.js",
    "/page/canvas.js" SCRIPT "canvas.js",
    "/page/pass.js" SCRIPT "pass.js",
    "/page/pack-view.js" SCRIPT "pack-view.js",
    "/page/ring-view.js" SCRIPT "ring-view.js",
    "/page/grid-view.js" SCRIPT "grid-view.js",
    "/page/sessions-view.js" SCRIPT "sessions-view.js",
    "/page/meters.js" SCRIPT "meters.js",
    "/page/tour.js" SCRIPT "tour.js",
    "/page/player.js" SCRIPT "player.js",
    "/page/compare.js" SCRIPT "compare.js",
];

/// The page's routes.
pub fn routes() -> Router<App> {
    FILES.iter().fold(Router::new(), |router, &(path, kind, text)| {
        let tag = format!("\"{}\"", Checksum::of(text.as_bytes()));
        router.route(path, get(move |headers: HeaderMap| async move { file(&headers, kind, text, &tag) }))
    })
}

fn file(headers: &HeaderMap, kind: &'static str, text: &'static str, tag: &str) -> Response {
    let known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = if known { StatusCode::NOT_MODIFIED.into_response() } else { text.into_response() };
    let mut set = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    };
    set(header::CONTENT_TYPE, kind);
    set(header::ETAG, tag);
    // Another version of the program may serve other files here.
    set(header::CACHE_CONTROL, "no-cache");
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "no-referrer");
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_another_one_names_is_served() {
        let served = |path: &str| FILES.iter().any(|(known, ..)| *known == path);
        for (path, _, text) in FILES {
            let quoted = text
                .split(['"', '(', ')'])
                .filter(|part| part.starts_with("/page/") || part.starts_with("./"));
            for named in quoted.map(|named| named.replacen("./", "/page/", 1)) {
                assert!(served(&named), "{path} names {named}");
            }
        }
    }

    #[test]
    fn nothing_is_fetched_from_elsewhere() {
        for (path, _, text) in FILES {
            for scheme in ["http://", "https://"] {
                let strange = text
                    .match_indices(scheme)
                    .find(|(at, _)| !text[*at..].starts_with("http://www.w3.org/2000/svg"));
                assert!(strange.is_none(), "{path} names an address: {:?}", strange);
            }
        }
    }

    #[test]
    fn a_known_file_is_not_sent_again() {
        let headers = HeaderMap::new();
        let first = file(&headers, CSS, "a{}", "\"1\"");
        assert_eq!(
            (first.status(), &first.headers()[header::ETAG]),
            (StatusCode::OK, &HeaderValue::from_static("\"1\""))
        );
        let headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_static("\"1\""))]);
        assert_eq!(file(&headers, CSS, "a{}", "\"1\"").status(), StatusCode::NOT_MODIFIED);
        assert_eq!(file(&headers, CSS, "a{}", "\"2\"").status(), StatusCode::OK);
    }
}
