//! The fields of a request's JSON object, taken one by one; what is wrong with one is said with its name.
//!
//! A field that nobody takes is ignored, and `null` is the same as no field, as in the OpenAI API.

use std::ops::RangeInclusive;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use futures_util::StreamExt;
use serde_json::{Map, Value};

use super::app::App;
use super::error::ApiError;

/// How long a request's body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// The most that is read of a body that is too long.
const DRAINED_BYTES: usize = 1 << 30;
/// The most that is repeated of what a client sent.
const SHOWN_CHARS: usize = 40;

/// The fields of an object that were not taken yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Fields {
    map: Map<String, Value>,
    /// Where the object is in the request, such as `messages[0].`; empty for the request itself.
    path: String,
}

impl Fields {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// 400: it is no JSON object.
    pub fn parse(body: &[u8]) -> Result<Fields, ApiError> {
        let text = std::str::from_utf8(body).map_err(|error| {
            let at = error.valid_up_to();
            ApiError::invalid(format!("the body is not UTF-8: byte {at} begins no character"))
        })?;
        let value = serde_json::from_str(text)
            .map_err(|error| ApiError::invalid(format!("the body is no JSON: {error}")))?;
        match value {
            Value::Object(map) => Ok(Fields { map, path: String::new() }),
            other => Err(ApiError::invalid(format!("the body is {}; expected an object", shown(&other)))),
        }
    }

    /// The fields of an object within the request.
    ///
    /// # Errors
    /// 400: it is something else.
    pub fn of(value: Value, path: String) -> Result<Fields, ApiError> {
        match value {
            Value::Object(map) => Ok(Fields { map, path: format!("{path}.") }),
            other => Err(wrong(path, &other, "an object")),
        }
    }

    /// Where a field is in the request.
    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// Takes a field.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// Takes a field that must be there.
    pub fn required(&mut self, name: &str) -> Result<Value, ApiError> {
        self.take(name).ok_or_else(|| {
            let path = self.path(name);
            ApiError::field(path.clone(), format!("{path} is missing"))
        })
    }

    /// Takes a string.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.take_as(name, "a string", |value| match value {
            Value::String(text) => Ok(text),
            other => Err(other),
        })
    }

    /// Takes a truth value.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.take_as(name, "true or false", |value| value.as_bool().ok_or(value))
    }

    /// Takes a number within bounds.
    pub fn number(&mut self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, ApiError> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.take_as(name, &expected, |value| {
            let number = value.as_f64().map(|number| number as f32);
            number.filter(|number| range.contains(number)).ok_or(value)
        })
    }

    /// Takes a whole number within bounds. `3.0` is one.
    pub fn integer(&mut self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, ApiError> {
        let expected = match (*range.start(), *range.end()) {
            (least, u64::MAX) => format!("a whole number of at least {least}, of 64 bits"),
            (least, most) => format!("a whole number from {least} to {most}"),
        };
        self.take_as(name, &expected, |value| whole(&value).filter(|n| range.contains(n)).ok_or(value))
    }

    /// Takes a whole number that may be negative, as 64 bits.
    pub fn seed(&mut self, name: &str) -> Result<Option<u64>, ApiError> {
        self.take_as(name, "a whole number of 64 bits", |value| {
            whole(&value).or_else(|| value.as_i64().map(i64::cast_unsigned)).ok_or(value)
        })
    }

    /// Takes an object.
    pub fn object(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        let path = self.path(name);
        self.take(name).map(|value| Fields::of(value, path)).transpose()
    }

    /// The names and values that were not taken.
    pub fn into_entries(self) -> impl Iterator<Item = (String, Value)> {
        self.map.into_iter()
    }

    /// Refuses a field that this server does not implement, where ignoring it would be a wrong answer.
    /// `means_nothing` says which values ask for nothing.
    pub fn refuse(
        &mut self,
        name: &str,
        means_nothing: impl FnOnce(&Value) -> bool,
        why: &'static str,
    ) -> Result<(), ApiError> {
        match self.take(name) {
            Some(value) if !means_nothing(&value) => {
                Err(ApiError::field(self.path(name), format!("{} is not supported: {why}", self.path(name))))
            }
            _ => Ok(()),
        }
    }

    fn take_as<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl FnOnce(Value) -> Result<T, Value>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        read(value).map(Some).map_err(|value| wrong(self.path(name), &value, expected))
    }
}

