//! Errors as the OpenAI API gives them: `{"error":{"message":..,"type":..,"param":..,"code":..}}`.

use std::any::Any;
use std::borrow::Cow;

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

    /// 404.
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
