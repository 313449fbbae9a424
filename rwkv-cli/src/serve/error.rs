//! Errors as the OpenAI API gives them: `{"error":{"message":..,"type":..,"param":..,"code":..}}`.

use std::any::Any;
use std::borrow::Cow;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    message: Cow<'static, str>,
    /// The field of the request that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
    retry_after: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// 400: the request asks for something that makes no sense, or that this server does not do.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// 400: a field is wrong.
    pub fn field(param: impl Into<String>, message: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError { param: Some(param.into()), ..ApiError::invalid(message) }
    }

    /// 401: the key is missing or wrong.
    pub fn no_key(message: &'static str) -> ApiError {
        ApiError { code: Some("invalid_api_key"), ..ApiError::new(StatusCode::UNAUTHORIZED, message) }
    }

    /// 403: not for requests from there.
    pub fn forbidden(message: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, message)
    }

    /// 404: it is not there.
    pub fn not_found(message: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, message)
    }

    /// 404: nothing is at this path.
    pub fn no_route() -> ApiError {
        ApiError::new(
            StatusCode::NOT_FOUND,
            "there is nothing at this path; /openapi.json lists what there is",
        )
    }

    /// 405.
    pub fn no_method() -> ApiError {
        ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "this path has no such method; /openapi.json lists what it has",
        )
    }

    /// 408: the body did not come.
    pub fn slow_body(limit: Duration) -> ApiError {
        let message = format!("the body did not come within {} seconds", limit.as_secs());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
    }

    /// 413: the body is too long.
    pub fn long_body(most: u64) -> ApiError {
        let message = format!("the body is too long; expected at most {most} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// The body could not be read, as a status says.
    pub fn body(status: StatusCode, most: u64) -> ApiError {
        match status {
            StatusCode::PAYLOAD_TOO_LARGE => ApiError::long_body(most),
            _ => ApiError::invalid("the body did not come to its end"),
        }
    }

    /// 501: there is no folder of states.
    pub fn no_states() -> ApiError {
        ApiError::new(
            StatusCode::NOT_IMPLEMENTED,
            "this server keeps no states; it was started without --state-dir",
        )
    }

    /// 507: the folder of states is full.
    pub fn full(message: String) -> ApiError {
        ApiError::new(StatusCode::INSUFFICIENT_STORAGE, message)
    }

    /// 503: the answer was not done in time.
    pub fn out_of_time() -> ApiError {
        ApiError::unavailable("the time for the answer is over", "time_limit")
    }

    /// 503: the model is not loaded yet.
    pub fn loading() -> ApiError {
        ApiError::unavailable("the model is being loaded", "loading")
    }

    /// 503: later it may work.
    pub fn unavailable(message: &'static str, code: &'static str) -> ApiError {
        ApiError {
            code: Some(code),
            retry_after: Some(1),
            ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }

    /// 500: not the request's fault.
    pub fn internal(message: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// The same error with a code for programs.
    pub fn code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    /// The body of the answer, and what a stream that fails halfway ends with.
    pub fn to_json(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 | 403 => "authentication_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.to_json())).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<ApiError> for anyhow::Error {
    fn from(error: ApiError) -> anyhow::Error {
        anyhow::Error::msg(error.message)
    }
}

/// What a handler that panicked answers.
pub fn panicked(_: Box<dyn Any + Send>) -> Response {
    ApiError::internal("the server met a state that it should never be in").into_response()
}
