//! The messages of a chat.

use serde::Serialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::{Fields, shown, wrong};

/// The most messages of a request.
const MOST_MESSAGES: usize = 4096;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Whoever runs the application; `developer` is the same.
    System,
    /// Whoever is answered.
    User,
    /// The model.
    Assistant,
}

/// A message: text alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

impl Message {
    /// Takes the messages of a request.
    ///
    /// # Errors
    /// 400: there are none, or one is not text, or of a role that this server does not know.
    pub fn take_all(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
        let list = match fields.required("messages")? {
            Value::Array(list) => list,
            other => return Err(wrong("messages".into(), &other, "a list of messages")),
        };
        if !(1..=MOST_MESSAGES).contains(&list.len()) {
            let message = format!("messages has {} messages; expected 1 to {MOST_MESSAGES}", list.len());
            return Err(ApiError::field("messages", message));
        }
        let read = |(index, value)| Message::take(Fields::of(value, format!("messages[{index}]"))?);
        list.into_iter().enumerate().map(read).collect()
    }

    fn take(mut fields: Fields) -> Result<Message, ApiError> {
        let path = fields.path("role");
        let role = match fields.text("role")?.as_deref() {
            Some("system" | "developer") => Role::System,
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some("tool" | "function") => {
                let message = format!("{path}: results of tools are not supported");
                return Err(ApiError::field(path, message));
            }
            Some(other) => {
                return Err(wrong(path, &json!(other), "system, developer, user or assistant"));
            }
            None => return Err(ApiError::field(path.clone(), format!("{path} is missing"))),
        };
        let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
        fields.refuse("tool_calls", is_empty, "the model calls no tools")?;
        let path = fields.path("content");
        let content = match fields.take("content") {
            None => String::new(),
            Some(Value::String(text)) => text,
            Some(Value::Array(parts)) => parts
                .into_iter()
                .enumerate()
                .map(|(index, part)| text_of(Fields::of(part, format!("{path}[{index}]"))?))
                .collect::<Result<_, _>>()?,
            Some(other) => return Err(wrong(path, &other, "a string or a list of parts")),
        };
        Ok(Message { role, content })
    }
}

/// The text of a part, which has to be one of text.
fn text_of(mut part: Fields) -> Result<String, ApiError> {
    let path = part.path("type");
    match part.text("type")?.as_deref() {
        Some("text" | "input_text" | "output_text") => {
            let text = part.path("text");
            part.text("text")?.ok_or_else(|| ApiError::field(text.clone(), format!("{text} is missing")))
        }
        Some(other) => {
            let message = format!("{path} is {}; the model reads text alone", shown(&json!(other)));
            Err(ApiError::field(path, message).code("unsupported_content"))
        }
        None => Err(ApiError::field(path.clone(), format!("{path} is missing; expected \"text\""))),
    }
}