impl FromRequest<App> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Fields, ApiError> {
        let _room = match app.room_for_body(request.headers()).await {
            Ok(room) => room,
            Err(error) => {
                drain(request.into_body()).await;
                return Err(error);
            }
        };
        let body = tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, app))
            .await
            .map_err(|_| ApiError::slow_body(BODY_TIMEOUT))?
            .map_err(|rejection| ApiError::body(rejection.status(), app.args().limits.body_limit))?;
        Fields::parse(&body)
    }
}

/// Reads a body that nobody wants, so that its sender gets to reading why. There is an end to that.
async fn drain(body: Body) {
    let mut left = DRAINED_BYTES;
    let mut pieces = body.into_data_stream();
    let drained = async {
        while let Some(Ok(piece)) = pieces.next().await {
            left = left.saturating_sub(piece.len());
            if left == 0 {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(BODY_TIMEOUT, drained).await;
}

/// A value that is not what was expected.
pub fn wrong(path: String, value: &Value, expected: &str) -> ApiError {
    let message = format!("{path} is {}; expected {expected}", shown(value));
    ApiError::field(path, message)
}

/// A value in a message: short, and of containers the kind alone.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        scalar => {
            let mut text = scalar.to_string();
            if let Some((end, _)) = text.char_indices().nth(SHOWN_CHARS) {
                text.truncate(end);
                text.push('…');
            }
            text
        }
    }
}

/// A number without a fraction.
fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let number = value.as_f64()?;
        // Up to here every whole number has its own f64.
        (number.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&number)).then_some(number as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Fields {
        Fields::parse(json.as_bytes()).expect("an object")
    }

    #[test]
    fn bodies_that_are_no_object() {
        let deep = "[".repeat(10_000);
        for (body, part) in [
            (&b""[..], "no JSON"),
            (b"{\"a\":", "no JSON"),
            (b"[1]", "the body is a list; expected an object"),
            (b"\xc4\xe3\xba\xc3", "not UTF-8: byte 0"),
            (b"{\"a\":NaN}", "no JSON"),
            (b"{\"a\":1e999}", "no JSON"),
            (deep.as_bytes(), "recursion limit"),
        ] {
            let error = Fields::parse(body).unwrap_err().to_json()["error"]["message"].to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn values_are_held_to_their_bounds() {
        let message = |error: ApiError| error.to_json()["error"]["message"].as_str().unwrap().to_owned();
        let error = fields(r#"{"n":-1}"#).integer("n", 1..=16).unwrap_err();
        assert_eq!(message(error), "n is -1; expected a whole number from 1 to 16");
        let error = fields(r#"{"n":1.5}"#).integer("n", 0..=u64::MAX).unwrap_err();
        assert_eq!(message(error), "n is 1.5; expected a whole number of at least 0, of 64 bits");
        let error = fields(r#"{"t":"hot"}"#).number("t", 0.0..=2.0).unwrap_err();
        assert_eq!(message(error), "t is \"hot\"; expected a number from 0 to 2");
        let error = fields(&format!("{{\"t\":\"{}\"}}", "é".repeat(500))).flag("t").unwrap_err();
        assert!(message(error).chars().count() < 100);
        assert_eq!(fields(r#"{"n":3.0}"#).integer("n", 1..=16), Ok(Some(3)));
        assert_eq!(fields(r#"{"n":null}"#).integer("n", 1..=16), Ok(None));
        assert_eq!(fields(r#"{"s":-1}"#).seed("s"), Ok(Some(u64::MAX)));
    }
}
